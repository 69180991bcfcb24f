"""Where a run lives: `.cuagent/runs/ID/` with its log, blobs, work folder and the work's history.

IDs sort by time and can be read by people: `20261121-071500-softmax`.
A `.cuagent` folder may come with a cloned repository. So no part of a run may be a link, and no
link is followed on the way to it.
"""

from __future__ import annotations

import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from cuagent.record.inside import RecordError, create_file, read_file
from cuagent.record.origin import is_marked_log

LATEST = "latest"
"""In the place of an ID: the newest run."""
OWN = ".cuagent"
RUNS = Path(OWN) / "runs"
LOG = "log.jsonl"
PARTS = (LOG, "blobs", "evidence", "work", "history.git", "scratch", "crash.txt")


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run."""

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def log(self) -> Path:
        return self.path / LOG

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

    @property
    def is_made_here(self) -> bool:
        """Whether cuagent wrote this log for this user on this machine; see `origin`.

        Raises RecordError.
        """
        try:
            return is_marked_log(read_file(self.path, LOG))
        except OSError as error:
            raise RecordError(f"{self.log}: {error.strerror or error}") from error

    def refuse_links(self) -> None:
        """Raise RecordError where the folder or a part of it is a link."""
        for path in (self.path, *(self.path / part for part in PARTS)):
            _refuse_link(path)


def new_run(name: str, root: Path = RUNS) -> RunFolder:
    """Make a fresh run folder under `root`. Raises RecordError."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "run"
    stem = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{slug}"
    _refuse_linked_root(root)
    try:
        root.mkdir(parents=True, exist_ok=True)
        if root.parent.name == OWN:  # the user's own git need not see it
            create_file(root.parent, ".gitignore", b"*\n")
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
    if run and (Path(run) / LOG).is_file():
        path = Path(run).absolute()
        _refuse_linked_root(path.parent)
        return RunFolder(_sound(RunFolder(path)).path.resolve())
    known = list_runs(root)
    found = [folder for folder in known if run is None or run in folder.id]
    exact = [folder for folder in found if folder.id == run]
    if exact or (run is None and found):
        return _sound((exact or found)[-1])
    if not found:
        wanted = f"no run {run!r}" if run else "no run"
        others = "there are none" if not known else f"known: {len(known)}, see cuagent runs"
        raise RecordError(f"{root}: {wanted} ({others})")
    if len(found) > 1:
        names = ", ".join(folder.id for folder in found[-4:])
        raise RecordError(f"{root}: {run!r} fits {len(found)} runs ({names}); say more of the ID")
    return _sound(found[0])


def list_runs(root: Path = RUNS) -> list[RunFolder]:
    """All runs under `root`, oldest first; links are no runs. Raises RecordError."""
    _refuse_linked_root(root)
    if not root.is_dir():
        return []
    place = root.resolve()
    found = [path for path in place.iterdir() if _has_log(path)]
    return [RunFolder(path) for path in sorted(found, key=lambda path: by_number(path.name))]


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


def _sound(folder: RunFolder) -> RunFolder:
    folder.refuse_links()
    return folder


def _has_log(path: Path) -> bool:
    """Whether it is a folder with a log, no links."""
    try:
        folder, log = path.lstat(), (path / LOG).lstat()
    except OSError:
        return False
    return stat.S_ISDIR(folder.st_mode) and stat.S_ISREG(log.st_mode)


def _refuse_linked_root(root: Path) -> None:
    """Raise RecordError where `.cuagent` or its folder of runs is a link.

    Another folder of runs is one that the user has named, and may lie behind a link.
    """
    if root.parent.name == OWN:
        _refuse_link(root.parent)
        _refuse_link(root)


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise RecordError(
            f"{path}: is a link, and a run folder must hold no links; remove it, or look where it "
            "leads before you use this folder"
        )
