"""Write and read the run log: an append-only file with one JSON object per line.

The first line is `{"type": "session", "v": 1, ...}`; the package's docstring lists the others.
Values of more than 8 KB are stored in `blobs/`, named by their hash. Secrets are masked before a
record is written. Each line ends with the authentication code of `origin.py`; `read_records`
removes it. Undo, retry and compaction write a message with another `parent` and rewrite no record.
Invariant: each line is complete or absent, and a reader sees every record whose `write` returned,
even if the writer was killed.
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
from cuagent.record.contained_files import RecordError, create_file, read_file, write_file
from cuagent.record.folder import LOG, MAX_LOG_BYTES, RunFolder
from cuagent.record.origin import MAC, LogAuthenticator, Origin, log_origin
from cuagent.record.plain import plain
from cuagent.record.redact import redactor

VERSION = 1
MAX_INLINE = 8 << 10
"""Largest number of characters of a value in a line. Longer strings and lists (as JSON) become
blobs."""
BLOB = "$blob"
MOST_BLOB_BYTES = 1 << 30
"""Largest total size in bytes of the blobs that one log refers to; each reference counts."""


class RunLog:
    """Writer of one run's log. A lock on the file permits one writer at a time.

    Its methods raise RecordError.
    """

    def __init__(self, folder: RunFolder, redact: Callable[[Any], Any] | None = None) -> None:
        self.folder = folder
        self.redact = redact or redactor()
        self.head: str | None = None
        """Id of the message that the next message follows; None before the first one."""
        folder.refuse_links()
        self._file = _open_log(folder)
        _lock(self._file, folder)
        existing = _drop_partial_line(self._file, folder)
        self.is_made_here = log_origin(existing) is Origin.HERE
        """True if this user wrote the existing records on this machine (`record/origin.py`)."""
        self._authenticator = LogAuthenticator(existing)
        self.count = existing.count(b"\n")
        if self.count:
            self.head = leaf_of(read_records(folder, blobs=False))

    def write(self, type: str, **fields: Any) -> str:
        """Append a record of this type with these fields; return the record's id. Raises
        RecordError."""
        self.count += 1
        record = {"type": type, "id": f"{type[0]}{self.count}", "time": round(time.time(), 3)}
        if type == "session":
            record |= {"v": VERSION}
        record |= self.redact(plain(fields))
        inline = {key: self._without_long_values(value) for key, value in record.items()}
        text = json.dumps(inline, allow_nan=False, separators=(",", ":"))
        self._append(self._authenticator.line(text))
        return str(record["id"])

    def message(self, message: Message, call: str | None = None) -> str:
        """Append a message after the current one (`head`), make it the current one, and return its
        id.

        `call` is the id of the `call` record of the model call that gave the message; None for
        others.
        """
        # People read logs too, so empty fields are omitted.
        fields = {key: value for key, value in vars(message).items() if value or key == "content"}
        fields["sampled"] = message.sampled
        self.head = self.write("message", parent=self.head, call=call, **fields)
        return self.head

    def branch(self, head: str | None, why: str) -> None:
        """Continue the conversation from the message with id `head`: the next message follows it.

        A `branch` record notes this and the reason `why`.
        """
        self.write("branch", message=head, why=why)
        self.head = head

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, line: bytes) -> None:
        """Append a line to the file; if the disk is full, truncate the line again. Raises
        RecordError."""
        size = self._file.tell()
        try:
            written = self._file.write(line)
            if written != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            os.ftruncate(self._file.fileno(), size)
            raise RecordError(
                f"{self.folder.log}: {error.strerror}; free space or correct permissions, then "
                "resume the run"
            ) from error
        self._authenticator.append(line)

    def _without_long_values(self, value: Any) -> Any:
        """Return a JSON value in which long strings and lists are replaced by references to
        blobs."""
        if isinstance(value, str):
            return value if len(value) <= MAX_INLINE else self._blob(value, "text")
        if isinstance(value, dict):
            return {key: self._without_long_values(item) for key, item in value.items()}
        if isinstance(value, list):
            short = [self._without_long_values(item) for item in value]
            text = json.dumps(short, allow_nan=False, separators=(",", ":"))
            return short if len(text) <= MAX_INLINE else self._blob(text, "json")
        return value

    def _blob(self, text: str, form: str) -> dict[str, str]:
        return {BLOB: write_blob(self.folder, text.encode("utf-8", "surrogatepass")), "form": form}


def write_blob(folder: RunFolder, content: bytes) -> str:
    """Store `content` as a blob of the run; return its sha256. Raises OSError."""
    digest = hashlib.sha256(content).hexdigest()
    if not (folder.blobs / digest).exists():
        write_file(folder.blobs, digest, content)
    return digest


def read_blob(folder: RunFolder, digest: str) -> bytes:
    """Return the content of the blob with the sha256 `digest`.

    Raises RecordError if the digest is malformed, the blob is missing, or its content differs.
    """
    if not (isinstance(digest, str) and re.fullmatch(r"[0-9a-f]{64}", digest)):
        raise RecordError(f"{folder.log}: {str(digest)[:80]!r} is not a sha256; the log is damaged")
    try:
        content = read_file(folder.blobs, digest, MAX_LOG_BYTES)
    except OSError as error:
        path = folder.blobs / digest
        raise RecordError(f"{path}: {error.strerror or error}; the run is incomplete") from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise RecordError(f"{folder.blobs / digest}: the content differs from the recorded sha256")
    return content


def read_records(folder: RunFolder, *, blobs: bool = True) -> list[dict[str, Any]]:
    """Return all records of a run's log, oldest first.

    Values in blobs are loaded unless `blobs` is False. An incomplete last line (its writer was
    killed) is ignored. Raises RecordError.
    """
    try:
        lines = read_file(folder.path, LOG, MAX_LOG_BYTES).split(b"\n")
    except OSError as error:
        raise RecordError(f"{folder.log}: {error.strerror or error}") from error
    records = []
    loader = _BlobLoader(folder)
    for number, line in enumerate(lines[:-1], 1):
        try:
            record = json.loads(line)
            if not (isinstance(record, dict) and isinstance(record.get("type"), str)):
                raise ValueError("not an object with a type")
            record.pop(MAC, None)
            records.append(loader.loaded(record) if blobs else record)
        except (ValueError, RecursionError) as error:
            raise RecordError(f"{folder.log}:{number}: not a record ({error})") from error
    if records and records[0].get("v") != VERSION:
        raise RecordError(
            f"{folder.log}: another version of cuagent wrote it (log format "
            f"{records[0].get('v')}, this version reads {VERSION})"
        )
    return records


def leaf_of(records: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the id of the current message, which the next message will follow; None without
    messages.

    It is the newest message, or the one that a later `branch` record names.
    """
    for record in reversed(records):
        if record["type"] == "message":
            return str(record["id"])
        if record["type"] == "branch":
            return record["message"] and str(record["message"])
    return None


