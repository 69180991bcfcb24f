"""The last block of a run names the sources of the gain and the next commands."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from samples import GAIN, LADDER, ON_TOP, SLOWER

from cuagent.cli.exits import Refused
from cuagent.cli.export import write_result
from cuagent.events import RunEnded, RunStarted
from cuagent.judgement import Judgement
from cuagent.measure.rungs import Ladder, Rung, gain_of, with_record_timing
from cuagent.timing import Effort, Ratio
from cuagent.ui.summary import summary_lines

RUN = RunStarted("20261121-softmax", Path("runs/x"), "softmax", "cuda", "expert")


def said(best: Judgement | None, found: Ladder | None, stop: str = "submitted") -> str:
    ended = RunEnded(stop, best, "one line", found)
    numbers = {best.attempt: 3} if best is not None else {}
    return "\n".join(line.plain for line in summary_lines(ended, RUN, numbers, 80))


def on_top(ratio: Ratio) -> Judgement:
    """The attempt, were it worth that over the best rung."""
    timing = ON_TOP.timing
    assert timing is not None
    timing = replace(timing, ratios=timing.ratios | {"reduce-overhead": ratio})
    return replace(ON_TOP, timing=timing, gain=gain_of(timing, LADDER))


def test_free_kernel_and_end_to_end_gains_are_separate() -> None:
    text = said(ON_TOP, LADDER)
    assert text.startswith("✓ best: attempt 3")
    assert "free                         2.00x [1.94, 2.06]: CUDA graphs, no kernel" in text
    assert "kernel vs. best free option  1.25x [1.22, 1.28]" in text
    assert "end to end                   2.50x [2.44, 2.56]" in text
    assert "over torch.compile           1.79x [1.74, 1.84] faster" in text
    assert "cuagent apply runs/x" in text


def test_where_no_kernel_adds_the_best_rung_is_handed_over() -> None:
    text = said(on_top(Ratio(0.9, 0.88, 0.92)), LADDER)
    assert text.startswith("✓ CUDA graphs is the best found; no kernel beat it")
    assert "attempt 3: 0.90x [0.88, 0.92] over CUDA graphs" in text
    assert "cuagent export runs/x --out DIR" in text
    assert "cuagent apply" not in text


def test_an_attempt_that_may_be_better_is_offered_beside_the_rung() -> None:
    text = said(on_top(Ratio(1.3, 0.8, 2.1)), LADDER)
    assert text.startswith(
        "✓ no kernel is surely faster than the best free option; CUDA graphs is the"
    )
    assert "(inconclusive)" in text
    assert "cuagent export runs/x --attempt 3 --out DIR" in text
    assert "--attempt" not in said(on_top(Ratio(0.7, 0.4, 1.1)), LADDER)


def test_without_an_accepted_attempt_the_rung_stands_alone() -> None:
    text = said(None, LADDER)
    assert text.startswith("? no kernel tried; CUDA graphs is 2.00x (quick timing)")
    assert "2.00x [1.94, 2.06] over eager, quick timing" in text
    assert "none was tried" in text
    assert "cuagent export runs/x --out DIR" in text


def test_a_rung_that_waits_less_for_the_host_is_the_result_and_its_times_are_shown() -> None:
    eager, compiled, graphs = LADDER.rungs
    own = replace(
        graphs,
        name="compile+cuda_graph",
        seconds=15.5e-6,
        over_eager=Ratio(1.93, 1.9, 1.96),
        in_a_row_s=55e-6,
    )
    rows = replace(eager, in_a_row_s=233e-6), compiled, replace(graphs, in_a_row_s=116e-6), own
    text = said(None, replace(LADDER, rungs=rows))
    assert text.startswith("? no kernel tried; compile graph is 1.93x (quick timing)")
    assert "in a row  compile graph 55 us, CUDA graphs 116 us, eager 233 us a call" in text
    busy = [replace(rung, in_a_row_s=rung.seconds * 1.1) for rung in LADDER.rungs]
    assert "in a row" not in said(None, replace(LADDER, rungs=tuple(busy)))


def test_summary_reports_that_nothing_beats_eager() -> None:
    eager = replace(LADDER, rungs=LADDER.rungs[:1], later=())
    for best in (None, SLOWER):
        text = said(best, eager)
        assert text.startswith("? nothing beats your module\n")
        assert "cuagent export" not in text
        assert "cuagent apply" not in text, "a slower kernel is not recommended"
    assert said(SLOWER, eager, "interrupted").startswith("? nothing beats your module yet\n")
    text = said(None, eager, "interrupted")
    assert text.startswith("? no kernel tried (interrupted); nothing beats your module yet\n")


def test_an_end_before_its_time_is_named() -> None:
    text = said(None, LADDER, "interrupted")
    assert text.startswith("? no kernel tried (interrupted); CUDA graphs is 2.00x (quick timing)")
    text = said(None, LADDER, "model failed")
    assert text.startswith("? no kernel tried (the model failed); CUDA graphs is 2.00x")
    slower = on_top(Ratio(0.9, 0.88, 0.92))
    text = said(slower, LADDER, "model failed")
    assert text.startswith("? CUDA graphs is the best found; no kernel beat it (the model failed)")


def test_a_run_that_ended_before_the_ladder_says_so() -> None:
    ended = RunEnded("interrupted", None, "no kernel tried", None)
    first, *_ = summary_lines(ended, RUN, {}, 80)
    assert first.plain == "? no kernel tried (interrupted)"


def test_inconclusive_rung_is_reported_as_undecided() -> None:
    eager, compiled, _ = LADDER.rungs
    unsure = replace(compiled, over_eager=Ratio(1.57, 0.58, 4.20))
    found = replace(LADDER, rungs=(eager, unsure), later=())
    text = said(None, found)
    assert text.startswith("? no kernel tried; could not tell whether torch.compile beats your")
    assert "torch.compile: 1.57x [0.58, 4.20] (inconclusive), quick timing" in text
    assert "--fresh" in text
    with pytest.raises(Refused, match=r"could not tell whether torch\.compile beats your module"):
        write_result(None, None, found, {}, Path("out"))  # type: ignore[arg-type]
    narrow = replace(compiled, over_eager=Ratio(1.0, 0.98, 1.02))
    assert "nothing beats" in said(None, replace(found, rungs=(eager, narrow)))


def test_undecided_kernel_is_told_alike_by_summary_and_export(tmp_path: Path) -> None:
    """`export` said that nothing beats the module where the summary could not tell."""
    eager = replace(LADDER, rungs=LADDER.rungs[:1], later=())
    timing = SLOWER.timing
    assert timing is not None
    ratios = timing.ratios | {"eager": Ratio(1.3, 0.4, 4.2)}
    unsure = replace(SLOWER, timing=replace(timing, ratios=ratios), gain=None)
    told = "could not tell whether the kernel beats your module"
    assert said(unsure, eager).startswith(f"? {told}\n")
    with pytest.raises(Refused, match=told):
        write_result(None, unsure, eager, {}, tmp_path / "out")  # type: ignore[arg-type]
    compiled = replace(LADDER.rungs[1], over_eager=Ratio(0.78, 0.25, 2.1))
    slow = replace(eager, rungs=(*eager.rungs, compiled))
    assert slow.undecided is compiled
    assert said(unsure, slow).startswith(f"? {told}\n"), "torch.compile measured slower"
    compiled = replace(compiled, over_eager=Ratio(1.27, 0.54, 3.40))
    slower = replace(eager, rungs=(*eager.rungs, compiled))
    assert said(unsure, slower).startswith(f"? {told}\n"), "slower than the kernel"
    faster = replace(compiled, over_eager=Ratio(1.4, 0.54, 3.9))
    either = said(unsure, replace(eager, rungs=(*eager.rungs, faster)))
    assert either.startswith("? could not tell whether torch.compile beats your module")
    with pytest.raises(Refused, match=told):
        write_result(None, unsure, slow, {}, tmp_path / "out")  # type: ignore[arg-type]
    with pytest.raises(Refused, match="nothing beats your module"):
        write_result(None, SLOWER, eager, {}, tmp_path / "out")  # type: ignore[arg-type]


def test_cached_measurement_shows_its_age() -> None:
    found = replace(LADDER, when=time.time() - 1800)
    assert "quick timing, measured 30 min ago" in " ".join(said(None, found).split())


def test_a_record_that_contradicts_the_quick_ladder_wins() -> None:
    quick = replace(LADDER, rungs=(*LADDER.rungs[:1], unsure_rung(LADDER.rungs[1])), later=())
    assert quick.best == quick.rungs[0]
    timing = ON_TOP.timing
    assert timing is not None
    record = replace(
        timing,
        effort=Effort.RECORD,
        ratios={"eager": Ratio(2.4, 2.3, 2.5), "compile": Ratio(1.95, 1.8, 2.1)},
        free={"compile": Ratio(1.24, 1.09, 1.6)},
    )
    found = with_record_timing(quick, record)
    assert found.best is not None
    assert found.best.name == "compile"
    best = replace(ON_TOP, timing=record, gain=gain_of(record, found))
    text = " ".join(said(best, found).split())
    assert "free 1.23x [1.09, 1.60]: torch.compile, no kernel" in text
    assert "kernel vs. best free option 1.95x [1.80, 2.10]" in text


def unsure_rung(rung: Rung) -> Rung:
    return replace(rung, over_eager=Ratio(1.2, 0.9, 1.7))


def test_a_rung_that_may_be_the_best_is_named_as_the_kernels_opponent() -> None:
    """The ratio is over that rung: over eager alone it would hide that torch.compile may win."""
    found = replace(LADDER, rungs=(*LADDER.rungs[:1], unsure_rung(LADDER.rungs[1])), later=())
    timing = ON_TOP.timing
    assert timing is not None
    ratios = {"eager": Ratio(2.13, 1.26, 3.6), "compile": Ratio(0.78, 0.04, 14.2)}
    unsure = replace(timing, ratios=ratios)
    said_words = said(replace(ON_TOP, timing=unsure, gain=gain_of(unsure, found)), found).split()
    text = " ".join(said_words)
    assert "option 0.78x [0.04, 14.2] (inconclusive), over torch.compile" in text
    assert "end to end 2.13x [1.26, 3.60]" in text
    sure = replace(timing, ratios=ratios | {"compile": Ratio(2.5, 2.4, 2.6)})
    text = said(replace(ON_TOP, timing=sure, gain=gain_of(sure, found)), found)
    assert "option  2.13x [1.26, 3.60]\n" in text


def test_a_suspect_time_is_no_gain() -> None:
    timing = GAIN.timing
    assert timing is not None
    assert timing.floor is not None
    suspect = replace(GAIN, timing=replace(timing, floor=replace(timing.floor, memory=13e-6)))
    assert not suspect.beats_best_rung
    text = said(suspect, None)
    assert text.startswith("? no gain: attempt 3 is correct, but its time is not plausible")
    assert "SUSPECT" in text
