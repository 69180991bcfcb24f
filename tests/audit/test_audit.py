"""An honest record comes out again to the last digit; whatever was doctored in it is named."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cuagent.attempt import Attempt
from cuagent.audit.audit import Recorded, compare, judge_again, take_apart
from cuagent.build import build
from cuagent.judge import Judgement
from cuagent.measure.timing.timer import time_arms
from cuagent.record.evidence import MAX_EVIDENCE_BYTES, EvidenceError, evidence, read_evidence
from cuagent.score import milestone
from cuagent.task import load_task
from cuagent.verify import Referee, Verdict
from cuagent.worker import ForkServer

Data = dict[str, Any]

TASK = """
import torch
class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(width))
    def forward(self, x):
        return (torch.tanh(x) * self.scale).sum(-1)
def get_inputs():
    return [torch.rand(64, 96)]
def get_init_inputs():
    return [96]
"""
KERNEL = """
extern "C" void scaled(float* out, const float* in, const float* scale, long rows, long width) {
  for (long i = 0; i < rows * width; i++) out[i] = in[i] * scale[i % width];
}
"""
ATTEMPT = """
import random, torch
from cuagent.kernels import load
scaled = load("kernels/scaled.cpp").scaled
class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(width))
    def forward(self, x):
        y = torch.empty_like(x)
        scaled(y, torch.tanh(x), self.scale, *x.shape)
        return y.sum(-1) {more}
