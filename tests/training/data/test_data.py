"""Test run logs of text as episodes: masks, filters, the split, the exports."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from dictated import SOURCE

from cuagent.agent.loop import run_agent
from cuagent.models.scripted import ScriptedModel
from cuagent.record import RunFolder
from cuagent.task.task import Task
from cuagent.training.data.export import atif, write_atif, write_chat, write_parquet
from cuagent.training.data.filters import Filters, filter_episodes
from cuagent.training.data.runs import episode_of, load_runs
from cuagent.training.data.segments import (
    Call,
    Episode,
    Kind,
    RecordError,
    Segment,
    require_logprobs,
    write_episodes,
)
from cuagent.training.data.sources import episodes_of, export, finished_runs
from cuagent.training.data.tasks import is_heldout, source_digest, split
from cuagent.training.policy.chat import Chat
from cuagent.training.rollout.episode import Play, start_episode
from cuagent.training.settings import Export

NO_JUDGE: Any = None


def called(name: str, arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


@pytest.fixture
def run(task: Task, play: Play, tmp_path: Path) -> RunFolder:
    """A finished run of a model of which only the text is known."""
    replies = [
        {
            "text": "Let me.",
            "calls": [{"name": "write", "arguments": {"path": "a", "text": "é\n"}}],
        },
        {"calls": [called("wrote", {}), called("write", "{bad")]},
        {"calls": [called("submit", {})]},
    ]
    started = start_episode(task, NO_JUDGE, "some-api", play, tmp_path / "runs")
    run_agent(started, ScriptedModel(replies), play.tools)
    started.log.close()
    return started.folder


def test_text_run_is_rendered_by_template_and_masked_from_recording(
    run: RunFolder, chat: Chat
) -> None:
    episode = episode_of(run, chat)
    kinds = [s.kind for s in episode.segments]
    assert kinds == [Kind.PROMPT, *[Kind.ACTION, Kind.OBSERVATION] * 2, Kind.ACTION]
    texts = [chat.tokenizer.decode(list(s.ids)) for s in episode.segments]
    assert "".join(texts).count("<|im_start|>assistant\n") == 3
    assert texts[1] == (
        'Let me.<tool_call>\n{"name": "write", "arguments": {"path": "a", "text": "é\\n"}}\n'
        "</tool_call><|im_end|>"
    )
    assert all(t.endswith("<|im_end|>") for t in texts[1::2])
    assert texts[2] == ("\n<|im_start|>tool\nwrote a (1 lines)<|im_end|>\n<|im_start|>assistant\n")
    assert [(c.turn, c.name, c.known, c.valid) for c in episode.calls] == [
        (0, "write", True, True),
        (1, "wrote", False, False),
        (1, "write", True, False),
        (2, "submit", True, True),
    ]
    with pytest.raises(RecordError, match="call 1: no log-probabilities"):
        require_logprobs([episode])


def test_unusable_runs_are_counted_by_reason(
    run: RunFolder, task: Task, play: Play, chat: Chat
) -> None:
    failed = start_episode(task, NO_JUDGE, "some-api", play, run.path.parent)
    run_agent(failed, ScriptedModel([]), play.tools)  # the first query fails
    killed = start_episode(task, NO_JUDGE, "some-api", play, run.path.parent)
    killed.log.close()
    loaded = load_runs(run.path.parent, chat)
    assert [e.id for e in loaded.episodes] == [run.id]
    assert dict(loaded.left_out) == {
        "no reward, model failed: scripted: the script ended after 0 replies": 1,
        "still running or killed": 1,
    }


def made(name: str, reward: float = 2.0, ids: tuple[int, ...] = (5, 6), **more: Any) -> Episode:
    segments = (Segment(Kind.PROMPT, (1,)), Segment(Kind.ACTION, ids))
    return replace(Episode(name, "t1", "t1", segments, reward, "submitted"), **more)


def test_funnel_counts_episodes_dropped_by_each_rule() -> None:
    write = Call(0, "write", '{"path": "a"}')
    episodes = [
        made("good", calls=(write, write)),
        made("wrong", reward=-1.0),
        made("stalled", stop="stalled"),
        made("cut", figures={"cut_turns": 1.0}),
        made("loop", calls=(write,) * 3),
        made("unknown", calls=(Call(0, "wrote", "{}", known=False),)),
        made("cheat", calls=(Call(0, "edit", '{"path": "./reference.py"}'),)),
        made("long", ids=tuple(range(100))),
        made("again"),
        made("better", reward=3.0, ids=(7, 8)),
        made("worse", reward=1.0, ids=(8, 8)),
    ]
    kept, funnel = filter_episodes(episodes, Filters(tokens=50, per_task=2))
    assert [e.id for e in kept] == ["good", "better"]
    assert [n for _, n in funnel.dropped] == [1, 1, 1, 1, 1, 1, 1, 1, 1]
    assert (funnel.came, funnel.kept) == (11, 2)
    assert funnel.came == funnel.kept + sum(n for _, n in funnel.dropped)


def test_split_never_divides_a_task() -> None:
    episodes = [made(f"{task}-{i}", task=f"digest{task}") for task in range(200) for i in range(2)]
    train, heldout = split(episodes, 0.25)
    assert not {e.task for e in train} & {e.task for e in heldout}
    assert 30 < len({e.task for e in heldout}) < 70
    assert is_heldout("digest3", 0.25) == is_heldout("digest3", 0.25)
    assert split(episodes, 0.0)[1] == []


def test_unfinished_and_damaged_runs_are_skipped_and_named(
    run: RunFolder, task: Task, play: Play, chat: Chat, tmp_path: Path
) -> None:
    killed = start_episode(task, NO_JUDGE, "some-api", play, run.path.parent)
    killed.log.close()
    damaged = start_episode(task, NO_JUDGE, "some-api", play, run.path.parent)
    damaged.log.close()
    with damaged.folder.log.open("a") as log:
        log.write("nonsense\n")
    loaded = load_runs(run.path.parent, chat)
    assert [e.id for e in loaded.episodes] == [run.id]
    assert loaded.left_out["still running or killed"] == 1
    assert sum(str(damaged.folder.log) in why for why in loaded.left_out) == 1
    for form, out in ((Export.CHAT, "chat.jsonl"), (Export.ATIF, "atif")):
        said: list[str] = []
        assert export(run.path.parent, form, tmp_path / out, None, said.append) == 1
        assert len(said) == 2, "each skipped run is named"
    with pytest.raises(RecordError, match="no run has ended"):
        finished_runs([killed.folder], said.append)


def test_run_on_a_heldout_task_is_held_out_at_each_precision(run: RunFolder, chat: Chat) -> None:
    """Check that an episode is split by the source of its task, as the task itself is."""
    episode = episode_of(run, chat)
    assert episode.source == source_digest(SOURCE, "Model")
    share = next(s for s in (0.2, 0.4, 0.6, 0.8, 1.0) if is_heldout(episode.source, s))
    other = replace(episode, id="tf32", task="digest of the same source for tf32")
    free = replace(episode, source="", task=next(
        str(n) for n in range(99) if not is_heldout(str(n), share - 0.1)))  # fmt: skip
    train, heldout = split([episode, other, free], share - 0.1 if share == 1.0 else share)
    assert [e.id for e in heldout][:2] == [run.id, "tf32"]
    assert free in train


def test_a_folder_of_collect_is_read(tmp_path: Path, chat: Chat) -> None:
    episodes = [replace(made(name), tokenizer=chat.fingerprint) for name in ("a", "b")]
    for number, episode in enumerate(episodes):
        write_episodes(tmp_path / "sampled" / "episodes" / f"0000{number}.jsonl", [episode])
    assert episodes_of([tmp_path / "sampled"], chat, print) == episodes


def test_exports_contain_the_conversation(run: RunFolder, chat: Chat, tmp_path: Path) -> None:
    assert write_chat([run], tmp_path / "chat.jsonl") == 1
    row = json.loads((tmp_path / "chat.jsonl").read_text())
    assert [m["role"] for m in row["messages"]] == [
        "user", "assistant", "tool", "assistant", "tool", "tool", "assistant", "tool",
    ]  # fmt: skip
    assert [m["sampled"] for m in row["messages"]].count(True) == 3
    assert row["reward"] == -1

    assert write_atif([run], tmp_path / "atif") == 1
    found = atif(run)
    assert [s["source"] for s in found["steps"]] == ["user", "agent", "agent", "agent"]
    assert [s["step_id"] for s in found["steps"]] == [1, 2, 3, 4]
    calls = [c["tool_call_id"] for c in found["steps"][2]["tool_calls"]]
    results = [r["source_call_id"] for r in found["steps"][2]["observation"]["results"]]
    assert calls == results
    assert found["steps"][2]["tool_calls"][1]["arguments"] == {"raw": "{bad"}


def test_atif_follows_version_1_4_rules(run: RunFolder) -> None:
    """Check the rules of ATIF v1.4 that readers rely on."""
    found = atif(run)
    assert found["schema_version"] == "ATIF-v1.4"
    assert {"name", "version", "model_name"} <= found["agent"].keys()
    for number, step in enumerate(found["steps"], start=1):
        assert step["step_id"] == number
        assert step["source"] in ("system", "user", "agent")
        assert datetime.fromisoformat(step["timestamp"]).tzinfo is not None
        calls = {c["tool_call_id"] for c in step.get("tool_calls", ())}
        results = step.get("observation", {"results": []})["results"]
        assert {r["source_call_id"] for r in results} <= calls
        assert calls <= {r["source_call_id"] for r in results}
        if step["source"] != "agent":
            assert not calls
            assert "metrics" not in step
    assert found["final_metrics"]["total_steps"] == len(found["steps"])
    json.dumps(found, allow_nan=False)


def test_parquet_contains_sampled_ids_mask_and_logprobs(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    segments = (
        Segment(Kind.PROMPT, (1, 2)),
        Segment(Kind.ACTION, (5, 6), (-0.5, -0.25)),
        Segment(Kind.OBSERVATION, (7,)),
        Segment(Kind.PROMPT, (1,), context=1),
        Segment(Kind.ACTION, (8,), (-1.0,), 1),
    )
    native = replace(made("native"), segments=segments)
    assert write_parquet([native, made("text")], tmp_path / "a.parquet") == 2
    first, second = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert first["input_ids"] == [1, 2, 5, 6, 7, 1, 8]
    assert first["loss_mask"] == [0, 0, 1, 1, 0, 0, 1]
    assert first["context"] == [0, 0, 0, 0, 0, 1, 1]
    assert first["logprobs"] == [None, None, -0.5, -0.25, None, None, -1.0]
    assert (first["reward"], first["stop"]) == (2.0, "submitted")
    assert second["logprobs"] == [None] * 3


def test_missing_pyarrow_is_reported_with_install_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(RecordError, match="pip install pyarrow"):
        write_parquet([made("a")], tmp_path / "a.parquet")
