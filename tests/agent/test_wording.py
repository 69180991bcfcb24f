"""Text of a judgement for the model: figures come with their warnings."""

from __future__ import annotations

from dataclasses import replace

from cuagent.agent.tried import Tried
from cuagent.agent.wording import judgement_lines, rung_lines
from cuagent.attempt import Attempt
from cuagent.build import Build, Diagnostic
from cuagent.judgement import Judgement
from cuagent.measure.rungs import Gain, Ladder, Rung
from cuagent.record import judgement_of, plain_judgement
from cuagent.score import Score
from cuagent.timing import Arm, Effort, Floor, Ratio, Timing
from cuagent.ui import table
from cuagent.verdict import Draw, Reason, Verdict, on_inputs

TIMING = Timing(
    (Arm("candidate", 12e-6, ()), Arm("eager", 30e-6, ())),
    {"eager": Ratio(2.5, 2.4, 2.6)},
    Effort.QUICK,
    "NVIDIA H200",
    1.0,
    floor=Floor(6e-6, "memory", 13e-6),
    notes=("machine busy: 40 % by others",),
)
JUDGED = Judgement(
    "a",
    Build("a", (), (), True, 0.1),
    Verdict(True, Reason.ACCEPTED, "", "t", "a"),
    TIMING,
    Score(1),
)


def test_judgement_shows_warnings_and_roofline_share() -> None:
    tried = Tried(1, Attempt((("model_new.py", ""),)), "", JUDGED)
    lines = list(judgement_lines(tried, best=False))
    assert lines[0] == "ACCEPTED attempt 1: 2.50x over eager [2.40, 2.60]"
    assert "50% of the roofline" in lines
    assert "SUSPECT: 12.0 us a call, but moving the inputs and outputs alone takes 13.0 us" in lines
    assert "machine busy: 40 % by others" in lines


def test_messages_of_the_compiler_are_shown_once() -> None:
    error = Diagnostic("kernels/a.cpp", 3, "'y' was not declared in this scope", "y = 0;")
    build = Build("a", (), (error,), False, 0.1)
    said = f"kernels/a.cpp:3: error: {error.message}\ncollect2: error"
    verdict = Verdict(False, Reason.BUILD_FAILED, "", "t", "a", output=said)

    def shown(build: Build) -> str:
        judged = Judgement("a", build, verdict, None, Score(-1))
        tried = Tried(1, Attempt((("model_new.py", ""),)), "", judged)
        return "\n".join(judgement_lines(tried, best=False))

    assert shown(build).count(error.message) == 1
    assert "collect2" in shown(replace(build, diagnostics=())), "messages that were not parsed"


def test_wrong_value_is_shown_once_with_its_hint() -> None:
    note = (
        "output 0, element (3,) of shape (8,): got 1, expected -1; 12.5 % of the elements are wrong"
    )
    draws = (
        Draw("own", 1, 2.0, 1.0, 9.0, False, note, hint="their sign is flipped: look there."),
        Draw("normal", 2, 1.0, 1.0, 3.0, False, "output 0, element (4,)", hint="another."),
        Draw("few", 3, 1.0, 1.0, 2.0, False, note.replace("(3,)", "(4,)"), hint="another."),
    )
    verdict = Verdict(False, Reason.WRONG_VALUES, f"on own inputs: {note}", "t", "a", draws=draws)
    tried = Tried(2, Attempt((("model_new.py", ""),)), "", replace(JUDGED, verdict=verdict))
    lines = list(judgement_lines(tried, best=False))
    assert "\n".join(lines).count(note) == 1
    few = 'inputs of the kind "few": largest error 1, 2 times the limit'
    assert few in lines, "the note must not repeat"
    assert lines[-1] == "next: their sign is flipped: look there."
    assert "normal inputs: largest error 1, 3 times the limit (output 0, element (4,))" in lines


def test_plain_judgement_round_trips_with_derived_figures() -> None:
    told = plain_judgement(JUDGED)
    assert told["timing"]["suspect"].startswith("SUSPECT")
    assert told["timing"]["share"] == 0.5
    assert told["timing"]["remarks"][-1] == "machine busy: 40 % by others"
    assert (told["gains"], told["adds"]) == (True, False)
    assert judgement_of(told) == JUDGED


def test_a_judgement_states_settings_and_errors_in_one_line() -> None:
    one = Ratio(1.0, 1.0, 1.0)
    errors = {"reference": 2.9e-4, "candidate": 3.1e-4}
    settings = "fp32 products, TF32 convolutions and RNNs"
    verdict = replace(JUDGED.verdict, settings=settings, errors=errors)
    gain = Gain("compile+tf32", one, one, one, None, 3.0e-4)
    judged = replace(JUDGED, verdict=verdict, gain=gain)
    line = (
        "baselines: fp32 products, TF32 convolutions and RNNs; error against fp64: "
        "reference 2.9e-04, compile+tf32 3.0e-04, candidate 3.1e-04"
    )
    told = plain_judgement(judged)
    assert told["contract"] == judged.contract == line
    assert judgement_of(told) == judged
    tried = Tried(1, Attempt((("model_new.py", ""),)), "", judged)
    assert line in list(judgement_lines(tried, best=False))
    assert JUDGED.contract == "", "an earlier record has no settings"
    shown = "\n".join(text.plain for text in table.judgement_lines(judged, 300))
    assert line in shown


def test_rung_lines_mark_the_best_and_the_unmeasured() -> None:
    rungs = (
        Rung("eager", 2e-3, Ratio(1.0, 1.0, 1.0), 1e-7, True, 0.1, None, True),
        Rung("compile", 1e-3, Ratio(2.0, 1.9, 2.1), 1e-7, True, 9.0, None, True),
        Rung("reduce-overhead", 5e-4, Ratio(4.0, 3.9, 4.1), 1e-1, False, 9.0, None, True),
    )
    rungs += (replace(rungs[0], name="eager+tf32", settings="TF32 products"),)
    found = Ladder("t", "match", "a device", {}, rungs, 1.0, later=("max-autotune",))
    found = replace(found, settings="fp32 products")
    assert list(rung_lines(found)) == [
        "eager: 2 ms, error 1.0e-07",
        "compile: 1 ms, 2.00x over eager [1.90, 2.10], error 1.0e-07, the one to beat",
        "reduce-overhead: 500 us, 4.00x over eager [3.90, 4.10], rejected by the strict rule, "
        "error 1.0e-01",
        "eager+tf32: 2 ms, 1.00x over eager [1.00, 1.00] (equal within 1%), needs TF32 products, "
        "error 1.0e-07",
        "not timed yet: max-autotune",
        "torch settings: fp32 products",
    ]
    assert replace(found, later=()).best == rungs[1]


def test_kinds_of_inputs_are_named_in_words() -> None:
    assert on_inputs("own") == "own inputs"
    assert on_inputs("flat rows") == 'inputs of the kind "flat rows"'
    told = on_inputs("mixed magnitude, integer weights, weights swapped")
    assert told == "mixed magnitude inputs with integer weights, weights swapped"
