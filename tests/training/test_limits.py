"""Test the context length of a policy in every stage, and the engine that a device gets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from toy_game import play, small_actor

from cuagent.training.data.filters import Filters, filter_episodes
from cuagent.training.data.segments import Episode, Kind, RecordError, Segment, write_episodes
from cuagent.training.policy.chat import Chat
from cuagent.training.policy.lora import Lora
from cuagent.training.policy.model import positions_of, save_model
from cuagent.training.policy.placement import Dtype, Placement
from cuagent.training.rollout.setup import with_context, with_sampler
from cuagent.training.settings import PlayConfig, Sampler, TrainConfig
from cuagent.training.stages import run_rft, run_value


@pytest.fixture
def policy(chat: Chat, tmp_path: Path) -> Path:
    save_model(small_actor(), tmp_path / "policy")
    chat.save(tmp_path / "policy")
    return tmp_path / "policy"


@pytest.fixture
def episodes(chat: Chat, tmp_path: Path) -> Path:
    """Write episodes of up to 64 positions, and one whose second window is longer."""
    played = [replace(e, tokenizer=chat.fingerprint, reward=1.0) for e in play(small_actor(), 6, 1)]
    long = (Segment(Kind.PROMPT, (2,) * 70, context=1), Segment(Kind.ACTION, (3,), None, 1))
    played[3] = replace(played[3], segments=(*played[3].segments, *long))
    write_episodes(tmp_path / "episodes.jsonl", played)
    return tmp_path / "episodes.jsonl"


def test_value_refuses_episodes_over_the_positions(
    policy: Path, episodes: Path, tmp_path: Path
) -> None:
    with pytest.raises(RecordError, match=r"1-3: 71 tokens, but the policy has 64 positions"):
        run_value(policy, [episodes], tmp_path / "out", TrainConfig(heldout=0.0), "cpu", print)


def test_rft_counts_episodes_over_the_positions(
    policy: Path, episodes: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    config = TrainConfig(heldout=0.0, filters=Filters(per_task=None))
    config = replace(config, rft=replace(config.rft, steps=1))
    run_rft(policy, [episodes], tmp_path / "out", config, "cpu", said.append)
    [line] = [line for line in said if "over the 64 positions" in line]
    assert line.split()[-1] == "1"


def test_windows_of_an_episode_are_measured_one_by_one() -> None:
    windows = tuple(Segment(Kind.PROMPT, (2,) * 40, context=n) for n in range(3))
    episode = Episode("e", "t", "t", windows, 1.0, "submitted")
    assert (episode.tokens, episode.longest_window) == (120, 40)
    kept, _ = filter_episodes([episode], Filters(), positions=64)
    assert kept


def test_play_context_is_cut_to_the_positions_and_said() -> None:
    actor, said = small_actor(), list[str]()
    assert positions_of(actor) == 64
    assert with_context(TrainConfig(), actor, said.append).play.context == 64
    assert "play.context=32768 is over the policy's 64 positions" in said[0]
    short = TrainConfig(play=PlayConfig(context=50))
    assert with_context(short, actor, said.append) == short
    assert len(said) == 1


def test_gpu_keeps_conversations_by_default() -> None:
    assert with_sampler(TrainConfig(), "cuda:1").play.engine is Sampler.CACHED
    assert with_sampler(TrainConfig(), "cpu").play.engine is Sampler.LOCAL
    chosen = TrainConfig(play=PlayConfig(engine=Sampler.LOCAL))
    assert with_sampler(chosen, "cuda").play.engine is Sampler.LOCAL
    adapted = TrainConfig(lora=Lora(rank=8), placement=Placement(compute=Dtype.BF16))
    assert with_sampler(adapted, "cuda").play.engine is Sampler.CACHED
