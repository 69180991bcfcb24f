"""Test a seed in its own process: pool client, further RFT, audit, ablations."""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.nn.modules.module import register_module_forward_pre_hook
from warm_python import spawning

from cuagent.device_lock import DeviceLock
from cuagent.task import Device
from cuagent.training.config import ConfigError, configure
from cuagent.training.data.filters import filter_episodes
from cuagent.training.data.segments import Episode, RecordError, read_episodes
from cuagent.training.demo.ablation import (
    ABLATIONS,
    collapsed,
    compare_with_full,
    copy_stages,
    describe,
    run_ablations,
)
from cuagent.training.demo.audit import solution_of
from cuagent.training.demo.demo import Demo
from cuagent.training.demo.devices import training_devices
from cuagent.training.demo.presets import DemoConfig, for_test
from cuagent.training.demo.rehearsal import Rehearsal
from cuagent.training.demo.teacher import initial_files
from cuagent.training.demo.trial import (
    compare_arms,
    opened_in_background,
    run_trial,
    training_places,
)
from cuagent.training.judging.pool import JudgePool, read_judgements

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trial(
    once: Callable[[str, Callable[[Path], None]], Path], python: list[str], demo: Path
) -> Path:
    """A trial of another seed on the demo's tasks. Read only: several test processes share it."""

    def train(out: Path) -> None:
        memory = shutil.copy(demo / "judgements.pickle", out / "shared.pickle")
        # Two more teacher episodes than in the demo, so that some kernels are new.
        small = replace(for_test(DemoConfig()), cores=1, demonstrations=8, judgements=str(memory))
        with (out / "said.txt").open("w") as said, spawning(python, out.with_suffix(".python")):
            run_trial(small, [3], "cpu", out, lambda text: print(text, file=said))

    return once("trial", train)


def test_arms_are_compared_on_same_heldout_tasks(trial: Path) -> None:
    found = json.loads((trial / "trial.json").read_text())
    assert set(found["reward"]) == {"base", "rft", "ppo", "more", "best of 2 of rft"}
    assert found["heldout_tasks"] == 1
    assert found["ppo_less"]["more"]["seeds"] == [
        found["reward"]["ppo"]["mean"] - found["reward"]["more"]["mean"]
    ]
    assert found["audit"][0]["reward_again"] == found["audit"][0]["reward_before"]
    assert "last quartile" in (trial / "seed-3" / "report.html").read_text()
    together = (trial / "report.html").read_text()
    assert "<title>seed-3</title>" in together
    assert "<li>ppo minus rft" in together


def test_judgements_are_cached_across_runs(trial: Path, demo: Path) -> None:
    """Check that kernels of an earlier run are not judged again."""
    [counts] = re.findall(r"(\d+) kernels judged, (\d+) from", (trial / "said.txt").read_text())
    judged, cache_hits = map(int, counts)
    assert cache_hits > judged > 0
    known = [key for key, _ in read_judgements(trial / "shared.pickle")]
    assert (
        len(known) == len(set(known)) == len(read_judgements(demo / "judgements.pickle")) + judged
    )


def test_further_rft_plays_as_many_episodes_as_ppo(trial: Path) -> None:
    seed = trial / "seed-3"
    ppo = [*(seed / "ppo" / "episodes").glob("*.jsonl")]
    ppo.append(seed / "value" / "sampled" / "episodes" / "00000.jsonl")
    more = [*(seed / "more").glob("*/sampled/episodes/*.jsonl")]
    assert sum(len(list(read_episodes(p))) for p in ppo) == 18
    assert sum(len(list(read_episodes(p))) for p in more) == 18


def test_scored_kernel_is_rebuilt_from_calls(trial: Path) -> None:
    from cuagent.task import load_task

    task = load_task(str(next((trial / "tasks").glob("*.py"))), device="cpu")
    episodes = read_episodes(trial / "demonstrations" / "episodes.jsonl")
    scored = [e for e in episodes if e.reward > 0]
    assert scored
    for episode in scored:
        assert solution_of(episode, initial_files(task)).digest == episode.solution
    with pytest.raises(RecordError, match="do not produce the kernel"):
        solution_of(replace(scored[0], solution="another"), initial_files(task))


def test_failed_seed_stops_opening_of_tasks() -> None:
    started = threading.Event()
    opened, stopped = list[object](), list[bool]()

    def open_each(tasks: list[object], should_stop: Callable[[], bool]) -> None:
        opened.append(tasks[0])
        stopped.append(should_stop())
        started.set()
        deadline = time.monotonic() + 60
        while not should_stop() and time.monotonic() < deadline:
            time.sleep(0.01)
        stopped.append(should_stop())

    pool: Any = SimpleNamespace(open=open_each)
    tasks: list[Any] = ["a", "b", "c"]

    def train() -> None:
        with opened_in_background(tasks, pool):
            assert started.wait(60)
            raise RecordError("a seed failed")

    with pytest.raises(RecordError, match="a seed failed"):
        train()
    assert (opened, stopped) == (["a"], [False, True])


