"""Test the commands that need no training: doctor, export, and errors of all commands."""

from __future__ import annotations

import runpy
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from dictated import SOURCE
from toy_game import play, small_actor
from typer.testing import CliRunner

from cuagent.training.cli import app
from cuagent.training.config import ConfigError
from cuagent.training.data.segments import Episode, Kind, RecordError, Segment, write_episodes
from cuagent.training.engines.engine import OutOfMemory
from cuagent.training.policy.chat import Chat
from cuagent.training.policy.folder import policy_errors, save_final
from cuagent.training.policy.model import load_actor, new_critic, save_model
from cuagent.training.session import processes


@pytest.fixture
def policy(chat: Chat, tmp_path: Path) -> Path:
    actor = small_actor()
    save_model(actor, tmp_path / "policy")
    chat.save(tmp_path / "policy")
    save_model(new_critic(actor), tmp_path / "critic")
    return tmp_path / "policy"


def call(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_doctor_reports_packages_and_checks_policy(policy: Path) -> None:
    said = call("doctor", "--policy", policy)
    assert "python 3" in said
    assert "transformers " in said
    assert "chat template OK" in said
    with pytest.raises(RecordError, match="not a Hugging Face model"):
        call("doctor", "--policy", policy.parent)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("--kernels", "metal"), "there are auto, cpu, cuda"),
        (("--kernels", "cuda"), "finds no CUDA device"),
        (("--device", "cuda"), "finds no CUDA device"),
        (("--device", "cpu", "--ablation", "no-value"), "no finished seed 0"),
    ],
)
def test_demo_refuses_unavailable_options_in_one_line(
    asked: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=said):
        call("demo", "--out", tmp_path, *asked)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("rft --policy policy --from text --out out", "not an episode"),
        ("rft --policy policy --from nothing --out out", "nothing: no such file or folder"),
        ("rft --policy policy --from text --out out --config text", "text: 'utf-8' codec"),
        ("ppo --policy policy --tasks tasks --out out --set ppo.save_every=0", "ppo.save_every: 0"),
        ("demo --out out --device cpu --set gym.train=0", "gym.train: 0 is not 1 or more"),
        ("rft --policy policy --from text --out text/out", "text is not a folder"),
        ("rft --policy policy/model --from text --out out", "policy/model: no such folder"),
        ("rft --policy tasks --from text --out out", "tasks: not a Hugging Face model"),
        ("rft --policy mistyped --from text --out out", "mistyped: no such folder"),
        ("ppo --policy policy --critic policy --tasks tasks --out out", "not a critic but Llama"),
        ("ppo --policy policy --critic tasks --tasks tasks --out out", "not a Hugging Face model"),
        ("collect --policy policy --tasks nothing --out out", "nothing: no such folder"),
        ("collect --policy policy --tasks tasks --out out --episodes 0", "--episodes"),
        ("collect --policy policy --tasks tasks --out out --set a=1", "no setting a;"),
        ("export --runs tasks --out chat", "tasks: no runs"),
        ("export-verl --policy policy --critic tasks --tasks a --out a --device x", "--device x"),
        ("export-verl --policy policy --critic policy --tasks tasks --out a", "not a critic but"),
        ("demo --out out --device cpu --seeds 0", "--seeds"),
        ("demo --out out --device cpu --minutes -3", "minutes: -3.0 is not 0 or more"),
        ("demo --out out --device cpu --seed -1", "seed: -1 is not from 0"),
    ],
)  # fmt: skip
def test_commands_refuse_bad_arguments_in_one_line(
    asked: str, said: str, policy: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from cuagent.cli.main import run

    monkeypatch.chdir(policy.parent)
    Path("tasks").mkdir()
    Path("tasks", "a.py").write_text(SOURCE)
    Path("text").write_bytes(b"\xd8 no JSON\n")
    assert run(["train", *asked.split()]) == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_torchrun_process_exits_with_command_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["ppo", "--policy", "x/y/z", "--tasks", "x", "--out", "out", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["cli.py", *asked])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.delitem(sys.modules, "cuagent.training.cli")  # as in a new process
    with pytest.raises(SystemExit, match="2"):
        runpy.run_module("cuagent.training.cli", run_name="__main__")
    assert capsys.readouterr().err == "cuagent: x/y/z: no such folder\n"


def test_unknown_hub_name_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the hub client's warnings about retries are hidden too."""
    from huggingface_hub.utils import logging

    monkeypatch.chdir(tmp_path)
    logging.set_verbosity_warning()
    said = r"owner/name: no such folder, and not a Hugging Face model \(no connection\)"
    with pytest.raises(RecordError, match=said), policy_errors(Path("owner/name")):
        raise OSError("no connection")
    assert logging.get_verbosity() == logging.ERROR


@pytest.fixture
def played(policy: Path, chat: Chat) -> list[Episode]:
    return [replace(e, tokenizer=chat.fingerprint) for e in play(load_actor(policy), 4, 0)]


def test_rft_without_an_episode_names_both_remedies(
    policy: Path, played: list[Episode], tmp_path: Path
) -> None:
    write_episodes(tmp_path / "e.jsonl", played)
    files = ("--policy", policy, "--from", tmp_path / "e.jsonl", "--out", tmp_path / "out")
    with pytest.raises(RecordError, match=r"Relax filters\.\*; .* use a policy that has more"):
        call("rft", *files, "--set", "heldout=0", "--set", "filters.above=9")


def test_stage_resumes_finishes_or_is_refused(
    policy: Path, played: list[Episode], tmp_path: Path
) -> None:
    """Check that other settings in the same folder never return the old model silently."""
    write_episodes(tmp_path / "e.jsonl", played)
    out, moved = tmp_path / "out", tmp_path / "moved.jsonl"

    def asked(command: str, *settings: str, source: Path = tmp_path / "e.jsonl") -> str:
        few = ("heldout=0", "filters.above=-9", *settings)
        sets = [part for setting in few for part in ("--set", setting)]
        return call(command, "--policy", policy, "--from", source, "--out", out, *sets)

    assert "resuming" not in asked("rft", "rft.steps=1")
    written = (out / "model" / "model.safetensors").stat().st_mtime_ns
    shutil.copy(tmp_path / "e.jsonl", moved)
    said = asked("rft", "rft.steps=1", "rft.save_every=7", source=moved)
    assert said == f"{out} is already finished; use another --out to start again\n"
    funnel = (out / "funnel.json").read_bytes()
    for command, setting, named in (
        ("rft", "rft.optimizer.lr=0.5", "with rft.optimizer.lr=1e-05, not 0.5"),
        ("rft", "filters.above=2", "with filters.above=-9.0, not 2.0"),
        ("value", "value.steps=1", "by train rft, not train value"),
        ("rft", "rft.steps=0", "is at step 1, beyond 0"),
    ):
        with pytest.raises(ConfigError, match=named):
            asked(command, "rft.steps=1", setting)
    write_episodes(tmp_path / "others.jsonl", played[1:])
    with pytest.raises(ConfigError, match="from other episodes; use another --out"):
        asked("rft", "rft.steps=1", source=tmp_path / "others.jsonl")
    assert (out / "funnel.json").read_bytes() == funnel
    assert (out / "model" / "model.safetensors").stat().st_mtime_ns == written
    said = asked("rft", "rft.steps=2")
    assert "out/step-00000001; use another --out to start again" in said
    assert (out / "model" / "model.safetensors").stat().st_mtime_ns > written
    shutil.rmtree(out / "model")  # as if killed before saving
    assert "resuming from" in asked("rft", "rft.steps=2")


def test_stage_resumes_folder_without_manifest_fields(
    policy: Path, played: list[Episode], tmp_path: Path
) -> None:
    write_episodes(tmp_path / "e.jsonl", played)
    asked = ["value", "--policy", policy, "--from", tmp_path / "e.jsonl", "--out", tmp_path / "v"]
    asked += ["--set", "heldout=0", "--set"]
    call(*asked, "value.steps=1")
    (tmp_path / "v" / "manifest.json").write_text('{"policy": "p", "source": "[]", "seed": "0"}')
    assert "v/step-00000001; use another --out to start again" in call(*asked, "value.steps=2")


def test_kill_while_saving_keeps_previous_model(
    chat: Chat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "model"
    save_final(small_actor(1), out, chat)
    save_final(small_actor(2), out, chat)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert {p.parent for p in before} == {out}

    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Chat, "save", lambda _, folder: killed(folder))
    with pytest.raises(KeyboardInterrupt):
        save_final(small_actor(3), out, chat)
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


def test_ids_beyond_vocabulary_are_refused(
    policy: Path, played: list[Episode], tmp_path: Path
) -> None:
    strange = replace(played[1], segments=(*played[1].segments, Segment(Kind.ACTION, (16,))))
    write_episodes(tmp_path / "e.jsonl", [played[0], strange])
    with pytest.raises(RecordError, match="episode 0-1: token id 16, but the policy has 16"):
        call("value", "--policy", policy, "--from", tmp_path / "e.jsonl", "--out", tmp_path / "v",
             "--set", "heldout=0")  # fmt: skip


@pytest.mark.parametrize("stage", ["rft", "value"])
def test_stage_reports_that_all_tasks_are_held_out(
    stage: str, policy: Path, played: list[Episode], tmp_path: Path
) -> None:
    write_episodes(tmp_path / "e.jsonl", [replace(e, task="task4") for e in played])
    with pytest.raises(RecordError, match="the task of every episode is held out"):
        call(stage, "--policy", policy, "--from", tmp_path / "e.jsonl", "--out", tmp_path / "v",
             "--set", "heldout=0.99")  # fmt: skip


def test_export_verl_writes_start_script(policy: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    tasks, out = tmp_path / "tasks", tmp_path / "verl"
    tasks.mkdir()
    (tasks / "a.py").write_text(SOURCE)
    models = ("--policy", policy, "--critic", tmp_path / "critic")
    rest = ("--tasks", tasks, "--out", out, "--device", "cpu", "--gpus", 4)
    said = call("export-verl", *models, *rest, "--set", "heldout=0")
    assert "1 tasks" in said
    assert "trainer.n_gpus_per_node=4" in (out / "run.sh").read_text()
    with pytest.raises(RecordError, match=r"no config\.json"):
        call("export-verl", "--policy", tasks, "--critic", tasks, *rest)


def test_memory_exhausted_by_training_is_named_with_the_settings_to_lower() -> None:
    with pytest.raises(OutOfMemory, match="lower tokens_per_microbatch"), processes("cpu"):
        torch.empty(2**56)
    with pytest.raises(RuntimeError, match="another"), processes("cpu"):
        raise RuntimeError("another error")


def test_interrupted_command_says_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), processes("cpu"):
        raise KeyboardInterrupt
    assert capsys.readouterr().out == "stopped; the same command continues\n"
