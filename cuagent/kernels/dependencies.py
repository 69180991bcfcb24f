"""Find the files that a compilation can read, to decide if its cached result is still valid.

Two sets cover them. The tree of a source is known before compiling: all sources and headers in its
folder and below. The dependencies are known after compiling: the compiler lists every file that it
read (`-MD`), and GNU as lists those of `.incbin`. `may_have_unlisted` detects sources that can read
other files; such a source is compiled again in every process.

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
"""File name suffixes of sources and headers in a tree."""
MAX_ENTRIES = 10_000
"""Largest number of files in a source's folder for which the cache key covers the whole folder.
With more files it covers the source only."""
MAX_BYTES = 64 << 20
"""Largest total size in bytes of sources and headers for which the cache key covers the whole
folder. Above it the key covers the source only."""
PSEUDO = ("/proc", "/sys", "/dev")
"""Folders that contain no source files: some of their files block when opened, others change when
read."""

_FILE = r'"[\w-]+(?:[./][\w-]+)*\.(?:' + "|".join(s[1:] for s in sorted(SUFFIXES)) + ')"'
_NAME = rf"(?:<(?![^>\n]*\.\.)[^/>\n][^>\n]*>|{_FILE})"
_COVERED_QUERIES = re.compile(
    rf"__has_include(?:_next)?\s*\(\s*{_NAME}\s*\)"
    r"|#\s*ifn?def\s+__has_include|\bdefined\s*\(?\s*__has_include\b"
)
"""Forms of __has_include whose result depends only on the tree or the toolchain."""
_INCLUDES = re.compile(rf"^[ \t]*#[ \t]*include[ \t]*{_NAME}", re.MULTILINE)
_SPLICE = re.compile(r"\\[ \t]*\r?\n")


class NotASource(ValueError):
    """Error: a compilation read a file that is not a source file. The message is one line."""


@dataclass(frozen=True)
class Tree:
    """Sources and headers below the folder `root`: pairs (relative POSIX path, content), sorted by
    path."""

    root: Path
    files: tuple[tuple[str, bytes], ...]
    complete: bool
    """False if the folder exceeds MAX_ENTRIES or MAX_BYTES; `files` is then empty."""


def tree_of(source: Path) -> Tree:
    """Return the sources and headers that `source` can include by a relative name.

    The root is the enclosing `kernels/` next to a model_new.py; if there is none, the folder of the
    source.
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
        if count > MAX_ENTRIES or size > MAX_BYTES:
            return Tree(root, (), complete=False)
    return Tree(root, tuple(sorted(files)), complete=True)


def _entries(folder: Path, hidden: bool) -> Iterator[Path]:
    """Yield the paths of all files below `folder`, at any depth; links are not followed.

    `hidden`: also enter folders whose name begins with a dot.
    """
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            yield folder / entry.name
        elif hidden or not entry.name.startswith("."):
            yield from _entries(folder / entry.name, hidden)


def contents(path: Path) -> bytes:
    """Return the first MAX_BYTES + 1 bytes of a regular file; b"" if it cannot be read."""
    try:
        with _opened(path) as file:
            return file.read(MAX_BYTES + 1) or b""
    except (OSError, ValueError):
        return b""


def _opened(path: Path) -> io.BufferedReader:
    """Open a regular file. Raises OSError, also if it is not a regular file."""
    # Without O_NONBLOCK, the open of a pipe or of certain files of /proc blocks forever.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file")
    return file


def may_have_unlisted(tree: Tree, text: str, form: str, *, lists_incbin: bool) -> bool:
    """Return True if the compiled result may depend on files outside the tree that no compiler
    lists.

    `text` is the source, which is examined if the tree is incomplete. `form` is that of a `Recipe`;
    NVRTC never lists dependencies. `lists_incbin`: the assembler lists the files of `.incbin`.
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
        # Quoted names depend on the tree, and the key covers a complete tree only.
        searched = _COVERED_QUERIES.sub("", one) if tree.complete else one
        if re.search(words, searched, re.DOTALL):
            return True
    return False


def listed(makefile: str, folder: Path, scratch: Path) -> list[str]:
    """Return the files that a compiler's dependency rule (`target: a b`) names, except those in
    `scratch`.

    Names relative to `folder`, where the compiler ran, stay relative. Raises NotASource for devices
    and files of /proc and /sys.
    """
    found: list[str] = []
    for word in _words(makefile):
        path = os.path.normpath(folder / word)
        if Path(path).is_relative_to(scratch):
            continue
        real = os.path.realpath(path)
        if any(Path(place).is_relative_to(p) for p in PSEUDO for place in (path, real)):
            raise NotASource(
                f"it reads {word[:200]}, which is not a source file; include only files below "
                f"{KERNELS}/ and headers of the compiler"
            )
        found.append(word)
    return list(dict.fromkeys(found))


def _words(makefile: str) -> Iterator[str]:
    r"""Yield the unescaped prerequisites of a make rule such as `target: a b\ c \<newline> d`."""
    joined = makefile.replace("\\\r\n", " ").replace("\\\n", " ")
    for line in joined.splitlines():
        _, colon, rest = line.partition(": ")
        for word in re.findall(r"(?:\\.|[^\s\\])+", rest if colon else ""):
            yield re.sub(r"\\([ #:\\])", r"\1", word).replace("$$", "$")


def manifest(names: list[str], folder: Path, tree: Tree) -> str:
    """Return, as JSON, the digest of each file in `names` that is not in the attempt's tree."""
    in_tree = {os.path.normpath(tree.root / name) for name, _ in tree.files}
    outside = [n for n in names if os.path.normpath(folder / n) not in in_tree]
    return json.dumps({name: _digest(folder / name) for name in outside}, indent=0)


def is_current(library: Path, folder: Path) -> bool:
    """Return True if `library` exists and the files in its manifest have not changed.

    `folder` is the folder of the source.
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
    """Return the path of the manifest that belongs to a library."""
    return library.with_suffix(".deps")


def _digest(path: Path) -> str:
    """Return the sha256 of a file of any size, or "absent" if it cannot be read."""
    try:
        with _opened(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        return "absent"
