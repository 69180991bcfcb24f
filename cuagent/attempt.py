"""The Attempt: one candidate, frozen by content before it is judged.

A folder with `model_new.py` (class `ModelNew`) and `kernels/*.cu|*.cpp|*.h`, or a single Python
file in the KernelBench form. Freezing copies it, so that what is built, verified, timed and
recorded is one and the same text, whatever happens to the folder meanwhile.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

ENTRY = "ModelNew"
MODULE = "model_new.py"
KERNELS = "kernels"
SOURCES = (".cu", ".cpp")
HEADERS = (".h", ".hpp", ".cuh")
_NAMED = re.compile(r"""["']([\w./-]+\.(?:cu|cpp|h|hpp|cuh))["']""")
"""Files as code names them: in quotes."""
LARGEST_FILE = 4 << 20
"""Bytes; a candidate is source text, not data."""


class AttemptError(Exception):
    """The candidate is not in a form that can be judged. One line."""


@dataclass(frozen=True)
class Attempt:
    """The text of a candidate: relative POSIX path and content, sorted by path."""

    files: tuple[tuple[str, str], ...]
    called: str = field(default=MODULE, compare=False)
    """What its author calls model_new.py; for messages only."""

    @property
    def digest(self) -> str:
        """sha256 over names and contents."""
        h = hashlib.sha256()
        for name, text in self.files:
            for part in (name.encode(), text.encode()):
                h.update(len(part).to_bytes(8, "little"))
                h.update(part)
        return h.hexdigest()

    @property
    def kernels(self) -> tuple[str, ...]:
        """Paths of the sources to build."""
        return tuple(name for name, _ in self.files if name.endswith(SOURCES))

    def in_its_words(self, text: str) -> str:
        """A message with the file's name as its author knows it."""
        return text if self.called == MODULE else text.replace(MODULE, self.called)

    def write(self, folder: Path) -> None:
        """Lay the frozen text down in `folder`, which must not hold another attempt."""
        for name, text in self.files:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)


def freeze(path: Path) -> Attempt:
    """Read a candidate folder or file; a model_new.py beside kernels/ is its folder's.

    Raises AttemptError.
    """
    if path.name == MODULE and (path.parent / KERNELS).is_dir():
        path = path.parent
    if path.is_file():
        return Attempt(((MODULE, _text(path)),), str(path))
    if not (path / MODULE).is_file():
        raise AttemptError(f"{path}: no {MODULE}; a candidate folder needs one with class {ENTRY}")
    found = {MODULE: _text(path / MODULE)}
    for file in sorted((path / KERNELS).rglob("*")):
        if file.suffix in SOURCES + HEADERS and file.is_file():
            found[file.relative_to(path).as_posix()] = _text(file)
    _refuse_strays(path, found)
    return Attempt(tuple(sorted(found.items())))


def _refuse_strays(folder: Path, found: dict[str, str]) -> None:
    """Raises AttemptError for a source that is named in the attempt and would be left behind."""
    for name in _NAMED.findall("\n".join(found.values())):
        inside = f"{KERNELS}/{Path(name).name}"
        if name in found or inside in found:
            continue
        for file in (folder / name, folder / Path(name).name):
            if file.is_file():
                raise AttemptError(
                    f"{file}: lies outside {KERNELS}/, and only what lies there is built and "
                    f"judged; move it to {inside} and name it so"
                )


def _text(file: Path) -> str:
    try:
        if file.stat().st_size > LARGEST_FILE:
            raise AttemptError(f"{file}: larger than {LARGEST_FILE >> 20} MiB; keep data out of it")
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        what = f"not UTF-8 text ({error.reason} at byte {error.start})"
        raise AttemptError(f"{file}: {what}") from error
    except OSError as error:
        raise AttemptError(f"{file}: {error.strerror or error}") from error
