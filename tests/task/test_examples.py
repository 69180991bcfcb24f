"""The examples run: small ones as they are, those for a GPU as their docstrings say for a CPU."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from cuagent.task import check_runs, load_task, open_reference
from cuagent.task.load import Task

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def small(path: Path) -> Task:
    """Return the task with the sizes for a CPU, from the command in the file's docstring."""
    text = path.read_text()
    found = re.search(r"^    cuagent optimize ((?:.*\\\n)*.*)$", text, re.MULTILINE)
    if found is None:
        return load_task(path, device="cpu")
    name, *options = shlex.split(found[1].replace("\\\n", ""))
    assert name == f"examples/{path.name}"
    given = dict(zip(options[::2], options[1::2], strict=True))
    return load_task(path, inputs=given["--inputs"], init=given["--init"], device="cpu")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_on_a_cpu(path: Path) -> None:
    check_runs(open_reference(small(path)))


def test_readme_lists_every_example() -> None:
    readme = (ROOT / "README.md").read_text()
    assert all(f"`examples/{path.name}`" in readme for path in EXAMPLES)
