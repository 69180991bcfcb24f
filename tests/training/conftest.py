"""Shared by the tests of training: one thread, a task, a small chat, three tools."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from dictated import SOURCE, SUBMIT, WRITE

from cuagent.agent.tools import submit, verify, write
from cuagent.message import Message
from cuagent.task.task import Task
from cuagent.training.chat import Chat, train_tokenizer
from cuagent.training.rollout import Play


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    path = tmp_path / "double_relu.py"
    path.write_text(SOURCE)
    return Task(path, "Model", SOURCE)


@pytest.fixture(scope="session")
def chat() -> Chat:
    return train_tokenizer([SOURCE, WRITE, SUBMIT, "wrote a.txt (1 lines)"] * 3, 380)


@pytest.fixture(scope="session")
def play() -> Play:
    def opening(task: Task) -> list[Message]:
        return [Message("user", task.source)]

    tools = (write.TOOL, verify.TOOL, submit.TOOL)
    return Play(tools, opening, turns=4, context=600, reply=120)
