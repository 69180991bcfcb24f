"""Tools that judge, on a real task with the real compiler and judge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scale_task import KERNEL, MODULE, SOURCE

from cuagent.agent import TOOLS, Budget, Run, Stop, run_agent, start_run
from cuagent.agent.hooks import HOOKS
from cuagent.attempt import Attempt
from cuagent.audit.audit import audit
from cuagent.events import Event, Judged, RunEnded
from cuagent.judge import LocalJudge
from cuagent.measure.timing import timer
from cuagent.models.scripted import ScriptedModel
from cuagent.record import find_run, read_records
from cuagent.record.evidence import read_evidence
from cuagent.task import load_task
from cuagent.timing import Effort
from cuagent.verdict import FIRST_DRAWS, Reason, Verdict
from cuagent.verify.standing import LARGE_CALL_BYTES, StandingVerdicts
from cuagent.worker import ForkServer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def judge(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[LocalJudge]:
    file = tmp_path_factory.mktemp("task") / "scale.py"
    file.write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(timer.BUDGET_S, Effort.RECORD, 3.0)  # the fewest repeats allowed
        with LocalJudge(load_task(str(file), device="cpu"), fork_server=fork_server) as judge:
            yield judge


@pytest.fixture
def judged_run(judge: LocalJudge, tmp_path: Path) -> Run:
    budget = Budget(steps=20)
    return start_run(judge.task, judge, model="scripted", budget=budget, root=tmp_path / "runs")


def write(path: str, text: str) -> dict[str, Any]:
    return {"name": "write", "arguments": {"path": path, "text": text}}


def edit(path: str, old: str, new: str) -> dict[str, Any]:
    return {"name": "edit", "arguments": {"path": path, "old": old, "new": new}}


def tool(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def answers(run: Run, name: str) -> list[Any]:
    calls = {c.id: c.name for m in run.messages for c in m.tool_calls}
    return [
        m
        for m in run.messages
        if m.role == "tool"
        and calls[m.tool_call_id or ""] == name
        and not m.content.startswith("not executed")
    ]


def test_attempt_that_must_be_faster_is_timed_before_it_is_verified(judge: LocalJudge) -> None:
    wrong = KERNEL.replace("1.0f", "1.5f")
    slow_module = (
        MODULE.replace("    def forward", "    def once")
        + """
    def forward(self, *args):
        for _ in range(300):
            result = self.once(*args)
        return result
"""
    )
    right = Attempt((("kernels/scale.cpp", KERNEL), ("model_new.py", MODULE)))
    fast = judge.judge(right).timing
    assert fast is not None
    slow = Attempt((("kernels/scale.cpp", KERNEL), ("model_new.py", slow_module)))
    refused = judge.judge(slow, than=fast)
    assert refused.verdict.reason is Reason.TOO_SLOW
    assert refused.timing is not None
    assert not refused.verdict.seeds
    assert refused.verdict.tier == judge.referee.stamp()
    fast_and_wrong = Attempt((("kernels/scale.cpp", wrong), ("model_new.py", MODULE)))
    assert judge.judge(fast_and_wrong, than=refused.timing).verdict.reason is Reason.WRONG_VALUES
    accepted = judge.judge(right, than=refused.timing)
    assert accepted.verdict.accepted
    assert accepted.timing is not None


def test_verdict_made_ahead_is_used_once(judge: LocalJudge) -> None:
    right = Attempt((("kernels/scale.cpp", KERNEL), ("model_new.py", MODULE)))
    judge.verify_ahead(right)
    first, second = (judge.judge(right, Effort.RECORD).verdict for _ in range(2))
    assert first.accepted
    assert second.accepted
    assert first.seeds != second.seeds
    ahead = Attempt((("kernels/scale.cpp", KERNEL + "// other"), ("model_new.py", MODULE)))
    judge.verify_ahead(ahead)
    assert judge.judge(right, Effort.RECORD).verdict.attempt == right.digest


def test_draws_of_a_large_task_are_not_repeated_for_the_record(
    judge: LocalJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts the verdicts of each judgement, as if the tensors were large."""
    monkeypatch.setattr(judge, "_standing", StandingVerdicts(LARGE_CALL_BYTES))
    counts: dict[str, int] = {}

    def counted(owner: object, name: str) -> None:
        original = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            counts[name] = counts.get(name, 0) + 1
            return original(*args, **options)

        monkeypatch.setattr(owner, name, call)

    counted(judge.referee, "begin")
    right = Attempt((("kernels/scale.cpp", KERNEL + "// large"), ("model_new.py", MODULE)))
    quick = judge.judge(right).verdict
    in_search = dict(counts)
    recorded = judge.judge(right, Effort.RECORD)
    assert recorded.verdict.accepted
    assert recorded.verdict.seeds == quick.seeds
    assert FIRST_DRAWS in recorded.verdict.notes
    assert recorded.timing is not None
    assert recorded.timing.effort is Effort.RECORD
    assert counts["begin"] == in_search["begin"] == 1
    assert judge.judge(right, Effort.RECORD).verdict.seeds != quick.seeds


