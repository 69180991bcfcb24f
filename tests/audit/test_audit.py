"""An honest record is reproduced to the last digit; each forged figure is reported."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cuagent.attempt import Attempt
from cuagent.audit.audit import Recorded, compare, parse_evidence, repeat_verdict
from cuagent.build import build
from cuagent.judgement import Judgement
from cuagent.measure.timing.timer import time_arms
from cuagent.record.evidence import MAX_EVIDENCE_BYTES, EvidenceError, evidence, read_evidence
from cuagent.score import milestone
from cuagent.task import Precision, load_task
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


def recorded(referee: Referee, candidate: Attempt, *, timed: bool = False) -> Data:
    """Return the content of an evidence file, converted to JSON and back."""
    built = build(candidate, referee.task.device)
    verdict = referee.verify(candidate, built)
    assert verdict.draws, verdict.detail
    timing = time_arms(referee, candidate, built, ("eager",)) if timed else None
    judgement = Judgement(candidate.digest, built, verdict, timing, milestone(verdict.accepted))
    data: Data = json.loads(
        json.dumps(evidence(referee.task, candidate, judgement), allow_nan=False)
    )
    return data


@pytest.fixture(scope="module")
def honest(referee: Referee) -> Data:
    return recorded(referee, attempt(), timed=True)


@pytest.fixture(scope="module")
def again(referee: Referee, honest: Data) -> tuple[Recorded, list[Verdict]]:
    parsed = parse_evidence(honest)
    return parsed, repeat_verdict(parsed, build(parsed.attempt, parsed.task.device), referee)


def contradictions(data: Data, found: list[Verdict]) -> tuple[str, ...]:
    parsed = parse_evidence(data)
    return compare(parsed, build(attempt(), parsed.task.device), found).contrary


def test_honest_record_holds_to_the_last_digit(again: tuple[Recorded, list[Verdict]]) -> None:
    parsed, found = again
    assert len(found) == 1, "one verdict suffices if every figure agrees"
    audit = compare(parsed, build(parsed.attempt, parsed.task.device), found)
    assert audit.contrary == ()
    assert audit.circumstances == ()
    assert audit.line == f"holds: accepted; {len(found[0].draws)} draws as recorded"


def test_record_of_the_earlier_match_holds_as_fp32(tmp_path: Path, fork_server: ForkServer) -> None:
    (tmp_path / "task.py").write_text(TASK)
    task = load_task(tmp_path / "task.py", device="cpu", precision="fp32")
    with Referee(task, fork_server=fork_server) as opened:
        data = recorded(opened, attempt())
        assert data["verdict"]["precision"] == "fp32"
        earlier = copy.deepcopy(data)
        earlier["task"]["precision"] = earlier["verdict"]["precision"] = "match"
        del earlier["task"]["settings"], earlier["verdict"]["settings"]
        del earlier["verdict"]["errors"]
        parsed = parse_evidence(earlier)
        assert parsed.task.precision is Precision.FP32
        built = build(parsed.attempt, parsed.task.device)
        audit = compare(parsed, built, repeat_verdict(parsed, built, opened))
        assert audit.contrary == ()


def slightly_less(value: float) -> float:
    return value * 0.999


def _draw(part: str, change: Callable[[Any], Any]) -> Callable[[Data], Any]:
    def forge(data: Data) -> None:
        draw = data["verdict"]["draws"][7]
        draw[part] = change(draw[part])

    return forge


def _set(*path: Any, to: Any) -> Callable[[Data], Any]:
    def forge(data: Data) -> None:
        inner: Any = data
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = to

    return forge


RATIO = {"value": 2.0, "low": 1.9, "high": 2.1}
FORGERIES: dict[str, tuple[Callable[[Data], Any], str]] = {
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
    "settings": (_set("verdict", "settings", to="TF32 products"), "settings: recorded"),
    "error of the reference": (_set("verdict", "errors", "reference", to=1.0), "errors: reference"),
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


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_figure_is_reported(
    honest: Data, again: tuple[Recorded, list[Verdict]], name: str
) -> None:
    forge, words = FORGERIES[name]
    data = copy.deepcopy(honest)
    forge(data)
    contrary = contradictions(data, again[1])
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
def test_changed_version_is_a_circumstance(
    honest: Data, again: tuple[Recorded, list[Verdict]], path: tuple[str, ...], words: str
) -> None:
    data = copy.deepcopy(honest)
    _set(*path, to="1.0")(data)
    parsed = parse_evidence(data)
    audit = compare(parsed, build(attempt(), parsed.task.device), again[1])
    assert any(line.startswith(words) for line in audit.circumstances), audit.circumstances


def test_varying_answers_hold_unless_a_figure_is_grossly_forged(
    referee: Referee,
) -> None:
    varies = attempt("* (1 + 2e-7 * random.random())")
    data = recorded(referee, varies)
    parsed = parse_evidence(data)
    built = build(varies, parsed.task.device)
    found = repeat_verdict(parsed, built, referee)
    audit = compare(parsed, built, found)
    assert audit.contrary == ()
    assert any("vary from run to run" in line for line in audit.circumstances)
    data["verdict"]["draws"][2]["max_error"] *= 1e6
    forged = compare(parse_evidence(data), built, found)
    assert len(forged.contrary) == 1
    assert "draw 3 " in forged.contrary[0]


def test_evidence_with_a_missing_field_is_refused(honest: Data) -> None:
    data = copy.deepcopy(honest)
    del data["verdict"]["draws"][0]["seed"]
    with pytest.raises(EvidenceError, match="incomplete or malformed"):
        parse_evidence(data)


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
def test_evidence_with_a_malformed_field_is_refused(
    honest: Data, path: tuple[str | int, ...], value: Any
) -> None:
    data: Any = copy.deepcopy(honest)
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(EvidenceError, match="incomplete or malformed"):
        parse_evidence(data)


BROKEN: dict[str, tuple[str, str]] = {
    "nested deeply": ("[" * 200_000, "nested too deeply"),
    "nested in a field": (
        '{"format": "cuagent evidence 2", "task": ' + '{"a":' * 100_000,
        "nested too deeply",
    ),
    "a long integer": ("1" * 10_000, "not JSON"),
    "not text": ("\udcff", "not UTF-8 text"),
    "a list": ("[]", "not 'cuagent evidence 2'"),
}


@pytest.mark.parametrize(("text", "message"), BROKEN.values(), ids=list(BROKEN))
def test_file_that_is_not_evidence_is_refused_in_one_line(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "evidence.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(EvidenceError, match=message) as caught:
        read_evidence(file)
    assert len(str(caught.value).removeprefix(str(file))) < 300


@pytest.mark.timeout(20)
def test_large_file_and_pipe_are_refused(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(MAX_EVIDENCE_BYTES + 1)
    with pytest.raises(EvidenceError, match="larger than"):
        read_evidence(tmp_path / "large")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(EvidenceError):
        read_evidence(tmp_path / "pipe")


@pytest.mark.parametrize("name", ["../../x.py", "/etc/x", "a" * 5000, "kernels/\0.h", ""])
def test_attempt_in_evidence_names_no_file_elsewhere(honest: Data, name: str) -> None:
    data = copy.deepcopy(honest)
    data["attempt"][name] = ""
    with pytest.raises(
        EvidenceError,
        match=r"leads out of|not a valid file name in an attempt|is no file of an attempt",
    ) as caught:
        parse_evidence(data)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "forge",
    [
        _set("task", "source", to=None),
        _set("task", "entry", to=[1]),
        _set("task", "imported", to=7),
        _set("verdict", "seeds", 0, to=-1),
        _set("verdict", "draws", 0, "seed", to=1 << 200),
    ],
)
def test_invalid_values_are_refused_before_judging(
    honest: Data, forge: Callable[[Data], Any]
) -> None:
    data = copy.deepcopy(honest)
    forge(data)
    with pytest.raises(EvidenceError, match="incomplete or malformed"):
        parse_evidence(data)
