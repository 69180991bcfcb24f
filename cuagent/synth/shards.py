"""Append the record of each candidate task to JSONL files (shards), and read the records back after
a kill.

A record is one line that is written in one piece and synced. Shard n contains the candidates 1000 n
to 1000 n + 999. An incomplete line, left by a killed process, is ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

Record = dict[str, Any]
PER_SHARD = 1000
FOLDER = "shards"


class Shards:
    """The records of one output folder, in files of 1000 candidates."""

    def __init__(self, out: Path) -> None:
        self.folder = out / FOLDER
        self.folder.mkdir(parents=True, exist_ok=True)

    def append(self, record: Record) -> None:
        """Append a record to its shard and sync the file."""
        path = self._path(record["index"] // PER_SHARD)
        line = json.dumps(record, allow_nan=False) + "\n"
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            cut_off = size and os.pread(descriptor, 1, size - 1) != b"\n"
            os.write(descriptor, ("\n" if cut_off else "").encode() + line.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self) -> Iterator[Record]:
        """Yield all records, shard after shard, in the order of their indices."""
        for path in sorted(self.folder.glob("*.jsonl")):
            found = {}
            for line in path.read_bytes().split(b"\n"):
                with suppress(ValueError, RecursionError):
                    record = json.loads(line)
                    if isinstance(record, dict) and type(record.get("index")) is int:
                        found[record["index"]] = record
            yield from (found[index] for index in sorted(found))

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:05}.jsonl"
