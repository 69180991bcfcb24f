"""Authenticate logs and evidence files of this user and machine by HMACs.

The key is in the user's state folder, outside every repository (`$XDG_STATE_HOME/cuagent/key`, else
`~/.local/state/cuagent/key`). Each record of a log ends with an HMAC over the log up to and
including this record, so the last record authenticates the whole log. Each prefix of a log is
authentic too, so the state folder also stores the number of records and the last HMAC of each log
(`heads/`). They show if records were removed from the end of a log. An evidence file has an HMAC
over its content. A file without a valid HMAC has an unknown origin: it came with a repository,
another machine or user wrote it, it was edited, or a version without HMACs wrote it.

Not covered: the work folder, the history and the scratch folder of a run. They are never trusted.
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
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

MAC = "mac"
"""JSON key of the authentication code (HMAC) in a record or file."""
KEY_BYTES = 32
HEADS = "heads"
"""Subfolder of the state folder with one file per log: its number of records and its last HMAC."""
_HEAD = re.compile(rb"(\d{12}) ([0-9a-f]{64})\n")
_MAC_AT_END = re.compile(rb',"mac":"([0-9a-f]{64})"\}\n\Z')


class Origin(StrEnum):
    """Author of a log, this user or unknown, as far as its authentication codes show."""

    HERE = "here"
    """This user wrote the log on this machine, and no record is missing."""
    INCOMPLETE = "incomplete"
    """This user wrote the log on this machine, but records at its end were removed."""
    UNKNOWN = "unknown"


def state_folder() -> Path:
    """Return the folder in which cuagent stores keys and heads of logs for this user on this
    machine."""
    given = Path(os.environ.get("XDG_STATE_HOME") or "")
    base = given if given.is_absolute() else Path.home() / ".local" / "state"
    return base / "cuagent"


class LogAuthenticator:
    """Computes the authentication codes for the records of one log, in the order of writing.

    `existing` is the content of the log so far, in complete lines.
    """

    def __init__(self, existing: bytes = b"") -> None:
        self._key = key(state_folder())
        self._content = hashlib.sha256(existing)
        self._count = existing.count(b"\n")
        self._head = _head_path(existing) if existing else None

    def line(self, text: str) -> bytes:
        """Return the log line for the JSON object `text`, with its authentication code if there is
        a key."""
        line = f"{text}\n".encode("ascii")
        if self._key is not None:
            mac = _mac(self._key, self._content.digest(), text.encode("ascii"))
            line = f'{text[:-1]},"{MAC}":"{mac}"}}\n'.encode("ascii")
        return line

    def append(self, line: bytes) -> None:
        """Note that `line` was written to the log; the next code covers it too."""
        self._content.update(line)
        self._count += 1
        self._head = self._head or _head_path(line)
        if found := _MAC_AT_END.search(line):
            _write_head(self._head, b"%012d %b\n" % (self._count, found[1]))


def log_origin(content: bytes) -> Origin:
    """Return the origin of a log with this content; HERE if it has no complete line."""
    content = content[: content.rfind(b"\n") + 1]
    if content and not _is_authentic(content):
        return Origin.UNKNOWN
    head = _read_head(_head_path(content)) if content else None
    if head is None:  # an older version wrote the log
        return Origin.HERE
    count, code = head
    lines = content.split(b"\n", count)
    whole = len(lines) > count and _MAC_AT_END.search(lines[count - 1] + b"\n")
    return Origin.HERE if whole and whole[1] == code else Origin.INCOMPLETE


def _is_authentic(content: bytes) -> bool:
    """Return True if the authentication code in the last line is valid for the whole log."""
    secret = key(state_folder())
    start = content.rfind(b"\n", 0, len(content) - 1) + 1
    found = _MAC_AT_END.search(content, start)
    if secret is None or found is None:
        return False
    before = hashlib.sha256(memoryview(content)[:start]).digest()
    text = content[start : found.start()] + b"}"
    return hmac.compare_digest(_mac(secret, before, text), found[1].decode("ascii"))


def _head_path(content: bytes) -> Path:
    """Return the path of a log's file in `heads/`, named by a digest of the log's first line."""
    first = content[: content.index(b"\n")]
    return state_folder() / HEADS / hashlib.sha256(first).hexdigest()[:32]


def _write_head(path: Path, head: bytes) -> None:
    """Store the number of records and the last code of a log, so that a removal can be detected.

    A failure is ignored; then a later removal of records cannot be detected.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            file.write(head)  # of a constant length, so one write replaces the old head
    except OSError:
        pass


def _read_head(path: Path) -> tuple[int, bytes] | None:
    """Return the stored number of records and last code of a log; None if nothing is stored."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            found = _HEAD.fullmatch(file.read(128))
    except OSError:
        return None
    return None if found is None or int(found[1]) == 0 else (int(found[1]), found[2])


def with_mac(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON content of a file with its authentication code added, if there is a key."""
    secret = key(state_folder())
    plain = {name: value for name, value in data.items() if name != MAC}
    return plain if secret is None else plain | {MAC: _mac(secret, b"", _canonical(plain))}


def has_valid_mac(data: Mapping[str, Any]) -> bool:
    """Return True if the content has a code that `with_mac` made with the key of this user and
    machine."""
    secret, given = key(state_folder()), data.get(MAC)
    if secret is None or not isinstance(given, str):
        return False
    plain = {name: value for name, value in data.items() if name != MAC}
    # compare_digest refuses strings that are not ASCII, which a forged file may contain.
    expected = _mac(secret, b"", _canonical(plain)).encode()
    return hmac.compare_digest(expected, given.encode("utf-8", "replace"))


def code_of(content: bytes) -> bytes | None:
    """Return an authentication code (32 bytes) for any bytes; None if there is no key."""
    secret = key(state_folder())
    return None if secret is None else hmac.digest(secret, b"bytes:" + content, "sha256")


def has_valid_code(content: bytes, code: bytes) -> bool:
    """Return True if `code` is what `code_of` returns for `content` with this user's key."""
    expected = code_of(content)
    return expected is not None and hmac.compare_digest(expected, code)


@cache
def key(folder: Path) -> bytes | None:
    """Return the secret key stored in `folder`; create it if it is missing; None if that fails."""
    path = folder / "key"
    try:
        if not path.exists():
            _create_key(path)
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            own = status.st_uid == os.geteuid()
            content = file.read(KEY_BYTES + 1) if own and stat.S_ISREG(status.st_mode) else b""
    except OSError:
        return None
    return content if len(content) == KEY_BYTES else None


def _create_key(path: Path) -> None:
    """Create the key file. If several processes do this at the same time, only one key remains."""
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


def _mac(secret: bytes, before: bytes, text: bytes) -> str:
    return hmac.new(secret, before + text, hashlib.sha256).hexdigest()
