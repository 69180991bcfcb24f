"""Test the pipeline: all stages as one command, resuming, its settings as TOML, its report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from dictated import SOURCE
from safetensors.torch import load_file
from typer.testing import CliRunner

from cuagent.agent.tools import TOOLS
from cuagent.training.algorithms import ppo
from cuagent.training.cli import app
from cuagent.training.config import ConfigError, configure, to_toml
from cuagent.training.data.segments import Call, Episode, Kind, Segment, read_episodes
from cuagent.training.pipeline import PipelineConfig, run_pipeline
from cuagent.training.policy.chat import train_tokenizer
from cuagent.training.policy.model import new_actor, save_model, small_config
from cuagent.training.report import tasks_table
from cuagent.training.settings import TrainConfig
from cuagent.training.stages import run_ppo

EXAMPLES = Path(__file__).parents[2] / "examples" / "training"
SETTINGS = """\
policy = "{folder}/policy"
tasks = "{folder}/tasks"
out = "{folder}/run"
heldout = 0.5
collect_episodes = 4
value_episodes = 4
evaluation_episodes = 2
heldout_episodes = 2
ppo_episodes = 4

[play]
turns = 1
reply = 4
timed = false

[filters]
above = -2
submitted = false
cut_turns = 9

[ppo]
iterations = 1
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    tools = json.dumps([[tool.spec.description, dict(tool.spec.schema)] for tool in TOOLS])
    chat = train_tokenizer([(files("cuagent.agent") / "system.md").read_text(), tools] * 3, 2000)
    config = small_config(len(chat.tokenizer), 1, 32, 2, 12000, chat.end, chat.pad)
    save_model(new_actor(config, 1), tmp_path / "policy")
    chat.save(tmp_path / "policy")
    (tmp_path / "tasks").mkdir()
    for n in range(4):
        (tmp_path / "tasks" / f"t{n}.py").write_text(SOURCE + f"# {n}\n")
    (tmp_path / "run.toml").write_text(SETTINGS.format(folder=tmp_path))
    return tmp_path / "run.toml"


