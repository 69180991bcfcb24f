"""A run starts with the ladder, and its best rung is the result if no kernel beats it.

The reference sleeps 20 ms, or 2 ms with weights in channels_last, so one rung is surely faster on a
busy machine as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cuagent.agent import (
    HOOKS,
    TOOLS,
    Budget,
    Run,
    Stop,
    resume_run,
    run_agent,
    start_at_ladder,
    start_run,
    undo,
)
from cuagent.agent.ladder import bounds_of
from cuagent.events import Event, LadderMeasured, RunEnded
from cuagent.expert.search.outcomes import Bounds
from cuagent.judge import LocalJudge
from cuagent.judgement import Result, result_of
from cuagent.measure.rungs import Ladder, Rung
from cuagent.measure.timing import timer
from cuagent.models.scripted import ScriptedModel
from cuagent.record import ladder_of, read_records
from cuagent.task import load_task
from cuagent.timing import Effort, Ratio
from cuagent.worker import ForkServer

pytestmark = pytest.mark.slow

SOURCE = """\
import time
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(4, 4, 3)

    def forward(self, x):
        quick = self.conv.weight.is_contiguous(memory_format=torch.channels_last)
        time.sleep(0.002 if quick else 0.02)
        return self.conv(x)


def get_inputs():
    return [torch.rand(2, 4, 8, 8)]


def get_init_inputs():
    return []
"""
RUNGS = ("eager", "eager+channels_last")
SUBMIT = {"calls": [{"name": "submit", "arguments": {}}]}
LIST = {"calls": [{"name": "bash", "arguments": {"command": "ls"}}]}
FROM_THE_LADDER = (start_at_ladder, *HOOKS)


@pytest.fixture(scope="module")
def judge(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[LocalJudge]:
    folder = tmp_path_factory.mktemp("task")
    (folder / "conv.py").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setitem(timer.BUDGET_S, Effort.RECORD, 3.0)  # the fewest repeats allowed
        patch.setattr("cuagent.measure.ladder.rungs_of", lambda *_: RUNGS)
        for module in ("ladder", "rungs"):  # nothing is compiled here
            patch.setattr(f"cuagent.measure.{module}.COMPILE", RUNGS[1])
        task = load_task(str(folder / "conv.py"), device="cpu")
        with LocalJudge(task, fork_server=fork_server) as opened:
            yield opened


@pytest.fixture
def run(judge: LocalJudge, tmp_path: Path) -> Run:
    root = tmp_path / "runs"
    return start_run(judge.task, judge, model="scripted", budget=Budget(steps=5), root=root)


def test_best_rung_is_the_result_without_a_kernel(run: Run) -> None:
    events: list[Event] = []
    model = ScriptedModel([SUBMIT])
    assert run_agent(run, model, TOOLS, FROM_THE_LADDER, events.append) is Stop.NO_GAIN

    told = model.asked[0][-1]
    assert told.role == "user"
    assert told.content.startswith("Ways to run the module faster without a kernel:\n\neager: ")
    assert "the one to beat" in told.content.splitlines()[3]

    assert run.ladder is not None
    assert run.ladder.effort is Effort.RECORD
    assert result_of(None, run.ladder) is Result.RUNG
    quick, record = (event.ladder for event in events if isinstance(event, LadderMeasured))
    assert (quick.effort, record) == (Effort.QUICK, run.ladder)
    ended = events[-1]
    assert isinstance(ended, RunEnded)
    assert ended.summary.startswith("no kernel tried; eager+channels_last is ")
    assert ended.ladder == run.ladder
    assert ladder_of(read_records(run.folder)) == run.ladder


def test_resumed_run_keeps_ladder_and_shows_it_once(run: Run) -> None:
    run.budget = Budget(steps=1)
    run_agent(run, ScriptedModel([LIST]), TOOLS, FROM_THE_LADDER)
    run.log.close()
    again = resume_run(run.folder, run.task, run.judge, model="scripted")
    assert again.ladder == run.ladder
    model = ScriptedModel([SUBMIT])
    run_agent(again, model, TOOLS, FROM_THE_LADDER)
    assert sum(m.data.get("from") == "ladder" for m in model.asked[0]) == 1
    again.log.close()


def test_undo_keeps_the_ladder(run: Run) -> None:
    run.budget = Budget(steps=1)
    run_agent(run, ScriptedModel([LIST]), TOOLS, FROM_THE_LADDER)
    assert undo(run) is not None
    assert run.messages[-1].data.get("from") == "ladder"


def test_failed_model_ends_ladder_measurements(run: Run) -> None:
    events: list[Event] = []
    model = ScriptedModel([])
    assert run_agent(run, model, TOOLS, FROM_THE_LADDER, events.append) is Stop.MODEL_FAILED
    assert sum(isinstance(event, LadderMeasured) for event in events) == 1


def test_attempt_is_timed_against_the_best_rung(run: Run) -> None:
    text = SOURCE.replace("class Model(", "class ModelNew(").replace("0.002", "0.015")
    slow = [
        {"name": "write", "arguments": {"path": "model_new.py", "text": text}},
        {"name": "verify", "arguments": {}},
    ]
    run_agent(run, ScriptedModel([{"calls": slow}]), TOOLS, FROM_THE_LADDER)
    (tried,) = run.tried
    gain = tried.judgement.gain
    assert gain is not None, tried.judgement.verdict
    assert gain.rung == "eager+channels_last"
    assert gain.free.value * gain.kernel.value == pytest.approx(gain.end_to_end.value)
    assert not tried.judgement.beats_best_rung


def test_attempt_that_surely_loses_is_not_timed_for_the_record(run: Run) -> None:
    text = SOURCE.replace("class Model(", "class ModelNew(").replace("0.02)", "0.06)")
    text = text.replace("0.002 if", "0.06 if")
    slow = [
        {"name": "write", "arguments": {"path": "model_new.py", "text": text}},
        {"name": "verify", "arguments": {}},
        *SUBMIT["calls"],
    ]
    stop = run_agent(run, ScriptedModel([{"calls": slow}]), TOOLS, FROM_THE_LADDER)
    assert stop is Stop.NO_GAIN
    assert run.settled == {}
    assert "is surely slower than eager" in run.messages[-1].content
    assert run.ladder is not None
    assert run.ladder.effort is Effort.RECORD, "the best rung is the result, so it is confirmed"
    (tried,) = run.tried
    assert result_of(tried.judgement, run.ladder) is Result.RUNG


@pytest.mark.parametrize(
    ("error", "in_tf32", "is_exact"),
    [
        (2.3e-10, False, False),
        (3.7e-8, False, True),
        (1.6e-6, False, True),
        (5.4e-6, True, False),
        (1e-3, True, False),
    ],
)
def test_the_references_error_says_if_its_products_are_in_tf32(
    error: float, in_tf32: bool, is_exact: bool
) -> None:
    same = Ratio(1.0, 1.0, 1.0)
    eager = Rung("eager", 1e-3, same, error, True, 1.0, None, True)
    ladder = Ladder("task", "match", "a device", {}, (eager,), 1.0)
    bounds = bounds_of(ladder)["bounds"]
    assert (bounds["in_tf32"], bounds["is_exact"]) == (in_tf32, is_exact)
    assert Bounds(**bounds).in_tf32 is in_tf32
    assert Bounds(**bounds).is_exact is is_exact
