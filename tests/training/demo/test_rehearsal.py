"""Test the rule that judges kernels by their text."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cuagent.attempt import Attempt
from cuagent.task import Device, Task
from cuagent.training.data.segments import Segment, read_episodes
from cuagent.training.demo.demo import TOOLS
from cuagent.training.demo.demonstrations import demonstrate
from cuagent.training.demo.gym import chain_of, make_chains, make_tasks, opening
from cuagent.training.demo.presets import DemoConfig, for_test
from cuagent.training.demo.rehearsal import Rehearsal
from cuagent.training.demo.teacher import CPU_ELEMENTS, CPU_ROWS, ErrorRates, Teacher, initial_files
from cuagent.training.judging.judge_process import PoolError
from cuagent.training.rollout.episode import Play

if TYPE_CHECKING:
    from cuagent.judge_protocol import Judge


PARALLEL = "#pragma omp parallel for\n"


@pytest.fixture
def chain(tmp_path: Path) -> Task:
    return make_tasks(tmp_path, make_chains(2, 1, seed=0), Device.CPU, 8)[0]


def kernel(task: Task, loop: str, bound: str = "n", kind: str = "float") -> Attempt:
    lines = "".join(f"    {op.c}\n" for op in chain_of(task))
    text = loop.format(lines=lines, bound=bound, pragma=PARALLEL, type=kind)
    return Attempt(tuple(sorted({**initial_files(task), "kernels/f.cpp": text}.items())))


def test_rule_refuses_wrong_and_marks_slow_kernels(chain: Task) -> None:
    pool = Rehearsal()

    def reward(*form: str) -> int:
        return pool.judge(chain, kernel(chain, *form)).score.reward

    assert reward(CPU_ROWS) == 3
    assert reward(CPU_ROWS, "n", "volatile float") == 1
    assert reward(CPU_ELEMENTS) == 1
    assert reward(CPU_ROWS, "n - 1") == -1
    assert reward(CPU_ROWS) == 3
    assert (pool.judged, pool.cache_hits) == (4, 1)


def test_rule_accepts_kernels_of_errorless_teacher(chain: Task) -> None:
    flawless = ErrorRates(0, 0, 0, 0, 0)
    for seed in range(20):
        attempt = Teacher(Device.CPU, chain_of(chain), seed, flawless).attempt(initial_files(chain))
        assert Rehearsal().judge(chain, attempt).verdict.accepted


def test_order_of_teacher_episodes_does_not_depend_on_timing(chain: Task, tmp_path: Path) -> None:
    """Check the order, which determines the base policy's first batch and so all its weights."""

    class Late(Rehearsal):
        """A pool that delays the first episode until others have started."""

        asked = 0

        def judge_for(self, task: Task) -> Judge:
            self.asked += 1
            if self.asked == 1:
                time.sleep(0.3)
            return super().judge_for(task)

    def written(out: Path, pool: Rehearsal) -> list[tuple[Segment, ...]]:
        config = replace(for_test(DemoConfig()), demonstrations=12)
        play = Play(TOOLS, opening, 2, 768, 24, initial_files=initial_files)
        demonstrate(config, pool, play, [chain], [], out, lambda _: None)
        return [e.segments for e in read_episodes(out / "episodes.jsonl")]

    one, other = written(tmp_path / "a", Rehearsal()), written(tmp_path / "b", Late())
    assert len({str(segments) for segments in one}) > 6
    assert one == other


def test_rehearsal_refuses_cuda_tasks(tmp_path: Path) -> None:
    task = make_tasks(tmp_path, make_chains(1, 1, seed=0), Device.CUDA, 8)[0]
    with pytest.raises(PoolError, match="add --kernels cpu"):
        Rehearsal().judge(task, Attempt(()))