def call(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.slow
def test_pipeline_runs_all_stages_and_resumes(file: Path) -> None:
    said = call("pipeline", file, "--device", "cpu")
    out = file.parent / "run"
    names = ["start-heldout", "collected", "rft", "rft-heldout", "played", "value", "ppo",
             "ppo-heldout", "report.html"]  # fmt: skip
    assert {p.name for p in out.iterdir()} == set(names)
    assert (out / "ppo" / "model" / "model.safetensors").exists()
    page = (out / "report.html").read_text()
    assert "rft-heldout" in page
    assert "training reward" in page
    assert "gain (lower limit)" in page
    assert said.splitlines()[-1] == f"report: {out / 'report.html'}"
    written = {p: p.stat().st_mtime_ns for p in out.rglob("*.safetensors")}
    again = call("pipeline", file, "--device", "cpu")
    assert again.count("is already finished") == 8
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*.safetensors")} == written


KILLED = """
import os, signal, sys
from pathlib import Path

folder, mark = Path(sys.argv[1]), sys.argv[2]

def kill(event, arguments):
    if event in ("open", "os.rename", "os.remove") and any(folder.glob(mark)):
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill)
sys.argv = ["cuagent", *sys.argv[3:]]
from cuagent.cli.main import main
main()
"""
"""Program that runs cuagent until a given file is in a folder, and is killed at its next access to
any file. Another process might look for the file too late."""
KILLS = (("collected", "episodes/*.incomplete"), ("rft", "step-*"), ("value", "step-*"),
         ("ppo", "step-*1"), ("ppo-heldout", "episodes/*.incomplete"))  # fmt: skip
"""Stages in which the test kills the pipeline, each with the files whose presence shows that the
stage has begun."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_pipeline_killed_in_each_stage_ends_as_an_uninterrupted_one(
    file: Path, python: list[str]
) -> None:
    pytest.importorskip("peft")
    sets = ["lora.rank=2", "lora.shared=true", "rft.save_every=1", "rft.episodes_per_batch=2",
            "value.save_every=1", "value.episodes_per_batch=2", "ppo.save_every=1",
            "ppo.iterations=2", "heldout_episodes=0", "play.at_once=2"]  # fmt: skip

    def run(out: str, *program: str) -> int:
        chosen = [f"--set={s}" for s in (f'out="{file.parent / out}"', *sets)]
        command = [*python, *program, "train", "pipeline", file, "--device", "cpu", *chosen]
        return subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode

    whole_run = ("-m", "cuagent")
    assert run("whole", *whole_run) == 0
    for stage, mark in KILLS:
        folder = str(file.parent / "cut" / stage)
        assert run("cut", "-c", KILLED, folder, mark) == -signal.SIGKILL, stage
    assert run("cut", *whole_run) == 0
    whole, cut = file.parent / "whole", file.parent / "cut"
    assert played(whole) == played(cut)
    for path in whole.rglob("model/model.safetensors"):
        found, wanted = load_file(cut / path.relative_to(whole)), load_file(path)
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


def played(out: Path) -> dict[str, Any]:
    """Return (token ids, reward) of all episodes by file. Log-probabilities are left out: their
    last bits depend on which episodes shared a batch."""
    found: dict[str, Any] = {}
    for path in out.rglob("episodes/*.jsonl"):
        episodes = list(read_episodes(path))
        ids = [[s.ids for s in e.segments] for e in episodes]
        found[str(path.relative_to(out))] = ids, [e.reward for e in episodes]
    assert len(found) == 7
    return found


@pytest.mark.slow
def test_interrupted_ppo_plays_no_episode_again(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = file.parent, file.parent / "ppo"
    sets = ["ppo.iterations=3", "ppo.evaluate_every=1"]
    config = configure(TrainConfig(), write_play(file), ["heldout=0.5", "ppo_episodes=4", *sets])
    updates = iter([ppo.update, ppo.update, interrupt])

    def run() -> str:
        said: list[str] = []
        run_ppo(folder / "policy", None, folder / "tasks", out, config, "cpu", said.append)
        return "\n".join(said)

    with monkeypatch.context() as patch:
        patch.setattr(ppo, "update", lambda *a: next(updates)(*a))
        with pytest.raises(KeyboardInterrupt):
            run()
    files = [out / "episodes" / f"0000{n}.jsonl" for n in range(3)]
    written = {path: path.stat().st_mtime_ns for path in files}
    said = run()
    assert said.count("are not played again") == 3 + 2, "three iterations, two evaluations"
    assert {path: path.stat().st_mtime_ns for path in files} == written


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_pipeline_trains_adapters_on_one_backbone(file: Path) -> None:
    pytest.importorskip("peft")
    sets = ("--set", "lora.rank=2", "--set", "lora.shared=true", "--set", "evaluation_episodes=0")
    said = call("pipeline", file, "--device", "cpu", *sets)
    assert "actor and critic share" in said
    out = file.parent / "run"
    assert (out / "ppo" / "critic-adapter" / "adapter_model.safetensors").exists()
    assert "is already finished" in call("pipeline", file, "--device", "cpu", *sets)
    other = ["ppo", "--policy", file.parent / "policy", "--critic", out / "value" / "model"]
    with pytest.raises(ConfigError, match="needs a critic of this policy"):
        call(*other, "--tasks", file.parent / "tasks", "--out", out / "x", "--device", "cpu",
             *sets[:4], "--config", write_play(file))  # fmt: skip


def write_play(file: Path) -> Path:
    """Write those settings of `file` that the single commands also have to play.toml; return its
    path."""
    written = file.with_name("play.toml")
    kept = file.read_text().partition("heldout_episodes")[2].partition("[filters]")[0]
    written.write_text("heldout_episodes" + kept)
    return written


def test_printed_settings_are_read_back(file: Path, tmp_path: Path) -> None:
    shown = call("pipeline", file, "--print-config", "--set", "ppo.clip.dual=3.0")
    (tmp_path / "all.toml").write_text(shown)
    start = PipelineConfig(policy="?")
    read = configure(start, tmp_path / "all.toml", [])
    assert read == configure(start, file, ["ppo.clip.dual=3.0"])
    assert to_toml(read) == shown
    assert "# cache_tokens = none" in shown


@pytest.mark.parametrize("name", ["qwen-0.5b", "qwen-1.5b", "qwen-7b-lora"])
def test_example_settings_are_valid(name: str) -> None:
    config = configure(PipelineConfig(policy="?"), EXAMPLES / f"{name}.toml", [])
    assert config.policy.startswith("Qwen/")
    assert config.filters.fastest
    assert config.lora.shared == (name == "qwen-7b-lora")


def test_pipeline_without_heldout_tasks_says_what_to_change(file: Path) -> None:
    class Told(Exception):
        """Ends the pipeline after its first message."""

    def say(text: str) -> None:
        raise Told(text)

    config = configure(PipelineConfig(policy="?"), file, ["heldout=0"])
    with pytest.raises(Told, match="for evaluations add tasks or raise heldout"):
        run_pipeline(config, "cpu", say)


def test_pipeline_needs_a_policy_and_episodes(tmp_path: Path) -> None:
    (tmp_path / "empty.toml").write_text("")
    with pytest.raises(ConfigError, match="name the policy"):
        call("pipeline", tmp_path / "empty.toml", "--device", "cpu")
    with pytest.raises(ConfigError, match="collect_episodes: 0 needs folders"):
        call("pipeline", tmp_path / "empty.toml", "--set", "collect_episodes=0", "--print-config")


def test_report_shows_tasks_gains_and_kernels() -> None:
    write = Call(0, "write", json.dumps({"path": "kernels/f.cu", "text": "x < y"}))
    action = (Segment(Kind.PROMPT, (1,)), Segment(Kind.ACTION, (2,)))
    fast = Episode("a", "t", "softmax", action, 3.0, "submitted", (write,),
                   figures={"over_compile": 1.5})  # fmt: skip
    page = tasks_table([fast, replace(fast, id="b", reward=-1.0, calls=(), figures={})])
    assert "<td>softmax</td><td>2</td><td>50%</td><td>+3</td><td>1.50x</td>" in page
    assert "<h4>kernels/f.cu</h4><pre>x &lt; y</pre>" in page
