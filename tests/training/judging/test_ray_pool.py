"""Test verdicts by actors of a real Ray on this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from dictated import SOURCE

from cuagent.attempt import Attempt
from cuagent.task import load_task
from cuagent.task.task import Task
from cuagent.training.config import ConfigError
from cuagent.training.judging.judge_process import PoolError
from cuagent.training.judging.ray_pool import RayPool, Seats

pytestmark = pytest.mark.slow

RIGHT = """\
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.clamp(x, min=0) * 2
"""


@pytest.fixture(scope="module")
def ray() -> Iterator[None]:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    # Like `ray.init`, without autoscaler and log monitor.
    node = {"num_cpus": 1, "include_dashboard": False, "include_log_monitor": False}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "no_monitor": True})
    ray.init(cluster.address, log_to_driver=False, namespace="t")
    yield
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def cpu_task(tmp_path: Path) -> Task:
    path = tmp_path / "double_relu.py"
    path.write_text(SOURCE)
    return load_task(str(path), device="cpu")


def attempt(text: str) -> Attempt:
    return Attempt((("model_new.py", text),))


@pytest.mark.usefixtures("ray")
def test_actor_judges_like_local_pool(cpu_task: Task) -> None:
    with RayPool(1, None, gpus=False) as pool:
        judge = pool.judge_for(cpu_task)
        assert judge.build(attempt(RIGHT)).ok
        right = judge.judge(attempt(RIGHT))
        wrong = judge.judge(attempt(RIGHT.replace("* 2", "* 3")))
        again = judge.judge(attempt(RIGHT))
        assert (pool.judged, pool.cache_hits) == (2, 1)
        assert judge.profile(attempt(RIGHT), counters=False).lines()
    assert right.verdict.accepted
    assert not wrong.verdict.accepted
    assert again == right


@pytest.mark.usefixtures("ray")
def test_named_actors_are_shared_and_dead_actor_raises_pool_error(cpu_task: Task) -> None:
    import ray

    first, second = (RayPool(1, None, gpus=False, name="seat") for _ in range(2))
    with first:
        pass  # closing it must not stop shared actors
    assert first._actors[0] == second._actors[0]
    ray.kill(first._actors[0])
    with pytest.raises(PoolError, match="a Ray judge actor failed"):
        second.judge(cpu_task, attempt(RIGHT))


@pytest.mark.usefixtures("ray")
def test_crashed_actor_is_replaced(cpu_task: Task) -> None:
    import ray

    with RayPool(1, None, gpus=False) as pool:
        assert pool.judge(cpu_task, attempt(RIGHT)).verdict.accepted
        ray.kill(pool._actors[0], no_restart=False)
        wrong = pool.judge(cpu_task, attempt(RIGHT.replace("* 2", "* 3")))
        assert not wrong.verdict.accepted


def test_missing_ray_is_reported_with_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'cuagent\[train-ray\]'"):
        RayPool(1)


def test_tasks_are_dealt_evenly_and_alike_in_every_process() -> None:
    digests = [f"{n * 7919 % 1000:08x}" for n in range(12)]
    one, two = Seats(4, digests), Seats(4, digests[::-1])
    assert sorted(one.of(d) for d in digests) == sorted(list(range(4)) * 3)
    assert [one.of(d) for d in digests] == [two.of(d) for d in digests]
    late = [one.of(f"late{n}") for n in range(4)]
    assert sorted(late) == [0, 1, 2, 3]
    assert [one.of(f"late{n}") for n in range(4)] == late
