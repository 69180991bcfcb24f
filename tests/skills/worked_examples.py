"""The complete examples in the skill's references: code blocks that name their file in line one.

A reference holds one attempt (`model_new.py`, sources in `kernels/`) and its task (`reference.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from cuagent.attempt import MODULE, Attempt
from cuagent.task import Task, load_task

SKILLS = Path(__file__).parents[2] / "skills"
REFERENCES = SKILLS / "references"
TASK = "reference.py"

_BLOCK = re.compile(r"^```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"(?://|#) (reference\.py|model_new\.py|kernels/\w+\.(?:cu|cpp|h))\n")


@dataclass(frozen=True)
class Example:
    """What one reference shows in full."""

    name: str
    attempt: Attempt
    task_source: str

    @property
    def device(self) -> str:
        return "cpu" if any(path.endswith(".cpp") for path in self.attempt.kernels) else "cuda"

    def task(self, folder: Path) -> Task:
        """The task, laid down in `folder`."""
        path = folder / f"{self.name.replace('-', '_')}.py"
        path.write_text(self.task_source)
        return load_task(path, device=self.device)

    def changed(self, old: str, new: str) -> Attempt:
        """The attempt with one piece of its text replaced, which must occur exactly once."""
        assert sum(text.count(old) for _, text in self.attempt.files) == 1, old
        return Attempt(tuple((path, text.replace(old, new)) for path, text in self.attempt.files))


def named_blocks(text: str) -> dict[str, str]:
    """The code blocks that name their file, by that name; AssertionError where one comes twice."""
    files: dict[str, str] = {}
    for block in _BLOCK.findall(text):
        if named := _FILE.match(block):
            assert named[1] not in files, f"{named[1]} twice"
            files[named[1]] = block
    return files


def read_example(reference: Path) -> Example:
    """The example of a reference; AssertionError where it is not complete."""
    files = named_blocks(reference.read_text())
    assert {TASK, MODULE} <= files.keys(), f"{reference.name}: not complete"
    task_source = files.pop(TASK)
    return Example(reference.stem, Attempt(tuple(sorted(files.items()))), task_source)


EXAMPLES = {path.stem: read_example(path) for path in sorted(REFERENCES.glob("*.md"))}
