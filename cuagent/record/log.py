"""The run log: one JSON object a line, only ever appended to, each line whole or absent.

The first line is `{"type": "session", "v": 1, ...}`; the package's docstring lists the others.
Values of more than 8 KB go to `blobs/` by content hash. Secrets are masked before anything is
written. Each line ends with the mark of `origin.py`, which `read_records` takes away.
Undo, retry and compaction write a message with another `parent`; nothing is rewritten.
Invariant: a reader sees every record whose `write` returned, whenever the writer was killed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from io import FileIO
from typing import Any

from cuagent.message import Message
from cuagent.record.folder import LOG, RunFolder
from cuagent.record.inside import RecordError, create_file, read_file, write_file
from cuagent.record.origin import MAC, Marker, is_marked_log
from cuagent.record.plain import plain
from cuagent.record.redact import redactor

VERSION = 1
LONGEST_INLINE = 8 << 10
"""Characters of JSON; longer strings and lists become blobs."""
BLOB = "$blob"


class RunLog:
    """The writer of one run's log, one at a time for a run. Raises RecordError."""

    def __init__(self, folder: RunFolder, redact: Callable[[Any], Any] | None = None) -> None:
        self.folder = folder
        self.redact = redact or redactor()
        self.head: str | None = None
        """Id of the message that the next one follows; move it to branch."""
        folder.refuse_links()
        self._file = _opened(folder)
        _claim(self._file, folder)
        before = _drop_torn_line(self._file)
        self.is_made_here = is_marked_log(before)
        """Whether what the log held before is of this user and machine; see `origin`."""
        self._marker = Marker(before)
        self.count = before.count(b"\n")
        if self.count:
            self.head = leaf_of(read_records(folder, blobs=False))

    def write(self, type: str, **fields: Any) -> str:
        """Append one record; returns its id."""
        self.count += 1
        record = {"type": type, "id": f"{type[0]}{self.count}", "time": round(time.time(), 3)}
        if type == "session":
            record |= {"v": VERSION}
        record |= self.redact(plain(fields))
        kept = {key: self._spill(value) for key, value in record.items()}
        text = json.dumps(kept, allow_nan=False, separators=(",", ":"))
        self._append(self._marker.line(text))
        return str(record["id"])

    def message(self, message: Message, call: str | None = None) -> str:
        """Append one message after `head`. `call` is the id of the call that sampled it."""
        # what is empty is left out: a log is read by people too
        fields = {key: value for key, value in vars(message).items() if value or key == "content"}
        fields["sampled"] = message.sampled
        self.head = self.write("message", parent=self.head, call=call, **fields)
        return self.head

    def branch(self, head: str | None, why: str) -> None:
        """Let the next message follow `head`, which holds for readers too, from this moment on."""
        self.write("branch", message=head, why=why)
        self.head = head

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, line: bytes) -> None:
        """The line whole or not at all, also on a full disk. Raises RecordError."""
        size = self._file.tell()
        try:
            written = self._file.write(line)
            if written != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            os.ftruncate(self._file.fileno(), size)
            raise RecordError(
                f"{self.folder.log}: {error.strerror}; the run cannot go on"
            ) from error
        self._marker.wrote(line)

    def _spill(self, value: Any) -> Any:
        if isinstance(value, str):
            return value if len(value) <= LONGEST_INLINE else self._blob(value, "text")
        if isinstance(value, dict):
            return {key: self._spill(item) for key, item in value.items()}
        if isinstance(value, list):
            short = [self._spill(item) for item in value]
            text = json.dumps(short, allow_nan=False, separators=(",", ":"))
            return short if len(text) <= LONGEST_INLINE else self._blob(text, "json")
        return value

    def _blob(self, text: str, form: str) -> dict[str, str]:
        return {BLOB: keep_blob(self.folder, text.encode("utf-8", "surrogatepass")), "form": form}


def keep_blob(folder: RunFolder, content: bytes) -> str:
    """Put content among the blobs; returns its sha256. Raises OSError."""
    digest = hashlib.sha256(content).hexdigest()
    if not (folder.blobs / digest).exists():
        write_file(folder.blobs, digest, content)
    return digest


def read_blob(folder: RunFolder, digest: str) -> bytes:
    """The content of that sha256, and no other. Raises RecordError."""
    if not (isinstance(digest, str) and re.fullmatch(r"[0-9a-f]{64}", digest)):
        raise RecordError(f"{folder.log}: {str(digest)[:80]!r} is no sha256; the log is damaged")
    try:
        content = read_file(folder.blobs, digest)
    except OSError as error:
        path = folder.blobs / digest
        raise RecordError(f"{path}: {error.strerror or error}; the run is incomplete") from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise RecordError(f"{folder.blobs / digest}: its content is not the recorded one")
    return content


def read_records(folder: RunFolder, *, blobs: bool = True) -> list[dict[str, Any]]:
    """All records, oldest first, with blobs put back in unless `blobs` is False.

    A torn last line (a writer was killed in it) is left out. Raises RecordError.
    """
    try:
        lines = read_file(folder.path, LOG).split(b"\n")
    except OSError as error:
        raise RecordError(f"{folder.log}: {error.strerror or error}") from error
    records = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            record = json.loads(line)
            if not (isinstance(record, dict) and isinstance(record.get("type"), str)):
                raise ValueError("no object with a type")
            record.pop(MAC, None)
            records.append(_restore(record, folder) if blobs else record)
        except (ValueError, RecursionError) as error:
            raise RecordError(f"{folder.log}:{number}: not a record ({error})") from error
    if records and records[0].get("v") != VERSION:
        raise RecordError(
            f"{folder.log}: written by another version of cuagent (log format "
            f"{records[0].get('v')}, this one reads {VERSION})"
        )
    return records


def leaf_of(records: Sequence[Mapping[str, Any]]) -> str | None:
    """Id of the message that the next one follows: the newest, or where a branch went back to."""
    for record in reversed(records):
        if record["type"] == "message":
            return str(record["id"])
        if record["type"] == "branch":
            return record["message"] and str(record["message"])
    return None


def _restore(value: Any, folder: RunFolder) -> Any:
    if isinstance(value, dict):
        if set(value) == {BLOB, "form"}:
            text = read_blob(folder, value[BLOB]).decode("utf-8", "surrogatepass")
            return text if value["form"] == "text" else _restore(json.loads(text), folder)
        return {key: _restore(item, folder) for key, item in value.items()}
    if isinstance(value, list):
        return [_restore(item, folder) for item in value]
    return value


def _opened(folder: RunFolder) -> FileIO:
    """The log, made where there is none, to append to. Raises RecordError."""
    try:
        create_file(folder.path, LOG, b"")
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        return FileIO(os.open(folder.log, flags), "r+")
    except OSError as error:
        raise RecordError(f"{folder.log}: {error.strerror or error}") from error


def _claim(file: FileIO, folder: RunFolder) -> None:
    """One writer at a time, as long as its process lives. Raises RecordError."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise RecordError(
            f"{folder.id}: is still running in another process; end it there first"
        ) from error


def _drop_torn_line(file: FileIO) -> bytes:
    """Cut what follows the last newline; returns what is left, and appends from there."""
    raw = file.readall() or b""
    whole = raw.rfind(b"\n") + 1
    if whole < len(raw):
        os.ftruncate(file.fileno(), whole)
    file.seek(whole)
    return raw[:whole]
