"""Find the problems of a benchmark: in a KernelBench checkout, a folder of tasks, or a parquet
file.

A problem is a file with `Model`, `get_inputs` and `get_init_inputs`. This module reads names only
and imports neither torch nor a problem's file.
Not covered: whether a problem runs (`solve.py`).

Invariant: order and names of the problems depend on the source only, so an interrupted benchmark
can resume.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cuagent.task.source import parse_python

CUAGENT_FOLDER = ".cuagent"
LEVELS = (1, 2, 3)
"""Levels of KernelBench for which comparisons are published; level 4 has whole language models."""
TASK_FOLDER = "tasks"
"""Name of the folder, below the output folder, for tasks extracted from a parquet file."""
COLUMNS = ("ops", "data_source", "code")
"""Columns that are read of the data set CUDA-Agent-Ops-6K; only `code` is necessary."""


class BenchError(Exception):
    """Error: the benchmark cannot run. The message is one line: what happened, where, what to
    do."""


@dataclass(frozen=True)
class Problem:
    """One task of a benchmark."""

    name: str
    """Unique name within the benchmark, for instance `L1/19`."""
    path: Path
    group: str
    """Group of the result table to which the problem belongs, for instance `level 1`."""
    title: str = ""
    """Name of the problem in its source, or its operators."""


def kernelbench(root: Path, levels: Sequence[int] = LEVELS, wanted: str = "") -> list[Problem]:
    """Return the problems of a KernelBench checkout. Raises BenchError.

    `wanted` selects problems by number: `1-10,23` in every level, `2/80` or `L2/80` in one level;
    "" means all.
    """
    base = root / "KernelBench" if (root / "KernelBench").is_dir() else root
    selected = parse_selection(wanted)
    found = []
    for level in levels:
        folder = base / f"level{level}"
        if not folder.is_dir():
            raise BenchError(
                f"{root}: no folder level{level}; give the folder of a KernelBench checkout"
            )
        for number, file in sorted(_numbered(folder)):
            if not selected or (None, number) in selected or (level, number) in selected:
                title = file.stem.partition("_")[2].replace("_", " ").strip()
                found.append(Problem(f"L{level}/{number}", file, f"level {level}", title))
    if not found:
        raise BenchError(f"--problems {wanted}: no such problem in the chosen levels of {root}")
    return found


def parse_selection(text: str) -> set[tuple[int | None, int]]:
    """Return (level or None, number) for each selected problem. Raises BenchError."""
    selected: set[tuple[int | None, int]] = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        match = re.fullmatch(r"(?:[Ll]?(\d+)/)?(\d+)(?:-(\d+))?", part)
        if match is None:
            raise BenchError(f"--problems {part}: write numbers as in 1-10,23 or 2/80")
        level, first, last = (None if g is None else int(g) for g in match.groups())
        assert first is not None
        selected |= {(level, n) for n in range(first, (first if last is None else last) + 1)}
    return selected


def _numbered(folder: Path) -> Iterable[tuple[int, Path]]:
    for file in folder.glob("*.py"):
        if match := re.match(r"(\d+)_", file.name):
            yield int(match[1]), file


def folder_of_tasks(folder: Path, wanted: str = "") -> list[Problem]:
    """Return the task files below a folder as problems, sorted by name. Raises BenchError.

    `wanted`: comma-separated list of names; "" means all. Files without `Model` and `get_inputs`
    are left out.
    """
    files = sorted(file for file in folder.rglob("*.py") if _is_task(file, folder))
    problems = [
        Problem(file.relative_to(folder).with_suffix("").as_posix(), file, _group(file, folder))
        for file in files
    ]
    if names := {name.strip() for name in wanted.split(",") if name.strip()}:
        known = {problem.name for problem in problems}
        if missing := sorted(names - known):
            raise BenchError(f"--problems {missing[0]}: no such task in {folder}")
        problems = [problem for problem in problems if problem.name in names]
    if not problems:
        raise BenchError(f"{folder}: no task; a task defines Model, get_inputs and get_init_inputs")
    return problems


def _group(file: Path, folder: Path) -> str:
    parent = file.parent.relative_to(folder).as_posix()
    return "tasks" if parent == "." else parent


def _is_task(file: Path, folder: Path) -> bool:
    if any(part.startswith((".", "_")) for part in file.relative_to(folder).parts):
        return False
    try:
        tree = parse_python(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return False
    names = {getattr(node, "name", "") for node in tree.body}
    return {"Model", "get_inputs"} <= names


def refuse_links(out: Path, parts: Iterable[str] = ()) -> None:
    """Raise BenchError if `out`, one of its `parts`, or a folder above it in a `.cuagent` path is a
    symbolic link.

    The folder may come with a cloned repository, so a link could redirect writes to other files.
    """
    above = [path for path in (out, *out.parents) if CUAGENT_FOLDER in path.parts]
    for path in (*above, *(out / part for part in parts)):
        if path.is_symlink():
            raise BenchError(
                f"{path}: is a link; check where it leads, remove it, or name another --out"
            )


def parquet(file: Path, into: Path, wanted: str = "") -> list[Problem]:
    """Write the code of each distinct row of a parquet file to a file below `into`; return the
    problems.

    `wanted` selects row numbers, as in `0-99`. Raises BenchError.
    """
    selected = {number for _, number in parse_selection(wanted)}
    refuse_links(into, [TASK_FOLDER])
    folder = into / TASK_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    problems, seen = [], set[str]()
    for number, row in enumerate(_rows(file)):
        code = str(row["code"])
        if code in seen or (selected and number not in selected):
            continue
        seen.add(code)
        path = folder / f"row_{number:05}.py"
        refuse_links(folder, [path.name])
        if not path.exists() or path.read_text(encoding="utf-8") != code:
            path.write_text(code, encoding="utf-8")
        group = str(row.get("data_source") or "rows")
        problems.append(Problem(f"row {number}", path, group, _operators(row.get("ops"))))
    if not problems:
        raise BenchError(f"{file}: no row selected; rows are numbered from 0")
    return problems


def _operators(value: object) -> str:
    """Return the operators of a row as text. The column is a list, or the text of a list."""
    names = value if isinstance(value, list | tuple) else re.findall(r"[\w.]+", str(value or ""))
    return ", ".join(map(str, names))


def _rows(file: Path) -> list[dict[str, object]]:
    try:
        import pyarrow.parquet as source  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise BenchError(
            f"{file}: reading parquet needs pyarrow; pip install 'cuagent[bench]'"
        ) from error
    from pyarrow import ArrowException

    try:
        table = source.read_table(file)
    except (OSError, ArrowException) as error:
        raise BenchError(f"{file}: cannot be read as parquet ({error})") from error
    if "code" not in table.column_names:
        raise BenchError(f"{file}: no column `code`; it has {', '.join(table.column_names)}")
    kept = [name for name in COLUMNS if name in table.column_names]
    rows: list[dict[str, object]] = table.select(kept).to_pylist()
    return rows
