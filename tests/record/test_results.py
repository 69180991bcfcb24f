"""The schema of the JSON results: golden files, units in the keys, old logs stay readable.

After a deliberate change: `python tests/record/test_results.py` writes the golden files again.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from cuagent import events, timing, verdict
from cuagent.build import result as build_result
from cuagent.build.result import Build, Diagnostic, KernelResources, Library
from cuagent.build.vectors import Loop
from cuagent.judgement import Judgement
from cuagent.measure import rungs as rungs_module
from cuagent.measure.profile import profile as profile_module
from cuagent.measure.profile.counters import METRICS, Counters
from cuagent.measure.profile.profile import Cost, Profile
from cuagent.measure.roofline import ceilings as ceilings_module
from cuagent.measure.roofline.ceilings import Ceilings
from cuagent.measure.roofline.model import OperatorWork, Roofline, Work
from cuagent.measure.rungs import Gain, Ladder, Rung
from cuagent.message import Usage
from cuagent.record import judgement_of, ladder_of, public, result
from cuagent.record.results import COUNTERS, KEYS
from cuagent.score import Score
from cuagent.task.task import Precision
from cuagent.timing import Arm, Effort, Floor, Ratio, Timing
from cuagent.verdict import Draw, Reason, RuleResult, Verdict
from cuagent.verify.domain import Domain, TensorForm

GOLDEN = Path(__file__).with_name("results")
UNITLESS = {"seconds", "median", "time", "memory", "busy", "gap", "cost", "copy"}
"""Names of quantities without their units."""

BUILT = Build(
    "a1",
    (Library("kernels/x.cu", Path("x.so"), "k", True, 0.5, (KernelResources("k", 32, 0, 0, 0),)),),
    (Diagnostic("kernels/x.cu", 3, "unused", "int i;", "warning"),),
    True,
    1.5,
)
TIMING = Timing(
    (Arm("candidate", 1e-5, (1e-5, 2e-5), None, "", (2,), 1e-7), Arm("eager", 2e-5, (2e-5,), 2.5)),
    {"eager": Ratio(2.0, 1.75, 2.25)},
    Effort.QUICK,
    "a device",
    1.25,
    busy=0.25,
    floor=Floor(5e-6, "memory", 4e-6),
    versions={"torch": "2"},
    free={"compile": Ratio(1.5, 1.25, 1.75)},
    apart=(0.5,),
)
VERDICT = Verdict(
    True,
    Reason.ACCEPTED,
    "",
    "t1",
    "a1",
    RuleResult(True, 0.25),
    RuleResult(True, 0.5),
    Precision.MATCH,
    (Draw("normal", 1, 1e-6, 1e-7, 0.5, True, rms_bound=2e-7),),
    "landlock",
    {"worker": 0.5, "total": 1.5},
    ("a note",),
    (1, 2),
    (3,),
    "",
    {"torch": "2"},
)
ONE = Ratio(1.0, 1.0, 1.0)
JUDGEMENT = Judgement(
    "a1",
    BUILT,
    VERDICT,
    TIMING,
    Score(2, 2.0, None),
    Gain("eager", ONE, Ratio(2.0, 1.75, 2.25), Ratio(2.0, 1.75, 2.25), None),
    Domain("cpu", ("x",), "{}", (TensorForm("float32", (4, 8), (8, 1)),), "[]"),
)
LADDER = Ladder(
    "t1",
    "match",
    "a device",
    {"torch": "2"},
    (Rung("eager", 2e-5, ONE, 1e-7, True, 0.5, 1 << 20, True),),
    12.5,
    ("a note",),
    floor=Floor(5e-6, "memory", 4e-6),
    when=1e9,
    busy=0.25,
)
ROOFLINE = Roofline(
    Work(1024, 512, 0, 256, {"softmax": OperatorWork(1, 1536, 0)}),
    Ceilings("a device", 1e9, 1e9, 0.0, 0.0),
    "fp32",
)
PROFILE = Profile(
    "reference",
    1e-5,
    (Cost("softmax", 1.0, 1e-5, 1.0, 1e8, None),),
    (Cost("kernel", 1.0, 5e-6, 1.0, None, 1e9, 1e-6),),
    ROOFLINE,
    ROOFLINE.work,
    5e-6,
    1.0,
    2,
    1 << 20,
    (KernelResources("k", 32, 0, 0, 0),),
    (Counters("k", dict.fromkeys(METRICS, 1.0), (("wait", 0.5),)),),
    "",
    (Loop("x.cpp", 3, 32),),
    0.25,
)
OPTIMIZE = {
    "run": "r1",
    "folder": Path("runs/r1"),
    "task": "model.py",
    "device": "cpu",
    "stop": "submitted",
    "result": "kernel",
    "gain": True,
    "summary": "text",
    "attempt": 1,
    "best": JUDGEMENT,
    "gain_parts": JUDGEMENT.gain,
    "ladder": LADDER,
    "steps": 3,
    "duration_s": 60.5,
    "stages": {"opening_s": 2.5},
    "tokens": Usage(1, 2, 3, 4, 5),
    "cost_usd": 0.5,
    "unpriced_calls": 0,
    "error": None,
}
RESULTS: dict[str, Any] = {
    "verify": result("verify", JUDGEMENT, duration_s=2.5),
    "baseline": result("baseline", LADDER),
    "profile": result("profile", PROFILE),
    "compile": result("compile", BUILT),
    "optimize": result("optimize", OPTIMIZE),
}


@pytest.mark.parametrize("name", RESULTS)
def test_result_is_as_in_the_golden_file(name: str) -> None:
    assert RESULTS[name] == json.loads((GOLDEN / f"{name}.json").read_text())


@pytest.mark.parametrize("name", RESULTS)
def test_no_key_of_a_quantity_lacks_its_unit(name: str) -> None:
    assert not UNITLESS & set(_keys(RESULTS[name]))


def _keys(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [key for name, item in value.items() for key in (name, *_keys(item))]
    return [key for item in value for key in _keys(item)] if isinstance(value, list) else []


def test_each_renamed_field_exists() -> None:
    from cuagent.measure.roofline import model

    modules = (
        events, timing, verdict, build_result, rungs_module, profile_module, ceilings_module, model
    )  # fmt: skip
    for name, keys in KEYS.items():
        kind = next(getattr(module, name) for module in modules if hasattr(module, name))
        assert is_dataclass(kind)
        assert keys.keys() <= {field.name for field in fields(kind)}
    assert COUNTERS.keys() <= METRICS.keys()


def test_numbers_that_json_lacks_become_strings() -> None:
    failed = Rung("compile", float("nan"), None, None, False, None, None, True, "failed")
    assert public(failed)["median_s"] == "nan"
    assert json.dumps(public([Ratio(1.0, 1.0, float("inf"))]), allow_nan=False)


def test_log_of_version_1_stays_readable() -> None:
    lines = (GOLDEN / "log_v1.jsonl").read_text().splitlines()
    judged, measured = (json.loads(line) for line in lines)
    assert judgement_of(judged) == JUDGEMENT
    assert ladder_of([measured]) == LADDER


def _write() -> None:
    for name, told in RESULTS.items():
        (GOLDEN / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    _write()
