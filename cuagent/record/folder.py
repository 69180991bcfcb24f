"""Where a run lives: `.cuagent/runs/ID/` with its log, blobs, work folder and the work's history.

IDs sort by time and can be read by people: `20261121-071500-softmax`.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

LATEST = "latest"
"""In the place of an ID: the newest run."""
RUNS = Path(".cuagent") / "runs"


class RecordError(Exception):
    """A run folder is missing or cannot be read. One line: what, where, what to do."""


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run."""

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def log(self) -> Path:
        return self.path / "log.jsonl"

    @property
    def blobs(self) -> Path:
        """Long values of the log, each in a file named by its sha256."""
        return self.path / "blobs"

    @property
    def evidence(self) -> Path:
        """Verdicts that somebody may rely on, each in a file for `cuagent audit`."""
        return self.path / "evidence"

    @property
    def work(self) -> Path:
        """Where the agent writes its attempts; all it may write."""
        return self.path / "work"

    @property
    def history(self) -> Path:
        """The git directory of `work`, outside of it: what the agent writes is never a hook."""
        return self.path / "history.git"

    @property
    def scratch(self) -> Path:
        """Temporary files and the shell state of the agent's commands."""
        return self.path / "scratch"


def new_run(name: str, root: Path = RUNS) -> RunFolder:
    """Make a fresh run folder under `root`. Raises RecordError."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "run"
    stem = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{slug}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        if root.parent.name == ".cuagent":  # the user's own git need not see it
            (root.parent / ".gitignore").write_text("*\n")
        path = _first_free(root.resolve(), stem)
        folder = RunFolder(path)
        for part in (folder.blobs, folder.work, folder.scratch):
            part.mkdir()
    except OSError as error:
        raise RecordError(f"{root}: cannot make a run folder: {error.strerror or error}") from error
    return folder


def find_run(run: str | None = None, root: Path = RUNS) -> RunFolder:
    """The run meant by an ID, an unambiguous part of one, or a path; the newest by LATEST or None.

    Raises RecordError.
    """
    if run == LATEST:
        run = None
    if run and (Path(run) / "log.jsonl").is_file():
        return RunFolder(Path(run).resolve())
    known = list_runs(root)
    found = [folder for folder in known if run is None or run in folder.id]
    exact = [folder for folder in found if folder.id == run]
    if exact or (run is None and found):
        return (exact or found)[-1]
    if not found:
        wanted = f"no run {run!r}" if run else "no run"
        others = "there are none" if not known else f"known: {len(known)}, see cuagent runs"
        raise RecordError(f"{root}: {wanted} ({others})")
    if len(found) > 1:
        names = ", ".join(folder.id for folder in found[-4:])
        raise RecordError(f"{root}: {run!r} fits {len(found)} runs ({names}); say more of the ID")
    return found[0]


def list_runs(root: Path = RUNS) -> list[RunFolder]:
    """All runs under `root`, oldest first."""
    logs = sorted(root.glob("*/log.jsonl"), key=lambda log: by_number(log.parent.name))
    return [RunFolder(log.parent.resolve()) for log in logs]


def by_number(name: str) -> list[str | int]:
    """A key that sorts the tenth run of a second behind the second one."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", name)]


def _first_free(root: Path, stem: str) -> Path:
    path, n = root / stem, 1
    while True:
        try:
            path.mkdir()
        except FileExistsError:
            n += 1
            path = root / f"{stem}-{n}"
        else:
            return path
