"""Append records so that a kill loses none that was written, and find the valid ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from records import solved, unsolved

from cuagent.bench.problems import BenchError
from cuagent.bench.results import RESULTS, key_of, latest, opened_for_writing, read_results


def test_records_are_read_back_in_order(tmp_path: Path) -> None:
    with opened_for_writing(tmp_path) as results:
        results.append(solved("a"))
        results.append(unsolved("b"))
        assert results.finished("a", "key of a") == solved("a")
        assert results.finished("a", "another key") is None
    assert [r["problem"] for r in read_results(tmp_path)] == ["a", "b"]


def test_a_line_that_a_kill_cut_off_is_dropped_and_the_next_one_is_whole(tmp_path: Path) -> None:
    with opened_for_writing(tmp_path) as results:
        results.append(solved("a"))
    with (tmp_path / RESULTS).open("ab") as file:
        file.write(b'{"format": 1, "problem": "b", "ke')
    with opened_for_writing(tmp_path) as results:
        assert [r["problem"] for r in results.records] == ["a"]
        results.append(solved("c"))
    assert [r["problem"] for r in read_results(tmp_path)] == ["a", "c"]


def test_two_benchmarks_do_not_write_to_one_folder(tmp_path: Path) -> None:
    with (
        opened_for_writing(tmp_path),
        pytest.raises(BenchError, match="another benchmark"),
        opened_for_writing(tmp_path),
    ):
        pass


def test_the_key_changes_with_task_device_and_settings() -> None:
    first = key_of("task", "cpu", {"model": "expert"})
    others = [
        key_of("other", "cpu", {"model": "expert"}),
        key_of("task", "gpu", {"model": "expert"}),
        key_of("task", "cpu", {"model": "another"}),
    ]
    assert first == key_of("task", "cpu", {"model": "expert"})
    assert len({first, *others}) == 4


def test_results_set_aside_are_kept_and_no_longer_valid(tmp_path: Path) -> None:
    with opened_for_writing(tmp_path) as results:
        results.append(solved("a"))
        results.set_aside()
        assert results.finished("a", "key of a") is None
    assert len(list(tmp_path.glob("results.*.jsonl"))) == 1


def test_the_newest_record_of_a_problem_counts() -> None:
    records = [solved("a", 1.0), solved("b"), solved("a", 2.0)]
    assert [r["ratios"]["compile"]["value"] for r in latest(records)] == [2.0, 1.5]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(BenchError, match="cannot be written"),
        opened_for_writing(tmp_path / "file" / "out"),
    ):
        pass
