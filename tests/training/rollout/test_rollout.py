"""Test episodes through the real loop and tools: the trained ids are the sampled ids."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from dictated import SUBMIT, WRITE, Dictated

from cuagent.message import Message
from cuagent.record import RunFolder, new_run
from cuagent.task.task import Task
from cuagent.training.data.batch import collate
from cuagent.training.data.runs import UnusableRun, episode_of
from cuagent.training.data.segments import Kind, require_logprobs
from cuagent.training.engines.engine import EngineError, LocalEngine, OutOfMemory, Request, Sampled
from cuagent.training.judging.judge_process import PoolError
from cuagent.training.policy.chat import Chat
from cuagent.training.policy.model import logprobs_of, new_actor, per_token, small_config
from cuagent.training.policy.tool_calls import UNPARSABLE
from cuagent.training.rollout.collect import Collector
from cuagent.training.rollout.episode import Batcher, Play, TokenModel, play_many, play_one

NO_JUDGE: Any = None  # these episodes never have anything judged


def test_trained_ids_equal_sampled_ids_for_unusual_tokenization(
    task: Task, chat: Chat, play: Play, tmp_path: Path
) -> None:
    engine = Dictated(chat, [WRITE, SUBMIT])
    episode = play_one(task, NO_JUDGE, "p", chat, Batcher(engine).sample, play, 0, tmp_path / "r")
    actions = [s for s in episode.segments if s.kind is Kind.ACTION]
    assert [s.ids for s in actions] == [(*turn, chat.end) for turn in engine.turns]
    assert chat.encode(WRITE) != engine.turns[0]  # re-tokenizing would have given other ids
    assert [len(s.logprobs or ()) for s in actions] == [len(s.ids) for s in actions]
    require_logprobs([episode])
    # The second prompt contains the first turn token by token, then the tool result.
    first, second = engine.asked
    assert second.prompt[: len(first.prompt)] == first.prompt
    assert second.prompt[len(first.prompt) :][: len(actions[0].ids)] == actions[0].ids
    batch = collate([episode])
    assert tuple(batch.ids[0].tolist()) == second.prompt + actions[1].ids
    assert [c.name for c in episode.calls] == ["write", "submit"]
    assert all(c.known and c.valid for c in episode.calls)
    assert (episode.reward, episode.stop, episode.task) == (-1.0, "no gain", task.digest)


def test_stream_matches_template_text(task: Task, chat: Chat, play: Play, tmp_path: Path) -> None:
    engine = Dictated(chat, [WRITE, SUBMIT])
    play_one(task, NO_JUDGE, "p", chat, Batcher(engine).sample, play, 0, tmp_path / "r")
    text = chat.tokenizer.decode(list(engine.asked[1].prompt))
    assert text == (
        f"<|im_start|>user\n{task.source}<|im_end|>\n<|im_start|>assistant\n{WRITE}<|im_end|>\n"
        "<|im_start|>tool\nwrote a.txt (1 lines)<|im_end|>\n<|im_start|>assistant\n"
    )


def test_template_closes_truncated_turn_outside_loss(
    task: Task, chat: Chat, play: Play, tmp_path: Path
) -> None:
    engine = Dictated(chat, [WRITE[:30], SUBMIT], cut=[0])
    episode = play_one(task, NO_JUDGE, "p", chat, Batcher(engine).sample, play, 0, tmp_path / "r")
    _, cut, after, _ = episode.segments
    assert chat.end not in cut.ids
    assert after.kind is Kind.OBSERVATION
    assert after.ids[0] == chat.end
    assert episode.figures["cut_turns"] == 1
    assert episode.calls[0].name == UNPARSABLE
    assert not episode.calls[0].known


def test_rewritten_history_opens_new_context(chat: Chat, play: Play) -> None:
    engine = Dictated(chat, [WRITE, WRITE, SUBMIT])
    model = TokenModel("p", chat, Batcher(engine).sample, play, 0)
    start = [Message("user", "a task")]
    first = model.query(start, [], lambda *_: None)
    tool = Message("tool", "done", tool_call_id="c1")
    model.query([*start, first.message, tool], [], lambda *_: None)
    model.query([Message("user", "summary of what was")], [], lambda *_: None)
    prompts = [r.prompt for r in engine.asked]
    assert prompts[1][: len(prompts[0])] == prompts[0]
    assert prompts[2] == chat.prompt_ids([Message("user", "summary of what was")], [])


def test_parallel_episodes_are_reproducible_and_match_trainer(
    task: Task, chat: Chat, play: Play, tmp_path: Path
) -> None:
    config = small_config(len(chat.tokenizer), 1, 32, 2, 700, chat.end, chat.pad)
    actor = new_actor(config, seed=3)
    short = replace(play, reply=12, turns=3)
    jobs = [(task, seed) for seed in range(12)]

    def collection(folder: str) -> Any:
        engine = LocalEngine(actor, chat.end)
        return play_many(jobs, lambda _: NO_JUDGE, "p0", chat, engine, short, tmp_path / folder)

    one, two = collection("one"), collection("two")
    assert [e.id for e in one.episodes] == [f"p0-double_relu-{seed}" for seed in range(12)]
    assert [e.segments for e in one.episodes] == [e.segments for e in two.episodes]
    assert not (tmp_path / "one").exists()
    batch = collate(one.episodes)
    gap = (per_token(actor, batch, 4096, logprobs_of) - batch.logprobs)[batch.action].abs().max()
    assert gap < 1e-5


def test_batch_waits_for_all_live_episodes() -> None:
    sizes: list[int] = []

    class Echo:
        def sample(self, requests: Any) -> list[Sampled]:
            sizes.append(len(requests))
            return [Sampled((r.seed,), (0.0,), False) for r in requests]

    batcher = Batcher(Echo())
    ready = threading.Barrier(5)
    answers: dict[int, int] = {}

    def episode(n: int) -> None:
        with batcher.live():
            ready.wait()
            for _ in range(2 if n else 1):  # number 0 leaves early; others must not wait
                answers[n] = batcher.sample(Request((1,), 1, seed=n)).ids[0]

    threads = [threading.Thread(target=episode, args=(n,)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert sizes == [5, 4]
    assert answers == {n: n for n in range(5)}


def test_engine_error_reaches_waiting_episode(tmp_path: Path, chat: Chat) -> None:
    class Broken:
        def sample(self, requests: Any) -> list[Sampled]:
            raise RuntimeError("out of memory")

    with pytest.raises(EngineError, match="out of memory"):
        Batcher(Broken()).sample(Request((1,), 1, 0))


def test_unexpected_engine_error_reaches_all_waiting_episodes() -> None:
    class Broken:
        def sample(self, requests: Any) -> list[Sampled]:
            raise KeyError("a defect")

    batcher, ready = Batcher(cast(Any, Broken())), threading.Barrier(3)
    said: list[str] = []

    def episode(n: int) -> None:
        with batcher.live():
            ready.wait()
            try:
                batcher.sample(Request((1,), 1, seed=n))
            except (EngineError, KeyError) as error:
                said.append(str(error))

    threads = [threading.Thread(target=episode, args=(n,), daemon=True) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert sorted(said) == ["'a defect'", *["sampling failed: the batch was lost"] * 2]


def test_interrupted_collection_resumes_only_with_same_policy(
    task: Task, chat: Chat, play: Play, tmp_path: Path
) -> None:
    config = small_config(len(chat.tokenizer), 1, 32, 2, 700, chat.end, chat.pad)
    engine = LocalEngine(new_actor(config, seed=3), chat.end)
    short = replace(play, reply=6, turns=2)
    said: list[str] = []

    def collection(folder: str, inputs: int, dies_after: int | None = None) -> list[Any]:
        pool = cast(Any, SimpleNamespace(judge_for=lambda _: NO_JUDGE))
        out = tmp_path / folder
        collect = Collector(
            [task], chat, engine, pool, short, out, 6, 0, max_in_flight=2, say=said.append
        )
        collect.inputs = {"policy": inputs}
        if dies_after is not None:
            collect.engine = cast(Any, Dying(engine, dies_after))
        return [(e.id, e.segments) for e in collect(0)]

    whole = collection("whole", inputs=1)
    with pytest.raises(Killed):
        collection("cut", inputs=1, dies_after=5)  # engine calls: two for two episodes
    incomplete = tmp_path / "cut" / "episodes" / "00000-0.incomplete"
    with incomplete.open("a") as torn:
        torn.write('{"v": 1, "id": "half')
    kept = incomplete.read_text()
    said.clear()
    assert collection("cut", inputs=1) == whole
    assert said[0] == f"  resuming from 4 episodes in {incomplete}"
    assert not incomplete.exists()
    incomplete.write_text(kept)
    said.clear()
    assert collection("cut", inputs=2) == whole
    assert not said  # another policy: nothing is resumed


class Killed(BaseException):
    """Stand-in for a kill signal: a BaseException, so that no `except Exception` catches it."""


class Dying:
    """An engine whose process is killed at a given call."""

    needs_batches = True

    def conversations(self) -> None:
        return None

    def __init__(self, engine: LocalEngine, calls: int) -> None:
        self.engine = engine
        self.left = calls

    def open(self) -> Any:
        return self.engine.open()

    def sample(self, requests: Any) -> list[Sampled]:
        self.left -= 1
        if self.left < 0:
            raise Killed
        return self.engine.sample(requests)


class Endless:
    """An engine that never ends an episode, and counts its calls."""

    needs_batches = True

    def conversations(self) -> None:
        return None

    def __init__(self, chat: Chat) -> None:
        self.ids = (*chat.encode(WRITE), chat.end)
        self.asked = 0

    def open(self) -> Any:
        return nullcontext()

    def sample(self, requests: Sequence[Request]) -> list[Sampled]:
        self.asked += 1
        return [Sampled(self.ids, (-1.0,) * len(self.ids), False) for _ in requests]


def test_failure_of_one_episode_stops_all(
    task: Task, chat: Chat, play: Play, tmp_path: Path
) -> None:
    """Check that the others stop early, as on Ctrl-C, and that their episodes are discarded."""
    engine, finished, judges = Endless(chat), list[object](), count()

    def judge_for(_: Task) -> Any:
        if next(judges) == 3:
            while engine.asked < 3:
                time.sleep(0.01)
            raise PoolError("the judge is gone")

    long = replace(play, turns=10_000, context=10**7, together=0.5)
    jobs = [(task, seed) for seed in range(4)]
    with pytest.raises(PoolError, match="the judge is gone"):
        play_many(
            jobs, judge_for, "p", chat, engine, long, tmp_path / "r", on_episode=finished.append
        )
    assert 3 <= engine.asked < 5000
    assert not finished
    for left in [t for t in threading.enumerate() if t.name == "cuagent-work"]:
        left.join(30)  # it has its answer but may not have been scheduled yet
        assert not left.is_alive()


def test_exhausted_memory_ends_the_collection_with_its_own_error(
    task: Task, chat: Chat, play: Play, tmp_path: Path
) -> None:
    class Exhausted:
        needs_batches = True

        def conversations(self) -> None:
            return None

        def open(self) -> Any:
            return nullcontext()

        def sample(self, requests: Sequence[Request]) -> list[Sampled]:
            raise OutOfMemory("out of memory while sampling; lower play.most_rows")

    jobs = [(task, seed) for seed in range(3)]
    with pytest.raises(OutOfMemory, match=r"lower play\.most_rows"):
        play_many(jobs, lambda _: NO_JUDGE, "p", chat, Exhausted(), play, tmp_path / "r")


def test_run_without_end_is_unusable(tmp_path: Path, chat: Chat) -> None:
    folder: RunFolder = new_run("x", tmp_path)
    folder.log.write_text('{"type": "session", "id": "s1", "v": 1}\n')
    with pytest.raises(UnusableRun, match="still running or killed"):
        episode_of(folder, chat)
