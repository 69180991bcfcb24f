"""Arguments that `cuagent bench` refuses before any work."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from commands import TASK, Cuagent
from shares import slow_after

from cuagent.cli.exits import Refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    slow_after(
        5,
        [
            (["kernelbench", "--root", "absent"], "no folder level1"),
            (["absent"], "no folder and no parquet file"),
            (["tasks", "--problems", "none"], "no such task"),
            (["compare", "tasks", "tasks"], "tasks: no results"),
            (["compare", "old", "old"], "old: its results (1) are in another version"),
            (["kernelbench"], "--root is missing"),
            (["kernelbench", "--root", ".", "--levels", "one"], "--levels one: write numbers"),
            (["tasks", "more"], "one source at a time"),
            (["tasks", "--rules", "all"], "use practical or kernels-only"),
            (["tasks", "--engine", "cloud", "--device", "cpu"], "use local or ray"),
            (["compare", "tasks"], "compare takes two results"),
        ],
    ),
)
def test_a_command_that_cannot_work_is_refused_in_one_line(
    cuagent: Cuagent, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "task.py").write_text(TASK)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "results.jsonl").write_text('{"format": 1, "problem": "a"}\n')
    done = cuagent("bench", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_part_that_is_missing_is_told_before_the_first_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tree that was never installed has no skill; each problem would fail after its ladder."""
    from cuagent.cli.bench import _require_all_parts

    _require_all_parts()
    monkeypatch.setitem(sys.modules, "cuagent.skills", None)
    with pytest.raises(Refused, match=r"pip install -e \."):
        _require_all_parts()
