"""The files that can enter a compilation, for the key of its result.

Two sets cover them. The tree of a source is known before compiling: all sources and headers that
lie beside or below it. The dependencies are known after compiling: the compiler lists every file
that it read (`-MD`), and GNU as lists those of `.incbin`. What neither set covers is named by
`doubtful`, and a library of such a source is not used again by another process.
Invariant: only regular files are read, and no open blocks.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MODULE, KERNELS = "model_new.py", "kernels"
SUFFIXES = (
    *(".cu", ".cuh", ".cpp", ".cc", ".cxx", ".c", ".h", ".hpp", ".hh", ".hxx"),
    *(".inl", ".inc", ".ipp", ".tpp"),
)
"""Files of a tree that count, by the end of their names."""
MOST_ENTRIES = 10_000
MOST_BYTES = 64 << 20
"""Bounds of a tree. Beyond them the key covers the source alone, and the dependencies the rest."""
PSEUDO = ("/proc", "/sys", "/dev")
"""Folders of files that are no sources: some block when opened, others change when read."""

_FILE = r'"[\w-]+(?:[./][\w-]+)*\.(?:' + "|".join(s[1:] for s in sorted(SUFFIXES)) + ')"'
_NAME = rf"(?:<(?![^>\n]*\.\.)[^/>\n][^>\n]*>|{_FILE})"
_ASKS = re.compile(
    rf"__has_include(?:_next)?\s*\(\s*{_NAME}\s*\)"
    r"|#\s*ifn?def\s+__has_include|\bdefined\s*\(?\s*__has_include\b"
)
"""Forms of __has_include whose answer depends on the tree or on the toolchain only."""
_INCLUDES = re.compile(rf"^[ \t]*#[ \t]*include[ \t]*{_NAME}", re.MULTILINE)
_SPLICE = re.compile(r"\\[ \t]*\r?\n")


class NoSource(ValueError):
    """A compilation read something that is no source file. One line."""


@dataclass(frozen=True)
class Tree:
    """Sources and headers below `root`: relative POSIX path and content, sorted by path."""

    root: Path
    files: tuple[tuple[str, bytes], ...]
    whole: bool
    """False where the folder holds more than the bounds; `files` is then empty."""


def tree_of(source: Path) -> Tree:
    """The files that `source` can include by a relative name.

    The root is `kernels/` beside a model_new.py, if the source lies in one, else its own folder.
    """
    root, hidden = source.parent, False
    for folder in source.parents:
        if folder.name == KERNELS and (folder.parent / MODULE).is_file():
            root, hidden = folder, True
            break
    files: list[tuple[str, bytes]] = []
    size = 0
    for count, path in enumerate(_entries(root, hidden), 1):
        if path.suffix in SUFFIXES:
            content = contents(path)
            files.append((path.relative_to(root).as_posix(), content))
            size += len(content)
        if count > MOST_ENTRIES or size > MOST_BYTES:
            return Tree(root, (), whole=False)
    return Tree(root, tuple(sorted(files)), whole=True)


def _entries(folder: Path, hidden: bool) -> Iterator[Path]:
    """Everything below `folder` but folders; links are not followed."""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            yield folder / entry.name
        elif hidden or not entry.name.startswith("."):
            yield from _entries(folder / entry.name, hidden)


def contents(path: Path) -> bytes:
    """The first `MOST_BYTES` + 1 bytes of a regular file; none of what cannot be read."""
    try:
        with _opened(path) as file:
            return file.read(MOST_BYTES + 1) or b""
    except (OSError, ValueError):
        return b""


def _opened(path: Path) -> io.BufferedReader:
    """Open a regular file. Raises OSError, also for anything else."""
    # Without O_NONBLOCK, opening a pipe or certain files of /proc waits for ever.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file")
    return file


def doubtful(tree: Tree, text: str, form: str, *, lists_incbin: bool) -> bool:
    """Whether a result may depend on files that are neither in the tree nor listed.

    `form` is that of a `Recipe`: NVRTC lists no dependencies at all.
    """
    texts = [content.decode(errors="replace") for _, content in tree.files] or [text]
    words = r"has_include|has_embed"
    if not lists_incbin:
        words += r"|incbin"
    if form == "nvrtc":
        words += r"|(?:#|%:|\?\?=)\s*(?:/\*.*?\*/\s*)*(?:include|import|embed)"
    for one in texts:
        one = _SPLICE.sub("", one)
        if form == "nvrtc":
            one = _INCLUDES.sub("", one)
        # Quoted names depend on the tree, which the key holds only where it is whole.
        if re.search(words, _ASKS.sub("", one) if tree.whole else one, re.DOTALL):
            return True
    return False


def listed(makefile: str, folder: Path, scratch: Path) -> list[str]:
    """Files that a compiler names in a rule for make, except those of its scratch folder.

    Relative names are seen from `folder`, where the compiler ran, and stay relative. Raises
    NoSource for devices and files of /proc and /sys.
    """
    found: list[str] = []
    for word in _words(makefile):
        path = os.path.normpath(folder / word)
        if Path(path).is_relative_to(scratch):
            continue
        real = os.path.realpath(path)
        if any(Path(place).is_relative_to(p) for p in PSEUDO for place in (path, real)):
            raise NoSource(
                f"it reads {word[:200]}, which is no source file; include files below {KERNELS}/ "
                "and headers of the compiler only"
            )
        found.append(word)
    return list(dict.fromkeys(found))


def _words(makefile: str) -> Iterator[str]:
    """The prerequisites in `target: a b\\ c \\<newline> d`."""
    joined = makefile.replace("\\\r\n", " ").replace("\\\n", " ")
    for line in joined.splitlines():
        _, colon, rest = line.partition(": ")
        for word in re.findall(r"(?:\\.|[^\s\\])+", rest if colon else ""):
            yield re.sub(r"\\([ #:\\])", r"\1", word).replace("$$", "$")


def manifest(names: list[str], folder: Path, tree: Tree) -> str:
    """Names with a digest of each one's content, as JSON; without those the key covers."""
    known = {os.path.normpath(tree.root / name) for name, _ in tree.files}
    kept = [n for n in names if os.path.normpath(folder / n) not in known]
    return json.dumps({name: _digest(folder / name) for name in kept}, indent=0)


def current(library: Path, folder: Path) -> bool:
    """Whether `library` is there and all that it was compiled from is as it was.

    `folder` is the one of the source.
    """
    if not library.is_file():
        return False
    try:
        names = json.loads(contents(manifest_path(library)))
    except ValueError:
        return False
    return isinstance(names, dict) and all(
        _digest(folder / name) == digest for name, digest in names.items()
    )


def manifest_path(library: Path) -> Path:
    """Where the manifest of a library lies."""
    return library.with_suffix(".deps")


def _digest(path: Path) -> str:
    """sha256 of a file of any size, or a word for a file that cannot be read."""
    try:
        with _opened(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        return "absent"