"""


def attempt(more: str = "") -> Attempt:
    return Attempt((("kernels/scaled.cpp", KERNEL), ("model_new.py", ATTEMPT.format(more=more))))


@pytest.fixture(scope="module")
def referee(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Iterator[Referee]:
    path = tmp_path_factory.mktemp("task") / "task.py"
    path.write_text(TASK)
    task = load_task(str(path), device="cpu")
    with Referee(task, fork_server=fork_server) as opened:
        yield opened


def recorded(referee: Referee, made: Attempt, *, timed: bool = False) -> Data:
    """The content of an evidence file, after its way through JSON."""
    built = build(made, referee.task.device)
    verdict = referee.verify(made, built)
    assert verdict.draws, verdict.detail
    timing = time_arms(referee, made, built, ("eager",)) if timed else None
    judgement = Judgement(made.digest, built, verdict, timing, milestone(verdict.accepted))
    data: Data = json.loads(json.dumps(evidence(referee.task, made, judgement), allow_nan=False))
    return data


@pytest.fixture(scope="module")
def honest(referee: Referee) -> Data:
    return recorded(referee, attempt(), timed=True)


@pytest.fixture(scope="module")
def again(referee: Referee, honest: Data) -> tuple[Recorded, list[Verdict]]:
    known = take_apart(honest)
    return known, judge_again(known, build(known.attempt, known.task.device), referee)


def held(data: Data, found: list[Verdict]) -> tuple[str, ...]:
    known = take_apart(data)
    return compare(known, build(attempt(), known.task.device), found).contrary


def test_an_honest_record_holds_to_the_last_digit(again: tuple[Recorded, list[Verdict]]) -> None:
    known, found = again
    assert len(found) == 1, "once is enough where everything comes out the same"
    audit = compare(known, build(known.attempt, known.task.device), found)
    assert audit.contrary == ()
    assert audit.circumstances == ()
    assert audit.line == f"holds: accepted; {len(found[0].draws)} draws came out as recorded"


def slightly_less(value: float) -> float:
    return value * 0.999


def _draw(part: str, change: Callable[[Any], Any]) -> Callable[[Data], Any]:
    def doctor(data: Data) -> None:
        draw = data["verdict"]["draws"][7]
        draw[part] = change(draw[part])

    return doctor


def _set(*path: Any, to: Any) -> Callable[[Data], Any]:
    def doctor(data: Data) -> None:
        inner: Any = data
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = to

    return doctor


RATIO = {"value": 2.0, "low": 1.9, "high": 2.1}
DOCTORED: dict[str, tuple[Callable[[Data], Any], str]] = {
    "max_error": (_draw("max_error", slightly_less), "draw 8 "),
    "rms_error": (_draw("rms_error", slightly_less), "rms_error"),
    "rms_bound": (_draw("rms_bound", lambda bound: bound * 1.01), "rms_bound"),
    "ratio": (_draw("ratio", slightly_less), "ratio"),
    "passed": (_draw("passed", lambda _: False), "passed recorded as failed"),
    "kind": (_draw("kind", lambda _: "normal"), "kind"),
    "draw's seed": (_draw("seed", lambda seed: seed + 1), "seed"),
    "draw deleted": (lambda data: data["verdict"]["draws"].pop(3), "draws: "),
    "draws deleted": (_set("verdict", "draws", to=[]), "draws: 0 recorded"),
    "seeds": (lambda data: data["verdict"]["seeds"].pop(), "seeds: "),
    "perturbations": (_set("verdict", "perturbations", to=[]), "perturbations"),
    "reason": (_set("verdict", "reason", to="wrong values"), "now: accepted"),
    "acceptance": (_set("verdict", "accepted", to=False), "now: accepted"),
    "detail": (_set("verdict", "detail", to="20 draws, worst 0 of its bound"), "detail: "),
    "strict": (_set("verdict", "strict", "worst", to=1e-9), "strict rule"),
    "lax": (_set("verdict", "lax", "passed", to=False), "lax rule"),
    "precision": (_set("verdict", "precision", to="bf16"), "precision: "),
    "notes": (_set("verdict", "notes", to=["judged twice"]), "notes: "),
    "seconds": (_set("verdict", "seconds", "total", to=1e-6), "seconds: "),
    "task": (_set("task", "source", to=TASK + "#"), "the task's text"),
    "attempt": (_set("attempt", "model_new.py", to="#"), "the attempt's text"),
    "build": (_set("build", 0, "key", to="0" * 64), "another key"),
    "library": (_set("build", 0, "sha256", to="0" * 64), "another sha256"),
    "median": (_set("timing", "arms", 0, "median", to=1e-9), "the median of candidate"),
    "sample": (lambda data: data["timing"]["arms"][1]["samples"].pop(), "samples of eager"),
    "limit": (_set("timing", "ratios", "eager", "low", to=9.0), "the ratio to eager"),
    "ratio deleted": (_set("timing", "ratios", to={}), "no ratio to eager"),
    "ratio added": (_set("timing", "ratios", "compile", to=RATIO), "a ratio to compile"),
    "contradiction": (_set("timing", "contradiction", to="slow"), "accepted in the verdict"),
    "wrong while timed": (_set("timing", "wrong", to="call 1 of 2"), "accepted in the verdict"),
}


@pytest.mark.parametrize("name", DOCTORED)
def test_what_was_doctored_is_named(
    honest: Data, again: tuple[Recorded, list[Verdict]], name: str
) -> None:
    doctor, words = DOCTORED[name]
    data = copy.deepcopy(honest)
    doctor(data)
    contrary = held(data, again[1])
    assert any(words in line for line in contrary), contrary


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (("verifier",), "the verifier's own sources"),
        (("verdict", "versions", "torch"), "torch: recorded 1.0"),
        (("compilers", "g++"), "g++: recorded 1.0"),
        (("verdict", "tier"), "isolation: recorded 1.0"),
    ],
)
def test_what_need_not_matter_is_named_as_well(
    honest: Data, again: tuple[Recorded, list[Verdict]], path: tuple[str, ...], words: str
) -> None:
    data = copy.deepcopy(honest)
    _set(*path, to="1.0")(data)
    known = take_apart(data)
    audit = compare(known, build(attempt(), known.task.device), again[1])
    assert any(line.startswith(words) for line in audit.circumstances), audit.circumstances


def test_a_record_of_answers_that_vary_holds_and_a_gross_lie_in_it_does_not(
    referee: Referee,
) -> None:
    varies = attempt("* (1 + 2e-7 * random.random())")
    data = recorded(referee, varies)
    known = take_apart(data)
    built = build(varies, known.task.device)
    found = judge_again(known, built, referee)
    audit = compare(known, built, found)
    assert audit.contrary == ()
    assert any("vary from run to run" in line for line in audit.circumstances)
    data["verdict"]["draws"][2]["max_error"] *= 1e6
    lie = compare(take_apart(data), built, found)
    assert len(lie.contrary) == 1
    assert "draw 3 " in lie.contrary[0]


def test_a_record_with_a_piece_missing_is_not_whole(honest: Data) -> None:
    data = copy.deepcopy(honest)
    del data["verdict"]["draws"][0]["seed"]
    with pytest.raises(EvidenceError, match="not whole"):
        take_apart(data)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("build",), None),
        (("compilers",), None),
        (("attempt",), {"model_new.py": None}),
        (("attempt",), {"../model_new.py": ""}),
        (("verdict", "draws", 0, "kind"), []),
        (("verdict", "notes"), [None]),
    ],
)
def test_a_record_of_other_forms_is_not_whole(
    honest: Data, path: tuple[str | int, ...], value: Any
) -> None:
    data: Any = copy.deepcopy(honest)
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(EvidenceError, match="not whole"):
        take_apart(data)


BROKEN: dict[str, tuple[str, str]] = {
    "nested deeply": ("[" * 200_000, "nested too deeply"),
    "nested in a field": (
        '{"format": "cuagent evidence 2", "task": ' + '{"a":' * 100_000,
        "nested too deeply",
    ),
    "a long integer": ("1" * 10_000, "not JSON"),
    "no text": ("\udcff", "no text"),
    "a list": ("[]", "not 'cuagent evidence 2'"),
}


@pytest.mark.parametrize(("text", "said"), BROKEN.values(), ids=list(BROKEN))
def test_a_file_that_is_no_evidence_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "evidence.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(EvidenceError, match=said) as caught:
        read_evidence(file)
    assert len(str(caught.value).removeprefix(str(file))) < 300


@pytest.mark.timeout(20)
def test_a_file_that_is_too_large_or_a_pipe_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(MAX_EVIDENCE_BYTES + 1)
    with pytest.raises(EvidenceError, match="larger than"):
        read_evidence(tmp_path / "large")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(EvidenceError):
        read_evidence(tmp_path / "pipe")


@pytest.mark.parametrize("name", ["../../x.py", "/etc/x", "a" * 5000, "kernels/\0.h", ""])
def test_an_attempt_in_a_record_names_no_file_elsewhere(honest: Data, name: str) -> None:
    data = copy.deepcopy(honest)
    data["attempt"][name] = ""
    with pytest.raises(EvidenceError, match="no name for a file of an attempt") as caught:
        take_apart(data)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "doctor",
    [
        _set("task", "source", to=None),
        _set("task", "entry", to=[1]),
        _set("task", "imported", to=7),
        _set("verdict", "seeds", 0, to=-1),
        _set("verdict", "draws", 0, "seed", to=1 << 200),
    ],
)
def test_values_that_cannot_be_judged_are_refused_before_judging(
    honest: Data, doctor: Callable[[Data], Any]
) -> None:
    data = copy.deepcopy(honest)
    doctor(data)
    with pytest.raises(EvidenceError, match="not whole"):
        take_apart(data)
