"""Scaling: what two runs say together, who gets which processors, whose words an engine gives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from train_scaling import share
from train_scaling_compare import SAME, compared
from train_scaling_parts import TeacherEngine, tokenizer
from train_throughput import PRESETS, decoder

from cuagent.attempt import Attempt
from cuagent.message import Message
from cuagent.task import Device, Task
from cuagent.training.demo.gym import make_chains, make_tasks, opening
from cuagent.training.engines.engine import Request
from cuagent.training.policy.chat import Chat

Row = dict[str, Any]


def run_of(processes: int, seconds: Sequence[tuple[float, float]], **more: object) -> Row:
    """Return a result of `processes`; `seconds` are (rollouts, update) of each iteration."""
    rows = [
        {
            "seconds": played + updated,
            "rollouts": played,
            "updates": updated,
            "episodes": 48 * processes,
            "of each process": [{"peak GiB": 20.0 + at + n} for n in range(processes)],
        }
        for at, (played, updated) in enumerate(seconds)
    ]
    found: Row = dict.fromkeys(SAME, "as ever")
    return found | {"processes": processes, "iterations": rows, "replicas are equal": True} | more


# -- what two runs say


def test_as_long_with_four_times_the_processes_and_episodes_is_an_efficiency_of_one() -> None:
    found = compared(run_of(1, [(8.0, 2.0)]), run_of(4, [(8.0, 2.0)]))
    for part in ("whole", "rollouts", "updates"):
        assert found[f"efficiency, {part}"] == {"median": 1.0, "least": 1.0, "most": 1.0}


def test_an_efficiency_is_of_medians_with_the_extremes_of_both_runs_beside_it() -> None:
    few = run_of(1, [(7.0, 1.0), (8.0, 2.0), (9.0, 3.0)])
    many = run_of(4, [(9.0, 3.0), (10.0, 2.5), (11.0, 5.0)])
    found = compared(few, many)
    assert found["efficiency, whole"] == {
        "median": pytest.approx(10.0 / 12.5),
        "least": pytest.approx(8.0 / 16.0),
        "most": pytest.approx(12.0 / 12.0),
    }
    assert found["efficiency, rollouts"]["median"] == pytest.approx(0.8)
    assert found["efficiency, updates"]["median"] == pytest.approx(2.0 / 3.0, abs=1e-4)
    assert found["median"][1]["episodes a second"] == pytest.approx(192 / 12.5)
    assert found["peak GiB of each process"] == [[22.0], [22.0, 23.0, 24.0, 25.0]]


def test_episodes_that_were_lost_do_not_count_as_played() -> None:
    many = run_of(4, [(8.0, 2.0)])
    many["iterations"][0]["episodes"] -= 96
    assert compared(run_of(1, [(8.0, 2.0)]), many)["efficiency, whole"]["median"] == 0.5


@pytest.mark.parametrize("name", SAME)
def test_runs_that_differ_in_more_than_their_processes_are_not_compared(name: str) -> None:
    with pytest.raises(SystemExit, match=name):
        compared(run_of(1, [(8.0, 2.0)]), run_of(4, [(8.0, 2.0)], **{name: "another"}))


def test_a_run_that_only_warmed_up_is_not_compared() -> None:
    with pytest.raises(SystemExit, match="warmed up"):
        compared(run_of(1, [(8.0, 2.0)]), run_of(4, []))


# -- processors


def test_a_process_has_as_many_processors_however_many_others_run() -> None:
    shares = [share(range(66), 4, number, 16) for number in range(4)]
    assert [len(s) for s in shares] == [16, 16, 16, 16]
    assert len({processor for s in shares for processor in s}) == 64
    assert share(range(192), 4, 3, 16) == list(range(48, 64))
    assert [share(range(2), 4, number, 16) for number in range(3)] == [[0], [1], [0]]


# -- the engine


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def chat() -> Chat:
    return tokenizer(PRESETS["tiny"].vocabulary)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    (found,) = make_tasks(tmp_path, make_chains(1, 1, 0), Device.CPU, 8)
    return found


@pytest.fixture
def engine(chat: Chat, task: Task) -> TeacherEngine:
    return TeacherEngine(decoder(PRESETS["tiny"]).eval(), chat, [task])


def first(engine: TeacherEngine, task: Task, seed: int, most: int = 999) -> Request:
    return Request(engine.chat.prompt_ids(opening(task), ()), most, seed)


def test_the_turns_are_the_teachers_and_every_kernel_is_another(
    engine: TeacherEngine, task: Task
) -> None:
    def written(seed: int) -> Attempt:
        write, verify = engine.chat.parse(engine.says(first(engine, task, seed))).tool_calls
        assert (write.name, verify.name in ("verify", "check")) == ("write", True)
        arguments = json.loads(write.arguments)
        return Attempt(((arguments["path"], arguments["text"]),))

    seeds = range(40)  # more than the teacher has forms
    assert len({written(seed).digest for seed in seeds}) == len(seeds)
    assert written(7) == written(7)


@pytest.mark.parametrize("verdict", ["ACCEPTED attempt 1", "REJECTED attempt 1: wrong values"])
def test_what_was_judged_is_submitted(engine: TeacherEngine, task: Task, verdict: str) -> None:
    request = first(engine, task, 3)
    heard = engine.chat.continuation_ids(
        [Message("tool", "wrote"), Message("tool", verdict)], ended=True
    )
    later = replace(request, prompt=request.prompt + engine.says(request) + heard)
    assert [call.name for call in engine.chat.parse(engine.says(later)).tool_calls] == ["submit"]


def test_the_actor_decodes_a_token_for_each_of_the_teachers(
    engine: TeacherEngine, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, forward = [], engine.local.actor.forward

    def counted(**arguments: Any) -> Any:
        steps.append(arguments["input_ids"].shape)
        return forward(**arguments)

    monkeypatch.setattr(engine.local.actor, "forward", counted)
    requests = [first(engine, task, seed) for seed in (1, 2)]
    found = engine.sample(requests)
    assert [s.ids for s in found] == [engine.says(request) for request in requests]
    assert len(steps) == max(len(s.ids) for s in found)
    assert engine.decoded == sum(len(s.ids) for s in found)
    for s in found:
        assert len(s.logprobs) == len(s.ids)
        assert -100.0 < min(s.logprobs) <= max(s.logprobs) < 0.0
        assert not s.cut


def test_a_turn_too_long_for_its_room_is_cut(engine: TeacherEngine, task: Task) -> None:
    (found,) = engine.sample([first(engine, task, 1, most=12)])
    assert (len(found.ids), len(found.logprobs), found.cut) == (12, 12, True)
