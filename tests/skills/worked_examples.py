"""Read the complete examples in the reference documents of the skill.

An example consists of the code blocks whose first line names a file: one attempt (`model_new.py`,
sources in `kernels/`) and its task (`reference.py`).
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
    """The complete example in one reference document: an attempt and its task."""

    name: str
    attempt: Attempt
    task_source: str

    @property
    def device(self) -> str:
        return "cpu" if any(path.endswith(".cpp") for path in self.attempt.kernels) else "cuda"

    def task(self, folder: Path) -> Task:
        """Write the example's task to `folder` and load it."""
        path = folder / f"{self.name.replace('-', '_')}.py"
        path.write_text(self.task_source)
        return load_task(path, device=self.device)

    def changed(self, old: str, new: str) -> Attempt:
        """Return the attempt with the text `old`, which must occur exactly once, replaced by
        `new`."""
        assert sum(text.count(old) for _, text in self.attempt.files) == 1, old
        return Attempt(tuple((path, text.replace(old, new)) for path, text in self.attempt.files))


def named_blocks(text: str) -> dict[str, str]:
    """Return the text of each code block that names a file, by the file's name. Raises
    AssertionError if a name is repeated."""
    files: dict[str, str] = {}
    for block in _BLOCK.findall(text):
        if named := _FILE.match(block):
            assert named[1] not in files, f"{named[1]} occurs twice"
            files[named[1]] = block
    return files


def read_example(reference: Path) -> Example:
    """Read the example in a reference document. Raises AssertionError if it is incomplete."""
    files = named_blocks(reference.read_text())
    assert {TASK, MODULE} <= files.keys(), f"{reference.name}: incomplete example"
    task_source = files.pop(TASK)
    return Example(reference.stem, Attempt(tuple(sorted(files.items()))), task_source)


EXAMPLES = {path.stem: read_example(path) for path in sorted(REFERENCES.glob("*.md"))}
