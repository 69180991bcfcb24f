"""Write a task set as parquet, and read such files and CUDA-Agent-Ops-6K.

The first three columns are those of CUDA-Agent-Ops-6K, so that programs for that data set can read
the file. Files are written in groups of rows and renamed when complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cuagent.record import RecordError, refuse_links
from cuagent.synth.grade import difficulty, grade, measured
from cuagent.synth.run import GENERATOR, SynthError
from cuagent.synth.shards import Record

HELD_OUT = ("resampling", "recurrent")
"""Operator families whose tasks are all in the split `test_family`."""
HELD_OUT_SHAPES = 10
"""One in this many input shapes is held out: all its tasks are in the split `test_shape`."""
GROUP = 500
COLUMNS = (
    "ops", "data_source", "code", "id", "seed", "index", "shapes", "outputs", "dtype", "families",
    "family", "mode", "operators", "regions", "baselines", "error", "best_gain", "roofline_share",
    "expert_gain", "difficulty", "grade", "split", "generator", "checksum",
)  # fmt: skip
SPLITS = ("train", "test_family", "test_shape")


def split_of(families: Iterable[str], shapes: Iterable[str]) -> str:
    """Return the split of a task, from its operator families and from the shape of its first input
    without the batch."""
    if set(families) & set(HELD_OUT):
        return SPLITS[1]
    sizes = re.sub(r"\[\d+,?", "[", next(iter(shapes), ""))
    number = int(hashlib.sha256(sizes.encode()).hexdigest()[:8], 16)
    return SPLITS[2] if number % HELD_OUT_SHAPES == 0 else SPLITS[0]


def row_of(
    record: Record, settings: Mapping[str, Any], device: str, rates: tuple[float, float]
) -> dict[str, Any]:
    """Return the parquet row of an accepted record.

    `device`: name of the device. `rates`: its memory rate in bytes per second and its arithmetic
    rate in FLOP per second.
    """
    facts = measured(record, *rates)
    code = record["code"]
    row = {
        "ops": record["ops"],
        "data_source": record["data_source"],
        "code": code,
        "id": f"s{settings['seed']}-{record['index']:06}",
        "seed": settings["seed"],
        "index": record["index"],
        "shapes": record["inputs"],
        "outputs": record["outputs"],
        "dtype": record["dtype"],
        "families": record["families"],
        "family": record["family"],
        "mode": record["mode"],
        "operators": record["operators"],
        "regions": record.get("regions"),
        "baselines": [
            {"device": device, "eager_s": record["eager_s"], "compile_s": record.get("compile_s")}
        ],
        "error": record["error"],
        "best_gain": facts["best_gain"],
        "roofline_share": facts["roofline_share"],
        "expert_gain": None,
        "split": split_of(record["families"], record["inputs"]),
        "generator": GENERATOR,
        "checksum": checksum(code),
    }
    row["difficulty"] = round(difficulty(row), 4)
    row["grade"] = grade(row["difficulty"])
    return row


def checksum(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()


def write_set(rows: Iterable[Mapping[str, Any]], path: Path, about: Mapping[str, Any]) -> int:
    """Write rows to a parquet file, with `about` as metadata; return the number of rows. Raises
    SynthError."""
    pa, parquet = parquet_library(path)
    text, number, whole = pa.string(), pa.float64(), pa.int64()
    times = pa.struct([("device", text), ("eager_s", number), ("compile_s", number)])
    lists = dict.fromkeys(("ops", "shapes", "outputs", "families"), pa.list_(text))
    wholes = dict.fromkeys(("seed", "index", "operators", "regions", "generator", "grade"), whole)
    numbers = dict.fromkeys(
        ("error", "best_gain", "roofline_share", "expert_gain", "difficulty"), number
    )
    kinds = {**lists, **wholes, **numbers, "baselines": pa.list_(times)}
    schema = pa.schema(
        [(name, kinds.get(name, text)) for name in COLUMNS],
        metadata={"cuagent": json.dumps(about)},
    )
    partial = path.with_suffix(f".{os.getpid()}")
    count = 0
    with parquet.ParquetWriter(partial, schema, compression="zstd") as writer:
        for group in _groups(rows):
            writer.write_table(pa.Table.from_pylist(group, schema=schema))
            count += len(group)
    partial.replace(path)
    return count


def read_set(path: Path, all_text: bool = True) -> Iterator[dict[str, Any]]:
    """Yield the rows of a task set, or of any parquet file with a column `code`. Raises SynthError,
    also for a row whose code is no text if `all_text`."""
    pa, parquet = parquet_library(path)
    if not path.is_file():  # a pipe would block
        raise SynthError(f"{path}: is no file")
    try:
        file = parquet.ParquetFile(path)
        if "code" not in file.schema_arrow.names:
            raise SynthError(
                f"{path}: no column `code`; it has {', '.join(file.schema_arrow.names)}"
            )
        rows = (row for batch in file.iter_batches(GROUP) for row in batch.to_pylist())
        for number, row in enumerate(rows):
            if all_text and not isinstance(row["code"], str):
                raise SynthError(f"{path}: the `code` of row {number} is no text")
            yield row
    except (OSError, pa.ArrowException) as error:
        raise SynthError(f"{path}: cannot be read as parquet ({error})") from error


def task_files(path: Path, split: str) -> list[Path]:
    """Write the code of each row of a split to a file in the folder `PATH.tasks`; return the files
    in the order of the rows.

    A file without a column `split` has one split with all rows. Raises SynthError.
    """
    folder = path.with_suffix(".tasks")
    if folder.is_symlink():
        raise SynthError(f"{folder}: is a link; check where it leads and remove it")
    folder.mkdir(exist_ok=True)
    try:
        refuse_links(folder)
    except RecordError as error:
        raise SynthError(str(error)) from error
    files: list[Path] = []
    for number, row in enumerate(read_set(path)):
        if row.get("split") not in (None, split):
            continue
        file = folder / f"row_{number:05}.py"
        if not file.exists() or file.read_text(encoding="utf-8") != row["code"]:
            partial = file.with_suffix(f".{os.getpid()}")  # other processes may read it
            partial.write_text(row["code"], encoding="utf-8")
            partial.replace(file)
        files.append(file)
    return files


def set_and_split(path: Path) -> tuple[Path, str] | None:
    """Return (file, split) of a path `FILE.parquet` or `FILE.parquet:SPLIT`; None for other
    paths."""
    name, colon, split = str(path).partition(".parquet:")
    if colon:
        return Path(f"{name}.parquet"), split
    return (path, SPLITS[0]) if path.suffix == ".parquet" else None


def difficulties(path: Path) -> dict[str, float]:
    """Return the difficulty (0 to 1) of each task by the checksum of its code; {} for a file that
    cuagent did not write."""
    return {
        row["checksum"]: row["difficulty"]
        for row in read_set(path)
        if row.get("checksum") and row.get("difficulty") is not None
    }


def about_of(path: Path) -> dict[str, Any]:
    """Return the settings and versions from the file's metadata; {} for a file that cuagent did not
    write."""
    _, parquet = parquet_library(path)
    metadata = parquet.read_schema(path).metadata or {}
    found: dict[str, Any] = json.loads(metadata.get(b"cuagent", b"{}"))
    return found


def operators_of(row: Mapping[str, Any]) -> list[str]:
    """Return the operators that a row declares. The column is a list, or the text of a list."""
    value = row.get("ops")
    if isinstance(value, list | tuple):
        return [str(name) for name in value]
    return re.findall(r"[\w.]+", str(value or ""))


def _groups(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    group: list[dict[str, Any]] = []
    for row in rows:
        group.append(dict(row))
        if len(group) == GROUP:
            yield group
            group = []
    if group:
        yield group


def parquet_library(path: Path) -> tuple[Any, Any]:
    """Return `pyarrow` and `pyarrow.parquet`. Raises SynthError if they are not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise SynthError(
            f"{path}: parquet files need pyarrow; pip install 'cuagent[bench]'"
        ) from error
    return pyarrow, pyarrow.parquet
