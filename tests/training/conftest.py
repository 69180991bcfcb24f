"""Fixtures of the training tests: one thread, a task, a small chat, three tools, a whole demo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dictated import SOURCE, SUBMIT, WRITE

from cuagent.agent.tools import submit, verify, write
from cuagent.message import Message
from cuagent.task.task import Task
from cuagent.training.policy.chat import Chat, train_tokenizer

if TYPE_CHECKING:  # the process that starts the test workers must not import torch
    from cuagent.training.rollout.episode import Play


SLOW = ("test_trial.py",), ("test_parallel.py", "test_ray_pool.py")
"""Files with slow tests, which each of the two test processes runs first."""
LAZY = ("transformers.models.auto.modeling_auto", "transformers.models.llama.modeling_llama")


@pytest.hookimpl(trylast=True)  # after the GPU tests are deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests so that slow ones run first, and no process waits for a slow one at the end.

    A process runs half of the tests, in order, and then takes tests from the end of the other half.
    """
    first, second = ([item for item in items if item.path.name in names] for names in SLOW)
    others = [item for item in items if item not in (*first, *second)]
    count = max((len(items) + 1) // 2 - len(first), 0)
    items[:] = [*first, *others[:count], *second, *others[count:]]


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
    from cuagent.training.rollout.episode import Play

    def opening(task: Task) -> list[Message]:
        return [Message("user", task.source)]

    tools = (write.TOOL, verify.TOOL, submit.TOOL)
    return Play(tools, opening, turns=4, context=600, reply=120)


@pytest.fixture(scope="session")
def python(warm: Callable[..., list[str]]) -> list[str]:
    """Return the command of an interpreter that has also imported transformers, which takes as long
    as torch."""
    return warm("cuagent.training.algorithms.ppo", *LAZY)


@pytest.fixture(scope="session")
def demo(once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """Return the folder of a finished demonstration. Tests must not change it, because several test
    processes share it."""

    def train(out: Path) -> None:
        from cuagent.training.demo.demo import run_demo
        from cuagent.training.demo.presets import DemoConfig, for_test

        run_demo(for_test(DemoConfig()), "cpu", out, lambda _: None)

    return once("demo", train)