def test_fault_of_the_machine_ahead_of_the_record_is_no_verdict(
    judge: LocalJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Attempt((("kernels/scale.cpp", KERNEL), ("model_new.py", MODULE)))
    fault = Verdict(False, Reason.INFRASTRUCTURE, "no memory", "t", right.digest)
    with monkeypatch.context() as patch:
        patch.setattr(judge, "_verdict", lambda *_: (judge.build(right), fault))
        judge.verify_ahead(right)
    assert judge.judge(right, Effort.RECORD).verdict.accepted


def test_run_from_compile_error_to_result_of_record(judged_run: Run) -> None:
    events: list[Event] = []
    broken, wrong = KERNEL.replace("2.0f + 1.0f;", "2.0f + 1.0f"), KERNEL.replace("1.0f", "1.5f")
    model = ScriptedModel(
        [
            {"calls": [write("model_new.py", MODULE), write("kernels/scale.cpp", broken)]},
            {"calls": [tool("compile")]},
            {"calls": [write("kernels/scale.cpp", wrong), tool("verify")]},
            {"calls": [edit("kernels/scale.cpp", "1.5f", "1.0f"), tool("verify")]},
            {"calls": [tool("profile")]},
            {"calls": [tool("submit", attempt=1)]},
            # a busy machine can cause a clock contradiction: then verify and submit again
            *[{"calls": [tool("submit", message="one pass"), tool("verify")]}] * 4,
        ]
    )
    stop = run_agent(judged_run, model, emit=events.append)

    compile = answers(judged_run, "compile")[0]
    assert compile.is_error
    assert compile.content.startswith("FAILED\nkernels/scale.cpp:")
    assert "expected" in compile.content
    assert compile.data["diagnostics"][0]["file"] == "kernels/scale.cpp"

    refused, accepted, *_ = answers(judged_run, "verify")
    assert refused.content.startswith("REJECTED attempt 1: wrong values")
    assert "next: they are off by one amount: look for a bias" in refused.content
    assert refused.data["accepted"] is False
    assert refused.data["reward"] == -1
    assert accepted.content.startswith("ACCEPTED attempt 2: ")
    assert accepted.data["attempt"] == 2
    assert set(accepted.data["ratios"]) == {"eager", "compile"}
    assert accepted.data["ratios"]["eager"].keys() == {"value", "low", "high"}
    assert set(accepted.data["times"]) == {"candidate", "eager", "compile"}
    assert all(len(m.content.splitlines()) <= 40 for m in (refused, accepted))

    profile = answers(judged_run, "profile")[0]
    assert profile.content.startswith("candidate, which is attempt 2:\n")
    assert not profile.is_error

    first, *_, last = answers(judged_run, "submit")
    assert "attempt 1 is not an accepted attempt; accepted are 2" in first.content
    assert last.data["ended"] is True, last.content
    assert last.data["message"] == "one pass"
    assert stop in (Stop.SUBMITTED, Stop.NO_GAIN)
    assert judged_run.final is not None
    assert judged_run.final.n == 2
    domain = judged_run.final.judgement.domain
    assert domain is not None
    assert domain.names == ("x",)
    assert len(domain.tensors) == 1
    assert isinstance(events[-1], RunEnded)
    assert sum(isinstance(e, Judged) for e in events) >= 3

    records = read_records(judged_run.folder)
    attempts = [r for r in records if r["type"] == "attempt"]
    assert [r["n"] for r in attempts] == [1, 2]
    assert all(len(r["commit"]) == 40 for r in attempts)
    assert attempts[1]["files"]["kernels/scale.cpp"] == KERNEL
    efforts = [(r["attempt"], r["effort"]) for r in records if r["type"] == "judgement"]
    assert efforts[:3] == [(1, "quick"), (2, "quick"), (2, "record")]
    assert efforts[-1] == (2, "record")
    assert records[-1]["attempt"] == 2
    assert records[-1]["rewards"]["milestone"]["score"] == judged_run.final.judgement.score.reward
    assert find_run(None, judged_run.folder.path.parent) == judged_run.folder
    kept = {path.name: path.stat().st_size for path in judged_run.folder.evidence.iterdir()}
    assert kept.keys() == {"attempt-2-quick.json", "attempt-2-record.json"}
    assert all(size < 1 << 20 for size in kept.values())


def test_best_attempt_is_judged_again_at_a_limit(judged_run: Run) -> None:
    judged_run.budget = Budget(steps=1)
    calls = [write("model_new.py", MODULE), write("kernels/scale.cpp", KERNEL), tool("verify")]
    assert run_agent(judged_run, ScriptedModel([{"calls": calls}]), TOOLS, HOOKS) is Stop.STEP_LIMIT
    records = read_records(judged_run.folder)
    efforts = [r["effort"] for r in records if r["type"] == "judgement"]
    assert efforts == ["quick", "record"]
    end = records[-1]
    assert end["attempt"] == (judged_run.final.n if judged_run.final else None)
    assert ("measured afresh" in end["summary"]) == (judged_run.final is not None)
    found = audit(read_evidence(judged_run.folder.evidence / "attempt-1-record.json"))
    assert found.holds, found.contrary


def test_baseline_times_the_reference_without_a_kernel(
    judged_run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # one rung is enough here; a separate cache keeps it from later runs
    monkeypatch.setattr("cuagent.measure.ladder.rungs_of", lambda *_: ("eager",))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = ScriptedModel([{"calls": [tool("baseline")]}, {"calls": [tool("submit")]}])
    run_agent(judged_run, model)
    (result,) = answers(judged_run, "baseline")
    assert not result.is_error, result.content
    assert set(result.data["times"]) == {"eager"}
    assert result.content.startswith("eager: ")
    assert "the one to beat" in result.content
    assert judged_run.tried == []
    assert judged_run.device_seconds > 0


def test_lost_judge_ends_the_run_without_a_reward(
    judge: LocalJudge, fork_server: ForkServer, tmp_path: Path
) -> None:
    calls = [write("model_new.py", MODULE), write("kernels/scale.cpp", KERNEL), tool("verify")]
    # Not the shared judge, because the test ends its processes.
    with LocalJudge(judge.task, fork_server=fork_server) as lost:
        run = start_run(lost.task, lost, model="scripted", root=tmp_path / "runs")
        lost.referee.close()
        stop = run_agent(run, ScriptedModel([{"calls": [*calls, tool("glob")]}]))
    assert stop is Stop.JUDGE_FAILED
    assert run.error
    ended = [m.content for m in run.messages if m.role == "tool"][2:]
    assert ended == ["no result: the judge failed"] * 2
    end = read_records(run.folder)[-1]
    assert end["rewards"]["milestone"]["score"] is None


def test_kernels_compile_before_there_is_a_module(judged_run: Run) -> None:
    broken = KERNEL.replace("2.0f + 1.0f;", "2.0f + 1.0f")
    model = ScriptedModel(
        [
            {"calls": [write("kernels/scale.cpp", broken), tool("compile")]},
            {"calls": [edit("kernels/scale.cpp", "2.0f + 1.0f", "2.0f + 1.0f;"), tool("compile")]},
            {"calls": [tool("verify")]},
        ]
    )
    run_agent(judged_run, model)
    failed, compiled = answers(judged_run, "compile")
    assert "kernels/scale.cpp:5: error: expected" in failed.content
    assert compiled.content.startswith("OK: 1 compiled")
    assert "no model_new.py" in answers(judged_run, "verify")[0].content


def test_accepted_attempt_is_not_refused_for_its_speed(
    judged_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the result if the best attempt fails for the record."""

    def too_slow(judge: LocalJudge, attempt: Attempt, *_: object) -> Verdict:
        return Verdict(False, Reason.TOO_SLOW, "", judge.task.digest, attempt.digest)

    monkeypatch.setattr(LocalJudge, "_too_slow", too_slow)
    model = ScriptedModel(
        [
            {"calls": [write("kernels/scale.cpp", KERNEL), write("model_new.py", MODULE)]},
            {"calls": [tool("verify")]},
            {"calls": [tool("verify", only_if_faster=True)]},
            {"calls": [edit("kernels/scale.cpp", KERNEL, KERNEL + "// other")]},
            {"calls": [tool("verify", only_if_faster=True)]},
            {"calls": [tool("submit", attempt=1)]},
        ]
    )
    run_agent(judged_run, model, hooks=HOOKS)
    reasons = [t.judgement.verdict.reason for t in judged_run.tried]
    assert reasons == [Reason.ACCEPTED, Reason.TOO_SLOW]
