"""The teacher's part of the demonstration: what the base policy is shown, and the tokenizer.

    whole episodes, judged for real  +  first turns on chains at random, written down  ─▶  texts

Both are done once, for all seeds. No first turn is on a held-out chain.
Not covered: how the teacher writes and errs (`teacher.py`), imitation of it (`demo.py`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cuagent.agent.loop import run_agent
from cuagent.message import Message
from cuagent.record import RunFolder, message_of, read_records
from cuagent.task import Task
from cuagent.training.chat import Chat, template_message, train_tokenizer
from cuagent.training.data import load_runs
from cuagent.training.files import atomic_folder
from cuagent.training.gym import Chain, chain_of, draw_chain, opening_of
from cuagent.training.metrics import episode_metrics
from cuagent.training.pool import Pool
from cuagent.training.presets import DemoConfig
from cuagent.training.rollout import Play, start_episode
from cuagent.training.segments import Episode, write_episodes
from cuagent.training.teacher import Teacher, teacher_of

TOKENIZER_CONVERSATIONS = 1000
"""Conversations that the tokenizer learns from."""


def demonstrate(
    config: DemoConfig,
    pool: Pool,
    play: Play,
    train: Sequence[Task],
    heldout: Sequence[Task],
    out: Path,
    say: Callable[[str], None],
) -> None:
    """Write episodes.jsonl, first.jsonl and, last, tokenizer/ into `out`."""
    runs, shown = out / "runs", train[: config.shown] if config.shown else train

    def one(n: int) -> RunFolder:
        task = shown[n % len(shown)]
        run = start_episode(task, pool.judge_for(task), "teacher", play, runs)
        try:
            run_agent(run, teacher_of(task, n), play.tools)
        finally:
            run.log.close()
        return run.folder

    say(f"the teacher plays {config.demonstrations} episodes on {len(shown)} tasks")
    pool.open(shown)
    with ThreadPoolExecutor(32) as threads:
        folders = list(threads.map(one, range(config.demonstrations)))
    first = list(first_turns(config, {chain_of(task) for task in heldout}))
    conversations_ = [*conversations(folders), *first[:TOKENIZER_CONVERSATIONS]]
    d = config.decoder
    chat = train_tokenizer(rendered(conversations_), d.vocabulary, d.pieces)
    loaded = load_runs(runs, chat)
    # In the order of the teacher's seeds: names of runs, and so theirs, depend on the clock.
    position = {folder.id: n for n, folder in enumerate(folders)}
    whole = sorted(loaded.episodes, key=lambda episode: position[episode.id])
    write_episodes(out / "episodes.jsonl", whole)
    turns = [as_episode(n, messages, play, chat) for n, messages in enumerate(first)]
    write_episodes(out / "first.jsonl", turns)
    with atomic_folder(out / "tokenizer") as partial:  # last: it says that the stage is done
        chat.save(partial)
    m = episode_metrics(loaded.episodes)
    say(
        f"teacher: reward {m['reward']:+.2f}, correct {m['correct']:.0%}, "
        f"{m['action_tokens']:.0f} tokens sampled of {m['tokens']:.0f} an episode"
    )


def first_turns(config: DemoConfig, heldout: set[Chain]) -> Iterator[list[Message]]:
    """What the teacher does first on chains at random, none of them held out."""
    rng, kernels = random.Random(0), config.kernels
    n = 0
    while n < config.first_turns:
        chain = draw_chain(config.gym.chain, rng)
        if chain not in heldout or config.gym.chain == 1:
            yield Teacher(kernels, chain, 1_000_000 + n).first_turn(opening_of(kernels, chain))
            n += 1


def conversations(runs: Sequence[RunFolder]) -> list[list[Message]]:
    """What was said in each run."""
    return [
        [message_of(r) for r in read_records(folder) if r["type"] == "message"] for folder in runs
    ]


def rendered(conversations_: Sequence[Sequence[Message]]) -> Iterator[str]:
    """Conversations as the tokenizer will see them, to learn from."""
    tokenizer = train_tokenizer([], 300)
    for messages in conversations_:
        text = tokenizer.render([template_message(m) for m in messages])
        # Special tokens cut text anyway; the words between them are what is to be learned.
        yield re.sub(r"</?tool_call>|<\|im_\w+\|>", "\n", text)


def as_episode(number: int, messages: Sequence[Message], play: Play, chat: Chat) -> Episode:
    """Text of the teacher to imitate. It was never judged: the reward means nothing."""
    segments = chat.segments(messages, [tool.spec for tool in play.tools])
    return Episode(
        f"first-{number}", "", "", segments, 0.0, "not played", tokenizer=chat.fingerprint
    )
