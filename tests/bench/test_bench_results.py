"""Append records so that a kill loses none that was written, and find the valid ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from records import free_option, solved, unsolved

from cuagent.bench.problems import BenchError
from cuagent.bench.results import (
    LARGEST_FILE,
    RESULTS,
    key_of,
    latest,
    opened_for_writing,
    read_results,
)


def test_records_are_read_back_in_order(tmp_path: Path) -> None:
    with opened_for_writing(tmp_path) as results:
        results.append(solved("a"))
        results.append(unsolved("b"))
        assert results.finished("a", "key of a") == solved("a")
        assert results.finished("a", "another key") is None
        assert results.finished("a", "another key", "key of a") == solved("a")
        assert results.finished("b", "key of a") is None
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


def test_records_of_unknown_origin_do_not_count_unless_trusted(tmp_path: Path) -> None:
    """A cloned repository may hold forged results with valid keys."""
    with opened_for_writing(tmp_path) as results:
        results.append(solved("a"))
    with (tmp_path / RESULTS).open("a") as file:
        file.write(json.dumps(solved("a", 99.0)) + "\n" + json.dumps(solved("b", 99.0)) + "\n")
    with opened_for_writing(tmp_path) as results:
        assert results.finished("a", "key of a") == solved("a")
        assert results.finished("b", "key of b") is None
        assert results.foreign == 2
    with opened_for_writing(tmp_path, trust=True) as results:
        assert results.finished("b", "key of b") == solved("b", 99.0)
        assert results.foreign == 0


@pytest.mark.parametrize("part", [RESULTS, ".lock", "logs", "runs", "report.html", "tasks"])
def test_links_in_the_output_folder_are_refused(tmp_path: Path, part: str) -> None:
    outside, out = tmp_path / "outside", tmp_path / "out"
    outside.write_text("a line without an end")
    out.mkdir()
    (out / part).symlink_to(outside)
    with pytest.raises(BenchError, match="is a link"), opened_for_writing(out):
        pass
    assert outside.read_text() == "a line without an end"


def test_linked_cuagent_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / ".cuagent").symlink_to(tmp_path / "outside")
    out = tmp_path / ".cuagent" / "bench" / "tasks"
    with pytest.raises(BenchError, match="is a link"), opened_for_writing(out):
        pass
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize(
    "broken",
    [
        {"format": 2},
        solved("a") | {"format": 1},
        solved("a") | {"settings": 1},
        solved("a", times=[1]),
        unsolved("a") | {"reason": {}},
        solved("a") | {"problem": 3},
        solved("a", ratios={"eager": {"value": "2", "low": 1.0, "high": 3.0}}),
        solved("a", ratios={"eager": {"value": 0, "low": 0, "high": 0}}),
        solved("a", ratios={"eager": {"value": 1.0, "low": float("nan"), "high": 3.0}}),
        solved("a", times={"candidate": {"median_s": 1e-3, "low_s": None, "high_s": 2e-3}}),
        solved("a", times={"candidate": {"median_s": 10**400, "low_s": 1.0, "high_s": 1.0}}),
        solved("a", seconds=None),
        solved("a", times=None),
        solved("a", certification={"certificates": ["constant"]}),
        solved("a", parts={"kernel": []}),
        {name: value for name, value in solved("a").items() if name != "bound"},
        free_option("a") | {"best_rung": None},
        free_option("a", attempt_ratios={"eager": 2.0}),
    ],
)
def test_incomplete_records_are_left_out(tmp_path: Path, broken: dict[str, object]) -> None:
    lines = [json.dumps(broken), "[" * 100_000, json.dumps(solved("b"))]
    (tmp_path / RESULTS).write_text("\n".join(lines) + "\n")
    assert [r["problem"] for r in read_results(tmp_path)] == ["b"]


def test_a_problem_that_failed_by_an_internal_error_runs_again(tmp_path: Path) -> None:
    failed = unsolved("a") | {"reason": "internal error: ModuleNotFoundError: No module named 'x'"}
    with opened_for_writing(tmp_path) as results:
        results.append(failed)
        assert results.finished("a", "key of a") is None
        results.append(solved("a"))
        assert results.finished("a", "key of a") == solved("a")


def test_a_file_of_results_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    with (tmp_path / RESULTS).open("wb") as file:
        file.truncate(LARGEST_FILE + 1)
    with pytest.raises(BenchError, match="larger than 512 MiB"):
        read_results(tmp_path)
