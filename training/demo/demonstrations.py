"""Create the base policy's training data (the teacher's episodes) and its tokenizer.

    whole episodes, judged  +  first turns on random chains, not judged  ─▶  texts

Data and tokenizer are created once, for all seeds. No first turn is on a held-out chain.
Not covered: how the teacher writes and errs (`teacher.py`), imitation of the teacher (`demo.py`).
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
from cuagent.training.algorithms.metrics import episode_metrics
from cuagent.training.data.runs import load_runs
from cuagent.training.data.segments import Episode, write_episodes
from cuagent.training.demo.gym import Chain, chain_of, draw_chain, opening_of
from cuagent.training.demo.presets import DemoConfig
from cuagent.training.demo.teacher import Teacher, teacher_of
from cuagent.training.files import atomic_folder
from cuagent.training.judging.pool import Pool
from cuagent.training.policy.chat import Chat, template_message, train_tokenizer
from cuagent.training.rollout.episode import Play, start_episode

TOKENIZER_CONVERSATIONS = 1000
"""Number of first turns in the tokenizer's training text, in addition to all whole episodes."""


def demonstrate(
    config: DemoConfig,
    pool: Pool,
    play: Play,
    train: Sequence[Task],
    heldout: Sequence[Task],
    out: Path,
    say: Callable[[str], None],
) -> None:
    """Write the teacher's whole episodes (episodes.jsonl), first turns (first.jsonl) and the
    tokenizer into `out`."""
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
    dialogues = [*conversations(folders), *first[:TOKENIZER_CONVERSATIONS]]
    d = config.decoder
    chat = train_tokenizer(rendered(dialogues), d.vocabulary, d.pieces)
    loaded = load_runs(runs, chat)
    # Sort by the teacher's seeds; names of runs depend on the clock.
    position = {folder.id: n for n, folder in enumerate(folders)}
    whole = sorted(loaded.episodes, key=lambda episode: position[episode.id])
    write_episodes(out / "episodes.jsonl", whole)
    turns = [as_episode(n, messages, play, chat) for n, messages in enumerate(first)]
    write_episodes(out / "first.jsonl", turns)
    with atomic_folder(out / "tokenizer") as partial:  # last: it marks the stage as done
        chat.save(partial)
    m = episode_metrics(loaded.episodes)
    say(
        f"teacher: reward {m['reward']:+.2f}, correct {m['correct']:.0%}, "
        f"{m['action_tokens']:.0f} of {m['tokens']:.0f} tokens sampled per episode"
    )


def first_turns(config: DemoConfig, heldout: set[Chain]) -> Iterator[list[Message]]:
    """Yield the teacher's first turns on random chains that are not held out."""
    rng, kernels = random.Random(0), config.kernels
    n = 0
    while n < config.first_turns:
        chain = draw_chain(config.gym.chain, rng)
        if chain not in heldout or config.gym.chain == 1:
            yield Teacher(kernels, chain, 1_000_000 + n).first_turn(opening_of(kernels, chain))
            n += 1


def conversations(runs: Sequence[RunFolder]) -> list[list[Message]]:
    """Return the list of messages of each run."""
    return [
        [message_of(r) for r in read_records(folder) if r["type"] == "message"] for folder in runs
    ]


def rendered(dialogues: Sequence[Sequence[Message]]) -> Iterator[str]:
    """Yield the text of each conversation, for training the tokenizer."""
    tokenizer = train_tokenizer([], 300)
    for messages in dialogues:
        text = tokenizer.render([template_message(m) for m in messages])
        # Special tokens split text anyway; BPE learns only the text between them.
        yield re.sub(r"</?tool_call>|<\|im_\w+\|>", "\n", text)


def as_episode(number: int, messages: Sequence[Message], play: Play, chat: Chat) -> Episode:
    """Return a conversation of the teacher as an episode to imitate. It was never judged; its
    reward of 0 is not used."""
    segments = chat.segments(messages, [tool.spec for tool in play.tools])
    return Episode(
        f"first-{number}", "", "", segments, 0.0, "not played", tokenizer=chat.fingerprint
    )
