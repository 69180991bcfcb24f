"""Compute fast_p and geometric means by rule, as the paper and KernelBench define them."""

from __future__ import annotations

import pytest
from records import degenerate, free_option, ratio, solved, unsolved

from cuagent.bench.columns import (
    OVERALL,
    Row,
    family_of,
    geometric_mean,
    group_of,
    lock_seconds,
    ratio_of,
    row,
    rows_by,
    time_of,
)
from cuagent.bench.results import Record

RECORDS = [
    solved("L1/1", 4.0),
    solved("L1/2", 1.0),
    solved("L1/3", 1.06, ratios={"compile": ratio(1.06, 0.2)}),
    unsolved("L1/4", "no kernel", lax_passed=1),
    unsolved("L1/5"),
]


def overall(rule: str, baseline: str = "compile", records: list[Record] = RECORDS) -> Row:
    return row(records, OVERALL, rule, baseline)


def test_lax_takes_ratios_as_they_are_and_strict_their_lower_limits() -> None:
    assert overall("lax").fast == {0.0: 0.8, 1.0: 0.4, 1.05: 0.4, 2.0: 0.2}
    assert overall("strict").fast == {0.0: 0.6, 1.0: 0.2, 1.05: 0.2, 2.0: 0.2}


def test_the_speedup_is_the_geometric_mean_of_what_passes_and_was_timed() -> None:
    mean = overall("strict").speedup
    assert mean is not None
    assert mean.count == 3
    assert mean.value == pytest.approx((4.0 * 1.0 * 1.06) ** (1 / 3))
    assert mean.low is not None
    assert mean.high is not None
    assert mean.low < mean.value < mean.high


def test_clean_leaves_out_degenerate_and_algebra_only_problems() -> None:
    records = [
        solved("a", 2.0),
        solved("b", 50.0, certificates=[degenerate("constant output passes")]),
        solved("c", 70.0, algebra_only=True),
        unsolved("d"),
    ]
    found = overall("clean", records=records)
    assert found.problems == 2
    assert found.speedup is not None
    assert found.speedup.value == pytest.approx(2.0)
    assert overall("strict", records=records).problems == 4


def test_a_suspect_time_is_no_result_under_the_strict_rule() -> None:
    records = [solved("a", 9.0, suspect="SUSPECT: faster than memory")]
    assert overall("strict", records=records).fast[0.0] == 0.0


def test_free_option_counts_as_the_result_and_its_attempt_in_the_lax_column_only() -> None:
    records = [free_option("L3/19"), solved("L3/20", 2.0)]
    over_rung, over_compile = (
        overall("strict", name, records) for name in ("best_rung", "compile")
    )
    assert over_rung.fast == {0.0: 1.0, 1.0: 0.5, 1.05: 0.5, 2.0: 0.0}
    assert over_compile.fast[2.0] == 0.5, "its lower limit is 4.5, that of the kernel 1.96"
    assert ratio_of(records[0], "strict", "eager") == ratio(6.96)
    assert ratio_of(records[0], "lax", "eager") == ratio(2.81)
    assert overall("lax", "best_rung", records).fast[1.0] == 0.5
    assert time_of(records[0]) == records[0]["times"]["compile+cuda_graph"]
    untried = free_option("L3/21", attempt_ratios=None, lax=None, lax_passed=0)
    assert overall("lax", "compile", [untried]).fast[0.0] == 0.0, "no kernel passed"
    assert overall("strict", "compile", [untried]).fast[0.0] == 1.0


def test_uses_of_the_lock_are_means_by_stage_and_foreign_values_count_as_zero() -> None:
    lock = {"opening": {"kept_s": 2.0}, "verifying": {"kept_s": 5.0, "drain_s": 1.0}}
    records = [
        solved("a", lock=lock),
        solved("b", lock={"opening": {"kept_s": "long"}, "verifying": 3}),
        solved("c"),
    ]
    assert lock_seconds(records, "kept_s") == {"verifying": 2.5, "opening": 1.0}
    assert lock_seconds(records, "drain_s") == {"verifying": 0.5}
    assert lock_seconds(records[2:], "kept_s") == {}


def test_attempt_without_a_sure_gain_is_no_result_under_the_strict_rule() -> None:
    small = unsolved(
        "L1/1", "no gain", lax_passed=1, attempt_ratios={"compile": ratio(1.005)}, ratios={}
    )
    assert overall("strict", "compile", [small]).fast[0.0] == 0.0
    assert overall("lax", "compile", [small]).fast == {0.0: 1.0, 1.0: 1.0, 1.05: 0.0, 2.0: 0.0}


def test_a_group_without_a_timed_result_has_no_speedup() -> None:
    assert overall("strict", records=[unsolved("a")]).speedup is None
    assert geometric_mean([3.0]) == geometric_mean([3.0])
    single = geometric_mean([3.0])
    assert single is not None
    assert single.low is None


def test_rows_are_given_for_all_problems_and_each_group() -> None:
    records = [solved("a"), solved("b", group="level 2", family="scan")]
    assert [r.group for r in rows_by(records, group_of, ("lax",))][::3] == [
        OVERALL,
        "level 1",
        "level 2",
    ]
    assert {r.group for r in rows_by(records, family_of)} == {OVERALL, "elementwise", "scan"}
    assert {r.group for r in rows_by(records[:1], group_of)} == {OVERALL}