class _BlobLoader:
    """Loads the blobs that one log refers to, up to `MOST_BLOB_BYTES` in total.

    Without the limit a forged log could fill the memory by many references to one large blob.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.bytes = 0

    def loaded(self, value: Any) -> Any:
        """Return a JSON value in which each reference to a blob is replaced by the blob's content.

        Raises RecordError.
        """
        if isinstance(value, dict):
            if set(value) == {BLOB, "form"}:
                content = read_blob(self.folder, value[BLOB])
                self.bytes += len(content)
                if self.bytes > MOST_BLOB_BYTES:
                    raise RecordError(
                        f"{self.folder.log}: refers to more than {MOST_BLOB_BYTES >> 20} MiB of "
                        "blobs; the log is damaged or forged"
                    )
                text = content.decode("utf-8", "surrogatepass")
                return text if value["form"] == "text" else self.loaded(json.loads(text))
            return {key: self.loaded(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.loaded(item) for item in value]
        return value


def _open_log(folder: RunFolder) -> FileIO:
    """Open a run's log for appending; create it if it is missing. Raises RecordError."""
    try:
        create_file(folder.path, LOG, b"")
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        return FileIO(os.open(folder.log, flags), "r+")
    except OSError as error:
        raise RecordError(f"{folder.log}: {error.strerror or error}") from error


def _lock(file: FileIO, folder: RunFolder) -> None:
    """Lock the log for this process. Raises RecordError if another process holds the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise RecordError(
            f"{folder.id}: still running in another process; end it there first"
        ) from error


def _drop_partial_line(file: FileIO, folder: RunFolder) -> bytes:
    """Remove an incomplete last line, move to the end of the file, and return the file's content.

    Raises RecordError for a log that is too large.
    """
    if os.fstat(file.fileno()).st_size > MAX_LOG_BYTES:
        file.close()
        raise RecordError(f"{folder.log}: larger than {MAX_LOG_BYTES >> 20} MiB; start a new run")
    raw = file.readall() or b""
    whole = raw.rfind(b"\n") + 1
    if whole < len(raw):
        os.ftruncate(file.fileno(), whole)
    file.seek(whole)
    return raw[:whole]
