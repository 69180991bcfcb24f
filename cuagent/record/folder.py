"""Create, find and list run folders: `.cuagent/runs/ID/` with log, blobs, work folder and history.

IDs are readable and sort by time: `20261121-071500-softmax`. A `.cuagent` folder may come with a
cloned repository. So no part of a run may be a symbolic link, and no link on the path to it is
followed.
"""

from __future__ import annotations

import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from cuagent.record.contained_files import RecordError, create_file, read_file
from cuagent.record.origin import Origin, log_origin

LATEST = "latest"
"""Word that the user can write in place of a run's ID, for the newest run."""
CUAGENT_FOLDER = ".cuagent"
RUNS = Path(CUAGENT_FOLDER) / "runs"
LOG = "log.jsonl"
MAX_LOG_BYTES = 256 << 20
"""Largest size in bytes of a log and of a blob. Larger ones are refused, because a huge sparse file
in a hostile repository would fill the memory."""
PARTS = (LOG, "blobs", "evidence", "work", "history.git", "scratch", "crash.txt")


@dataclass(frozen=True)
class RunFolder:
    """Paths of the files and folders of one run."""

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def log(self) -> Path:
        return self.path / LOG

    @property
    def blobs(self) -> Path:
        """Folder for long values of the log, each in a file named by its sha256."""
        return self.path / "blobs"

    @property
    def evidence(self) -> Path:
        """Folder of the evidence files, one for each verdict that `cuagent audit` can repeat."""
        return self.path / "evidence"

    @property
    def work(self) -> Path:
        """Folder of the agent's attempts, the only folder that the agent may write to."""
        return self.path / "work"

    @property
    def history(self) -> Path:
        """Git directory of `work`. It is outside `work`, so that the agent cannot write hooks."""
        return self.path / "history.git"

    @property
    def scratch(self) -> Path:
        """Folder for temporary files and for the state of the agent's shell."""
        return self.path / "scratch"

    @property
    def is_made_here(self) -> bool:
        """True if this user wrote the log on this machine, and no records were removed from it.

        Raises RecordError.
        """
        return self.origin is Origin.HERE

    @property
    def origin(self) -> Origin:
        """Author of the log, as far as its authentication codes show (`record/origin.py`). Raises
        RecordError."""
        try:
            return log_origin(read_file(self.path, LOG, MAX_LOG_BYTES))
        except OSError as error:
            raise RecordError(f"{self.log}: {error.strerror or error}") from error

    def refuse_links(self) -> None:
        """Raise RecordError if the run folder or a part of it is a symbolic link."""
        for path in (self.path, *(self.path / part for part in PARTS)):
            _refuse_link(path)


def new_run(name: str, root: Path = RUNS) -> RunFolder:
    """Create a folder under `root` for a new run and return it. Raises RecordError.

    The ID of the run is the time and `name`.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "run"
    stem = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{slug}"
    _refuse_linked_root(root)
    try:
        root.mkdir(parents=True, exist_ok=True)
        if root.parent.name == CUAGENT_FOLDER:  # hide the runs from the user's git
            create_file(root.parent, ".gitignore", b"*\n")
        path = _first_free(root.resolve(), stem)
        folder = RunFolder(path)
        for part in (folder.blobs, folder.work, folder.scratch):
            part.mkdir()
    except OSError as error:
        raise RecordError(
            f"{root}: cannot create a run folder: {error.strerror or error}"
        ) from error
    return folder


def find_run(run: str | None = None, root: Path = RUNS) -> RunFolder:
    """Return the run with this ID, unambiguous part of an ID, or path.

    LATEST and None mean the newest run. Raises RecordError if no run or more than one fits, or if a
    part of the run is a link.
    """
    if run == LATEST:
        run = None
    if run and (Path(run) / LOG).is_file():
        path = Path(run).absolute()
        _refuse_linked_root(path.parent)
        return RunFolder(_without_links(RunFolder(path)).path.resolve())
    runs = list_runs(root)
    found = [folder for folder in runs if run is None or run in folder.id]
    exact = [folder for folder in found if folder.id == run]
    if exact or (run is None and found):
        return _without_links((exact or found)[-1])
    if not found:
        wanted = f"no run {run!r}" if run else "no run"
        hint = "there are none" if not runs else f"known: {len(runs)}, see cuagent runs"
        raise RecordError(f"{root}: {wanted} ({hint})")
    if len(found) > 1:
        names = ", ".join(folder.id for folder in found[-4:])
        raise RecordError(f"{root}: {run!r} fits {len(found)} runs ({names}); give more of the ID")
    return _without_links(found[0])


def list_runs(root: Path = RUNS) -> list[RunFolder]:
    """Return all runs under `root`, oldest first; symbolic links are skipped. Raises
    RecordError."""
    _refuse_linked_root(root)
    if not root.is_dir():
        return []
    found = [path for path in root.resolve().iterdir() if _has_log(path)]
    return [RunFolder(path) for path in sorted(found, key=lambda path: by_number(path.name))]


def by_number(name: str) -> list[str | int]:
    """Return a sort key by which "run-10" comes after "run-2": digits are compared as numbers."""
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


def _without_links(folder: RunFolder) -> RunFolder:
    """Return `folder` unchanged. Raises RecordError if it or a part of it is a link."""
    folder.refuse_links()
    return folder


def _has_log(path: Path) -> bool:
    """Return True if `path` is a folder with a log, and neither of the two is a link."""
    try:
        folder, log = path.lstat(), (path / LOG).lstat()
    except OSError:
        return False
    return stat.S_ISDIR(folder.st_mode) and stat.S_ISREG(log.st_mode)


def _refuse_linked_root(root: Path) -> None:
    """Raise RecordError if `.cuagent` or its folder of runs is a link.

    Any other `root` was named by the user and may contain links.
    """
    if root.parent.name == CUAGENT_FOLDER:
        _refuse_link(root.parent)
        _refuse_link(root)


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise RecordError(
            f"{path}: is a link, and a run folder must not contain links; check where it leads, "
            "then remove it"
        )