def test_interrupted_trial_reports_finished_stages(trial: Path, tmp_path: Path) -> None:
    for stage in ("base", "rft"):
        shutil.copytree(trial / "seed-3" / stage, tmp_path / "seed-3" / stage)
    found = compare_arms(tmp_path, [3])
    assert set(found["reward"]) == {"base", "rft", "best of 2 of rft"}
    assert found["rft_less_base"] is not None
    assert found["faster_ppo_less_rft"] is None


def test_arm_copies_unchanged_stages(trial: Path, tmp_path: Path) -> None:
    copy_stages(trial / "seed-3", tmp_path / "seed-3", "rft")
    assert {p.name for p in (tmp_path / "seed-3").iterdir()} == {"base", "rft"}
    assert compare_with_full(trial, tmp_path, [3]) == {"seeds": []}
    shutil.copytree(trial / "seed-3" / "ppo", tmp_path / "seed-3" / "ppo")
    found = compare_with_full(trial, tmp_path, [3])
    assert found["arm_less_full"]["mean"] == 0
    assert found["arm"] == found["full"]
    assert len(found["arm"][0]["ev"]) == 2


def test_areas_use_iterations_of_both_arms(trial: Path, tmp_path: Path) -> None:
    shutil.copytree(trial / "seed-3" / "ppo", tmp_path / "seed-3" / "ppo")
    metrics = tmp_path / "seed-3" / "ppo" / "metrics.jsonl"
    first = metrics.read_text().splitlines()[0]
    metrics.write_text(first + "\n")
    found = compare_with_full(trial, tmp_path, [3])
    assert [found[arm][0]["iterations"] for arm in ("arm", "full")] == [1, 2]
    assert {found[arm][0]["area"] for arm in ("arm", "full")} == {json.loads(first)["reward"]}
    assert "after 1 iterations, 2 in full" in describe("ratio", found)


def test_seeds_avoid_timing_gpu_if_another_exists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    cuda = replace(DemoConfig(), kernels=Device.CUDA)
    assert training_devices(cuda, "cuda") == ["cuda:1", "cuda:2"]
    assert training_devices(replace(cuda, gpus=(1, 2)), "cuda") == ["cuda:0"]
    assert training_devices(DemoConfig(), "cuda") == ["cuda:0", "cuda:1", "cuda:2"]
    assert training_devices(cuda, "cpu") == ["cpu"]


def test_seeds_on_timing_gpu_hold_its_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    cuda = replace(DemoConfig(), kernels=Device.CUDA)
    with JudgePool(gpus=(0, 1)) as pool:
        both = training_places(replace(cuda, gpus=(0, 1)), "cuda", pool)
        assert both == [("cuda:0", pool.device_lock(0)), ("cuda:1", pool.device_lock(1))]
        assert both[0][1] != both[1][1]
        assert training_places(cuda, "cuda", pool) == [("cuda:1", DeviceLock())], (
            "nothing is timed there"
        )
        assert training_places(DemoConfig(), "cuda", pool)[0] == ("cuda:0", DeviceLock())


def test_models_compute_only_under_device_lock(tmp_path: Path) -> None:
    device_lock, computed = DeviceLock(tmp_path / "gpu-0"), list[str]()

    def held(model: Any, _: Any) -> None:
        computed.append(type(model).__name__)
        assert device_lock.lock is not None
        with device_lock.lock.open("a") as timing, pytest.raises(BlockingIOError):
            fcntl.flock(timing, fcntl.LOCK_EX | fcntl.LOCK_NB)

    watch = register_module_forward_pre_hook(held)
    try:
        config = replace(for_test(DemoConfig()), rehearsal=True)
        demo = Demo(config, "cpu", tmp_path, Rehearsal(), tmp_path, device_lock=device_lock)
        demo.run()
        demo.run_further_rft()
    finally:
        watch.remove()
    assert {"LlamaForCausalLM", "LlamaForTokenClassification"} <= set(computed)


def test_arms_match_documentation(trial: Path, tmp_path: Path) -> None:
    for arm in ABLATIONS.values():
        assert configure(DemoConfig(), None, arm.sets) != DemoConfig()
    declared = (Path(__file__).parents[3] / "docs" / "research" / "ablations.md").read_text()
    assert all(f"| `{name}` |" in declared for name in ABLATIONS)
    with pytest.raises(ConfigError, match="there are no-rft"):
        run_ablations(["nothing"], DemoConfig(), [3], "cpu", trial, print)
    with pytest.raises(ConfigError, match="no finished seed 4"):
        run_ablations(["no-value"], DemoConfig(), [3, 4], "cpu", trial, print)


def test_one_turn_arm_imitates_kernels_without_submit() -> None:
    arm = configure(DemoConfig(), None, ABLATIONS["one-turn"].sets)
    right = Episode("e", "t", "t", (), 1.0, "step limit")
    assert filter_episodes([right], arm.filters)[0] == [right]
    assert not filter_episodes([right], DemoConfig().filters)[0]


def test_collapse_is_five_low_iterations_or_many_cut() -> None:
    calm = [0.0] * 7
    assert not collapsed([1.0, 2.0, *[1.1] * 5], calm)
    assert collapsed([1.0, 2.0, *[0.9] * 5], calm)
    assert not collapsed([1.0, 2.0, *[0.9] * 4], calm)
    assert collapsed([1.0] * 7, [*calm[1:], 0.3])
