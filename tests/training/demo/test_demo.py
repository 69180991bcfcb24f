"""Test all stages with the real compiler, verifier and tools at minimal size, and the commands on
them."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from routes import Body, answering
from typer.testing import CliRunner

from cuagent.agent.prompt import opening
from cuagent.agent.tools import TOOLS
from cuagent.task import Device, Task
from cuagent.training.algorithms.metrics import read_metrics
from cuagent.training.cli import app
from cuagent.training.config import ConfigError
from cuagent.training.data.segments import RecordError, read_episodes, require_logprobs
from cuagent.training.demo.demo import run_demo
from cuagent.training.demo.presets import DemoConfig, for_test
from cuagent.training.engines.engine import LocalEngine, Request
from cuagent.training.policy.chat import Pieces, load_chat, train_tokenizer
from cuagent.training.policy.model import load_actor, new_actor, save_model, small_config


def call(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.slow
def test_teacher_kernels_are_judged(demo: Path) -> None:
    episodes = list(read_episodes(demo / "demonstrations" / "episodes.jsonl"))
    assert {e.reward for e in episodes} <= {-1.0, 1.0}
    assert any(e.reward == 1.0 and e.stop == "no gain" and e.solution for e in episodes)


@pytest.mark.slow
def test_stages_write_models_and_rollouts_have_logprobs(demo: Path) -> None:
    assert set(json.loads((demo / "results.json").read_text())) == {"base", "rft", "ppo"}
    for stage in ("base", "rft", "value", "ppo"):
        assert (demo / stage / "model" / "model.safetensors").is_file()
    rows = read_metrics(demo / "ppo" / "metrics.jsonl")
    assert [m["step"] for m in rows] == [0, 1]
    assert all(m["sampler_gap"] < 1e-4 for m in rows)
    for file in (demo / "ppo" / "episodes").glob("*.jsonl"):
        require_logprobs(read_episodes(file))


@pytest.mark.gpu
def test_cuda_kernels_are_timed_on_training_gpu(tmp_path: Path) -> None:
    small = for_test(DemoConfig())
    lines = replace(small.decoder, pieces=Pieces.LINES)
    run_demo(
        replace(small, kernels=Device.CUDA, timed=True, decoder=lines),
        "cuda",
        tmp_path,
        lambda _: None,
    )
    episodes = list(read_episodes(tmp_path / "demonstrations" / "episodes.jsonl"))
    right = [e for e in episodes if e.reward > 0]
    assert right
    assert all({"over_eager", "over_compile"} <= e.figures.keys() for e in right)
    assert len(read_metrics(tmp_path / "ppo" / "metrics.jsonl")) == 2


@pytest.mark.slow
def test_finished_demo_repeats_nothing(demo: Path, tmp_path: Path) -> None:
    out = shutil.copytree(demo, tmp_path / "demo")
    before = (out / "ppo" / "metrics.jsonl").read_text()
    written = [task.stat().st_mtime_ns for task in (out / "tasks").iterdir()]
    said: list[str] = []
    run_demo(for_test(DemoConfig()), "cpu", out, said.append)
    assert (out / "ppo" / "metrics.jsonl").read_text() == before
    assert said[-1].startswith("0 kernels judged")
    assert [task.stat().st_mtime_ns for task in (out / "tasks").iterdir()] == written
    assert (out / "judgements.pickle").stat().st_size > 0


@pytest.mark.slow
def test_commands_train_on_results_of_other_stages(demo: Path, tmp_path: Path) -> None:
    policy, runs = str(demo / "base" / "model"), str(demo / "demonstrations" / "runs")
    episodes = str(demo / "value" / "sampled" / "episodes" / "00000.jsonl")
    short = ["--device", "cpu", "--set", "rft.steps=1", "--set", "value.steps=1"]
    short += ["--set", "heldout=0"]
    said = call("rft", "--policy", policy, "--from", runs, "--out", str(tmp_path / "rft"), *short)
    assert "not ended by submit" in said
    call("value", "--policy", policy, "--from", episodes, "--out", str(tmp_path / "value"), *short)
    few = ["ppo.iterations=1", "ppo_episodes=1", "play.turns=1", "play.reply=4", "play.timed=false"]
    with pytest.raises(RecordError, match=r"context full: .* tokens of 768"):
        call(
            "ppo", "--policy", policy, "--critic", str(tmp_path / "value" / "model"), "--out",
            str(tmp_path / "ppo"), "--tasks", str(demo / "tasks"), "--device", "cpu",
            *[part for name in few for part in ("--set", name)],
        )  # fmt: skip
    count = call("export", "--runs", runs, "--format", "chat", "--out", str(tmp_path / "c.jsonl"))
    assert count.startswith("6 written")


@pytest.fixture
def policy(task: Task, tmp_path: Path) -> Path:
    """A policy whose tokenizer was trained on the prompt of `cuagent optimize`, for a third of its
    length."""
    prompt = opening(task), [tool.spec for tool in TOOLS]
    spelling = train_tokenizer([], 300)
    chat = train_tokenizer([spelling.tokenizer.decode(spelling.prompt_ids(*prompt))], 3000)
    longest = len(chat.prompt_ids(*prompt)) + 100
    actor = new_actor(small_config(len(chat.tokenizer), 1, 32, 2, longest, chat.end, chat.pad), 0)
    save_model(actor, tmp_path / "policy")
    chat.save(tmp_path / "policy")
    return tmp_path / "policy"


def test_ppo_loads_each_iterations_weights_into_server(
    policy: Path, task: Task, tmp_path: Path
) -> None:
    few = {"ppo.iterations": 2, "ppo_episodes": 1, "ppo.actor.lr": 0.01, "play.turns": 1,
           "play.reply": 4, "play.timed": "false"}  # fmt: skip
    out = tmp_path / "ppo"
    with token_server(load_chat(policy).end) as url:
        said = call(
            "ppo", "--policy", str(policy), "--out", str(out), "--tasks", str(task.path),
            "--device", "cpu", "--set", f"play.server={url}/generate",
            *[part for name, value in few.items() for part in ("--set", f"{name}={value}")],
        )  # fmt: skip
    assert "ppo 1/2: reward -1.00" in said
    assert "training reward" in (out / "report.html").read_text()
    rows = read_metrics(out / "metrics.jsonl")
    assert [row["sampler_gap"] < 1e-4 for row in rows] == [True, True]
    before, after = (load_actor(folder).lm_head.weight for folder in (policy, out / "model"))
    assert (after - before).abs().max() > 1e-3  # so that old weights would have shown


def test_collection_is_played_once_and_never_overwritten(
    policy: Path, task: Task, tmp_path: Path
) -> None:
    few = {"play.turns": 1, "play.reply": 4, "play.timed": "false"}
    out, other = tmp_path / "sampled", tmp_path / "other"
    actor = load_actor(policy)
    with torch.no_grad():
        actor.lm_head.weight += 1
    shutil.copytree(policy, other)
    save_model(actor, other)

    def asked(command: str, episodes: int, of: Path = policy, **settings: int) -> str:
        return call(
            command, "--policy", str(of), "--out", str(out), "--tasks", str(task.path),
            "--device", "cpu", "--part", "all", "--episodes", str(episodes),
            *[part for name, value in {**few, **settings}.items()
              for part in ("--set", f"{name}={value}")],
        )  # fmt: skip

    first = asked("collect", 2)
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in out.rglob("*") if p.is_file()}
    again = asked("evaluate", 2)
    finished = f"{out} is already finished; use another --out to start again"
    assert again == f"{finished}\n{first.splitlines()[-1]}\n"
    with pytest.raises(ConfigError, match="with episodes=2, not 1; use another --out"):
        asked("collect", 1)
    with pytest.raises(ConfigError, match="from another policy, with seed=0, not 7"):
        asked("collect", 2, of=other, seed=7)
    now = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in out.rglob("*") if p.is_file()}
    assert now == before
    (out / "evaluation.json").unlink()  # killed before it was there
    assert asked("collect", 2) == first
    (out / "manifest.json").unlink()
    with pytest.raises(ConfigError, match=r"has no manifest\.json"):
        asked("collect", 2)


@contextmanager
def token_server(end: int) -> Iterator[str]:
    """Serve SGLang's two routes with a real model; it uses the weights that it loaded last."""
    engine: list[LocalEngine] = []
    turn = threading.Lock()

    def update(body: Body) -> Body:
        engine[:] = [LocalEngine(load_actor(Path(body["model_path"])).eval(), end)]
        return {"success": True}

    def generate(body: Body) -> Body:
        asked = body["sampling_params"]
        request = Request(tuple(body["input_ids"]), asked["max_new_tokens"], asked["sampling_seed"])
        with turn:
            [made] = engine[0].sample([request])
        each = [[p, i, None] for p, i in zip(made.logprobs, made.ids, strict=True)]
        finish = {"type": "length" if made.cut else "stop"}
        return {"meta_info": {"output_token_logprobs": each, "finish_reason": finish}}

    with answering({"/generate": generate, "/update_weights_from_disk": update}) as url:
        yield url


@pytest.mark.slow
def test_episodes_of_other_tokenizer_are_refused(demo: Path, tmp_path: Path) -> None:
    from cuagent.training.data.segments import RecordError, write_episodes
    from cuagent.training.data.sources import episodes_of
    from cuagent.training.policy.chat import load_chat

    source = demo / "value" / "sampled" / "episodes" / "00000.jsonl"
    foreign = [replace(e, tokenizer="other") for e in read_episodes(source)]
    write_episodes(tmp_path / "foreign.jsonl", foreign)
    chat = load_chat(demo / "base" / "model")
    with pytest.raises(RecordError, match="another tokenizer"):
        episodes_of([tmp_path / "foreign.jsonl"], chat, lambda _: None)


def test_missing_extra_is_reported_with_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuagent.training import session

    monkeypatch.setattr(session, "NEEDED", ("transformers", "a_package_that_is_not_there"))
    with pytest.raises(
        ConfigError, match=r"a_package.*not installed; pip install 'cuagent\[train\]'"
    ):
        call("rft", "--policy", "x", "--from", "y", "--out", "z")
