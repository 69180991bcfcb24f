"""The view of a benchmark fits narrow terminals, and gives a line for each problem in a pipe."""

from __future__ import annotations

import io

import pytest
from records import free_option, solved, unsolved
from rich.console import Console

from cuagent.bench.compare import compare
from cuagent.bench.scheduler import Finished, Progressed, Started
from cuagent.ui.bench import (
    BenchView,
    print_comparison,
    print_results,
    problem_line,
    result_tables,
)

RECORDS = [
    solved("L1/2", 1.2),
    solved("L2/1", 3.0, group="level 2", family="transposed convolution 3D and more"),
    unsolved("L2/3", "no kernel", "no gain: all its work is in library calls", group="level 2"),
]


def test_a_pipe_gets_one_line_for_each_finished_problem() -> None:
    stream = io.StringIO()
    with BenchView(stream, 4) as view:
        view.observe(Finished(RECORDS[0], earlier=True))
        view.observe(Started("L2/1", 0))
        view.observe(Progressed("L2/1", 0, {"phase": "timing", "ratio": 1.5}))
        view.observe(Finished(RECORDS[1], 0))
        view.observe(Finished(RECORDS[2], 0))
    assert stream.getvalue().splitlines() == [
        "2/4 L2/1: 6.00x over eager, 3.00x over torch.compile, 12 s",
        "3/4 L2/3: no kernel (no gain: all its work is in library calls), 12 s",
    ]


def test_an_interrupt_tells_which_problems_begin_again() -> None:
    view = BenchView(io.StringIO(), 5)
    assert view.interrupted() == "0 of 5 problems are done"
    for slot in range(3):
        view.observe(Started(f"L1/{slot}", slot))
    view.observe(Progressed("L1/1", 1, {"phase": "verifying"}))
    view.observe(Finished(solved("L1/2"), 2))
    assert view.interrupted() == (
        "1 of 5 problems are done, 2 in flight begin again: L1/0 (0 s, starting), "
        "L1/1 (0 s, verifying)"
    )


def test_a_line_marks_speedups_that_decide_nothing() -> None:
    assert problem_line(solved("L1/1", 1.0)) == (
        "L1/1: 2.00x over eager, 1.00x over torch.compile (inconclusive), 12 s"
    )


def test_line_of_a_free_option_names_it_and_gives_its_speedups() -> None:
    assert problem_line(free_option("L3/19")) == (
        "L3/19: free option compile+cuda_graph, 6.96x over eager, 4.63x over torch.compile, 12 s"
    )
    assert problem_line(free_option("L3/47", "compile")) == (
        "L3/47: free option torch.compile, 6.96x over eager, 12 s"
    )


def test_one_problem_is_singular() -> None:
    stream = io.StringIO()
    print_results(RECORDS[:1], stream)
    assert "\n1 problem: 1 kernel" in stream.getvalue()


def test_control_sequences_of_foreign_names_do_not_reach_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Names of files and records of another origin are text of other people."""
    stream, evil = io.StringIO(), "a\x1b]0;title\x07\x9b2J"
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    records = [solved("L1/1", group=evil, family=evil), unsolved(evil, reason=evil, group="b")]
    with BenchView(stream, 4) as view:
        view.observe(Started(evil, 0))
        view.observe(Progressed(evil, 0, {"phase": evil}))
        assert view._live is not None
        view._live.refresh()
        view.observe(Finished(records[1], 0))
    print_results(records, stream)
    print_comparison(compare(records, [unsolved("L1/1", reason=evil)]), stream)
    assert "title" in stream.getvalue()
    assert "\x1b]" not in stream.getvalue()
    assert not {"\x07", "\x9b"} & set(stream.getvalue())


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_tables_keep_their_figures_at_any_width(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, record=True)
    for part in result_tables(RECORDS, width):
        console.print(part, width=width)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    for figure in ("66.7%", "1.90", "3.00"):
        assert figure in text


@pytest.mark.parametrize("width", [30, 60, 120])
def test_the_live_table_fits_its_terminal(width: int) -> None:
    view = BenchView(io.StringIO(), 9)
    view.console = Console(file=io.StringIO(), width=width, record=True)
    view.observe(Started("L1/1", 0))
    view.observe(
        Progressed("L1/1", 0, {"phase": "timing 3 interleaved models: round 1", "ratio": 2})
    )
    view.observe(Finished(RECORDS[2], 1))
    view.console.print(view._panel())
    text = view.console.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert "1/9" in text
    assert "L1/1" in text
    assert "left" in text or width < 40


def test_results_name_rules_and_baselines() -> None:
    stream = io.StringIO()
    print_results(RECORDS, stream)
    text = stream.getvalue()
    assert all(word in text for word in ("lax", "strict", "clean", "fast_1.05", "best rung"))
    assert "3 problems: 2 kernel, 1 no kernel" in text
    assert "device held alone: median 3.0 s a problem" in text
    assert "by stage, medians: opening 4.0, quick timing 2.2" in " ".join(text.split())


def test_results_name_the_stages_that_kept_others_from_the_device() -> None:
    stream = io.StringIO()
    print_results([solved("a", lock={"opening_arms": {"kept_s": 3.0, "drain_s": 0.0}})], stream)
    text = " ".join(stream.getvalue().split())
    assert "timings of others waited for a problem, means by stage: opening arms 3.0" in text
    assert "timings waited for others" not in text


def test_a_comparison_lists_its_changes() -> None:
    stream = io.StringIO()
    after = [solved("L1/2", 2.4, seconds_each=5e-4), unsolved("L2/1"), RECORDS[2]]
    print_comparison(compare(RECORDS, after), stream)
    text = stream.getvalue()
    assert "newly failing: 1\n  L2/1  accepted -> failed: it broke" in text
    assert "faster: 1\n  L1/2  2.00x" in text
