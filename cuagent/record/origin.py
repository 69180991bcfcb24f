"""The mark of what this user made on this machine: HMACs by a key outside of every repository.

The key lies in the user's state folder (`$XDG_STATE_HOME/cuagent/key`, else
`~/.local/state/cuagent/key`). Each record of a log ends with an HMAC over the log up to and with
this record, so that the last record vouches for all. An evidence file holds one over its content.
What has no valid mark is of another origin: it came with a repository, was copied from another
machine or user, was changed by hand, or is older than the marks.
Not covered: the work folder, the history and the scratch folder of a run, which are never trusted.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import stat
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

MAC = "mac"
KEY_BYTES = 32
_MARKED = re.compile(rb',"mac":"([0-9a-f]{64})"\}\n\Z')


def state_folder() -> Path:
    """Where cuagent keeps what belongs to this user and this machine."""
    given = Path(os.environ.get("XDG_STATE_HOME") or "")
    base = given if given.is_absolute() else Path.home() / ".local" / "state"
    return base / "cuagent"


class Marker:
    """Marks the records of one log, in the order in which they are written.

    `before` is what the log holds already, in whole lines.
    """

    def __init__(self, before: bytes = b"") -> None:
        self._key = key(state_folder())
        self._content = hashlib.sha256(before)

    def line(self, text: str) -> bytes:
        """The line of a record whose JSON text is `text`; the same line without a key."""
        line = f"{text}\n".encode("ascii")
        if self._key is not None:
            mac = _mac(self._key, self._content.digest(), text.encode("ascii"))
            line = f'{text[:-1]},"{MAC}":"{mac}"}}\n'.encode("ascii")
        return line

    def wrote(self, line: bytes) -> None:
        """The line is in the log."""
        self._content.update(line)


def is_marked_log(content: bytes) -> bool:
    """Whether the whole lines of a log were written here; true for a log without lines."""
    content = content[: content.rfind(b"\n") + 1]
    if not content:
        return True
    known = key(state_folder())
    start = content.rfind(b"\n", 0, len(content) - 1) + 1
    found = _MARKED.search(content, start)
    if known is None or found is None:
        return False
    before = hashlib.sha256(memoryview(content)[:start]).digest()
    text = content[start : found.start()] + b"}"
    return hmac.compare_digest(_mac(known, before, text), found[1].decode("ascii"))


def marked(data: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a file with its mark; without one where there is no key."""
    known = key(state_folder())
    plain = {name: value for name, value in data.items() if name != MAC}
    return plain if known is None else plain | {MAC: _mac(known, b"", _canonical(plain))}


def is_marked(data: Mapping[str, Any]) -> bool:
    """Whether `marked` made this content here."""
    known, given = key(state_folder()), data.get(MAC)
    if known is None or not isinstance(given, str):
        return False
    plain = {name: value for name, value in data.items() if name != MAC}
    # bytes, as a string of somebody else's need not be ASCII
    expected = _mac(known, b"", _canonical(plain)).encode()
    return hmac.compare_digest(expected, given.encode("utf-8", "replace"))


@cache
def key(folder: Path) -> bytes | None:
    """The key in that folder, made where there is none; None where there can be none."""
    path = folder / "key"
    try:
        if not path.exists():
            _make(path)
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            own = status.st_uid == os.geteuid() or os.geteuid() == 0
            content = file.read(KEY_BYTES + 1) if own and stat.S_ISREG(status.st_mode) else b""
    except OSError:
        return None
    return content if len(content) == KEY_BYTES else None


def _make(path: Path) -> None:
    """Two processes that make it at the same time end with the same key."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f"key.{secrets.token_hex(6)}")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_bytes(KEY_BYTES))
    try:
        path.hardlink_to(partial)
    except FileExistsError:
        pass
    finally:
        partial.unlink()


def _canonical(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode("ascii")


def _mac(known: bytes, before: bytes, text: bytes) -> str:
    return hmac.new(known, before + text, hashlib.sha256).hexdigest()
