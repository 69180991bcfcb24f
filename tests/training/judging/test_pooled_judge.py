"""Test that the judge of an episode serves every tool of the agent, through each kind of pool."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from dictated import SOURCE, SUBMIT, Dictated

from cuagent.agent.ladder import confirm_rung
from cuagent.agent.run import JudgeLost
from cuagent.agent.tools import TOOLS, Context
from cuagent.agent.tools.tool import ToolResult, execute
from cuagent.attempt import Attempt
from cuagent.message import Message, ToolCall
from cuagent.task import load_task
from cuagent.task.task import Task
from cuagent.timing import Effort
from cuagent.training.data.segments import Kind
from cuagent.training.demo.rehearsal import Rehearsal
from cuagent.training.judging.pool import JudgePool, Pool
from cuagent.training.judging.pool_server import PoolClient, serve_pool
from cuagent.training.judging.ray_pool import RayPool
from cuagent.training.policy.chat import Chat
from cuagent.training.rollout.episode import Batcher, Play, play_one, start_episode

pytestmark = pytest.mark.slow

KERNEL = """\
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.clamp(x, min=0) * 2
"""


@pytest.fixture(scope="module")
def cpu_task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    path = tmp_path_factory.mktemp("tasks") / "double_relu.py"
    path.write_text(SOURCE)
    return load_task(str(path), device="cpu")


@pytest.fixture(scope="module")
def pool() -> Iterator[JudgePool]:
    with JudgePool(Effort.GLANCE) as pool:
        yield pool


@pytest.fixture(params=["pool of this process", "client of a pool", "ray actors"])
def any_pool(pool: JudgePool, request: pytest.FixtureRequest) -> Iterator[Pool]:
    if request.param == "pool of this process":
        yield pool
        return
    if request.param == "ray actors":
        ray = pytest.importorskip("ray")
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
        with RayPool(1, Effort.GLANCE, gpus=False) as actors:
            yield actors
        ray.shutdown()
        return
    with serve_pool(pool) as address:
        yield PoolClient(address)


class Episode:
    """An episode of a policy that has all tools."""

    def __init__(self, task: Task, pool: Pool, root: Path) -> None:
        play = Play(TOOLS, lambda task: [Message("user", task.source)])
        self.run = start_episode(task, pool.judge_for(task), "policy", play, root)
        (self.run.work / "model_new.py").write_text(KERNEL)

    def call(self, name: str, **arguments: object) -> ToolResult:
        request = ToolCall("c1", name, json.dumps(arguments))
        tool = next(tool for tool in TOOLS if tool.name == name)
        return execute(request, tool, TOOLS, Context(self.run, "c1", self.run.emit))


CALLS: dict[str, dict[str, object]] = {
    "read": {"path": "model_new.py"},
    "write": {"path": "notes.txt", "text": "a\nb\n"},
    "edit": {"path": "notes.txt", "old": "a", "new": "c"},
    "multi_edit": {"edits": [{"path": "notes.txt", "old": "c", "new": "d"}]},
    "glob": {"pattern": "*.py"},
    "grep": {"pattern": "clamp"},
    "todo": {"items": [{"text": "fuse", "state": "open"}]},
    "bash": {"command": "sleep 300", "background": True},
    "bash_output": {"job": "bash-1", "wait": 0},
    "bash_kill": {"job": "bash-1"},
    "compile": {},
    "verify": {},
    "profile": {},
    "baseline": {},
    "submit": {},
}
"""Arguments of a valid call of each tool. In this order every call succeeds."""


def test_every_tool_works_in_an_episode(cpu_task: Task, any_pool: Pool, tmp_path: Path) -> None:
    assert CALLS.keys() == {tool.name for tool in TOOLS}
    episode = Episode(cpu_task, any_pool, tmp_path)
    failed = {
        name: result.text
        for name, arguments in CALLS.items()
        if (result := episode.call(name, **arguments)).is_error
    }
    assert failed == {}


def test_episode_begins_with_the_ladder(
    cpu_task: Task, pool: JudgePool, chat: Chat, tmp_path: Path
) -> None:
    play = Play(TOOLS, lambda task: [Message("user", task.source)], 2, 9000, 200, ladder=True)
    engine = Dictated(chat, [SUBMIT])
    sample = Batcher(cast(Any, engine)).sample
    judge = pool.judge_for(cpu_task)
    episode = play_one(cpu_task, judge, "p", chat, sample, play, 0, tmp_path / "r")
    prompt = chat.tokenizer.decode(list(engine.asked[0].prompt))
    assert "Ways to run the module faster without a kernel:" in prompt
    assert "eager: " in prompt
    assert [s.kind for s in episode.segments] == [Kind.PROMPT, Kind.ACTION]


def test_episode_profiles_and_measures_the_ladder(
    cpu_task: Task, any_pool: Pool, tmp_path: Path
) -> None:
    episode = Episode(cpu_task, any_pool, tmp_path)
    profile = episode.call("profile")
    assert not profile.is_error
    assert profile.text.startswith("candidate:")
    ladder = episode.call("baseline")
    assert not ladder.is_error
    assert episode.run.ladder is not None
    assert {"eager", "compile"} <= ladder.data["times"].keys()
    # A ladder of an earlier run is not used: the pool measures its own.
    assert not episode.run.judge.start_from(episode.run.ladder)
    assert confirm_rung(episode.run) == episode.run.ladder, "a reward never waits for a record"


def test_ladder_of_one_episode_does_not_change_judgements_of_others(
    cpu_task: Task, pool: JudgePool
) -> None:
    ladder = pool.measure_ladder(cpu_task)
    found = pool.judge_uncached(cpu_task, Attempt((("model_new.py", KERNEL),)), Effort.GLANCE)
    assert pool.measure_ladder(cpu_task) == ladder, "it was measured twice"
    assert found.gain is None
    assert found.timing is not None
    assert found.timing.ratios.keys() == {"eager", "compile"}


def test_pool_that_runs_no_kernels_measures_no_ladder(cpu_task: Task, tmp_path: Path) -> None:
    episode = Episode(cpu_task, Rehearsal(), tmp_path)
    with pytest.raises(JudgeLost, match="runs no kernels"):
        episode.call("baseline")
