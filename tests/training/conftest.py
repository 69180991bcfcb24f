"""Shared by the tests of training: one thread, a task, a small chat, three tools, a whole demo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dictated import SOURCE, SUBMIT, WRITE

from cuagent.agent.tools import submit, verify, write
from cuagent.message import Message
from cuagent.task.task import Task
from cuagent.training.chat import Chat, train_tokenizer

if TYPE_CHECKING:  # else whoever only starts the workers would import torch before they begin
    from cuagent.training.rollout import Play


DEAR = ("test_trial.py",), ("test_parallel.py", "test_ray_pool.py")
"""What each of two processes begins with."""
LAZY = ("transformers.models.auto.modeling_auto", "transformers.models.llama.modeling_llama")


@pytest.hookimpl(trylast=True)  # once those for a GPU are out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is dear begins first: what is left at the end is short, and no process waits for it.

    A process is given half of the tests, in their order, and takes others from the end of a half.
    """
    first, second = ([item for item in items if item.path.name in names] for names in DEAR)
    others = [item for item in items if item not in (*first, *second)]
    beside = max((len(items) + 1) // 2 - len(first), 0)
    items[:] = [*first, *others[:beside], *second, *others[beside:]]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    import torch

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
    from cuagent.training.rollout import Play

    def opening(task: Task) -> list[Message]:
        return [Message("user", task.source)]

    tools = (write.TOOL, verify.TOOL, submit.TOOL)
    return Play(tools, opening, turns=4, context=600, reply=120)


@pytest.fixture(scope="session")
def python(warm: Callable[..., list[str]]) -> list[str]:
    """Has imported transformers too, which takes as long as torch."""
    return warm("cuagent.training.ppo", *LAZY)


@pytest.fixture(scope="session")
def demo(once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """The whole way. Only to be read, for several processes of the tests may have it."""

    def train(out: Path) -> None:
        from cuagent.training.demo import run_demo
        from cuagent.training.presets import DemoConfig, for_test

        run_demo(for_test(DemoConfig()), "cpu", out, lambda _: None)

    return once("demo", train)
