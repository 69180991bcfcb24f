"""Test the training record: checks, JSONL, conversion to batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuagent.training.data.batch import collate, microbatches, take
from cuagent.training.data.segments import (
    Call,
    Episode,
    Kind,
    RecordError,
    Segment,
    check,
    read_episodes,
    require_logprobs,
    write_episodes,
)

PROMPT = Segment(Kind.PROMPT, (1, 2, 3))
ACTION = Segment(Kind.ACTION, (4, 0), (-0.5, -0.25))
OBSERVATION = Segment(Kind.OBSERVATION, (6, 7, 8))


def episode(*segments: Segment, name: str = "e0", reward: float = 1.0) -> Episode:
    return Episode(name, "d1", "softmax", segments, reward, "submit")


def test_episode_survives_file(tmp_path: Path) -> None:
    whole = replace(
        episode(PROMPT, ACTION, OBSERVATION, Segment(Kind.ACTION, (9,), None)),
        calls=(Call(0, "write", '{"path": "a"', valid=False),),
        figures={"over_eager": 1.5},
    )
    write_episodes(tmp_path / "a.jsonl", [whole])
    write_episodes(tmp_path / "a.jsonl", [whole])
    assert list(read_episodes(tmp_path / "a.jsonl")) == [whole, whole]


def test_broken_line_is_named(tmp_path: Path) -> None:
    write_episodes(tmp_path / "a.jsonl", [episode(PROMPT, ACTION)])
    with (tmp_path / "a.jsonl").open("a") as out:
        out.write('{"v": 99}\n')
    with pytest.raises(RecordError, match=r"a\.jsonl:2: .*version 99"):
        list(read_episodes(tmp_path / "a.jsonl"))


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ('"reward": 1.0', '"reward": null'),
        ('"reward": 1.0', '"reward": NaN'),
        ('"ids": [4, 5]', '"ids": [4, 5.5]'),
        ('"ids": [4, 5]', '"ids": [4, -5]'),
        ('"logprobs": [-0.5, -1.5]', '"logprobs": [-0.5, "x"]'),
        ('"figures": {}', '"figures": []'),
        ('"figures": {}', '"figures": {"cut_turns": "x"}'),
        ('"task": "d1"', '"task": null'),
        ('"turn": 0', '"turn": "0"'),
        ('"valid": true', '"valid": 1'),
        ('"context": 0', '"context": false'),
    ],
)
def test_field_of_other_type_is_named(written: str, instead: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    made = episode(PROMPT, Segment(Kind.ACTION, (4, 5), (-0.5, -1.5)))
    write_episodes(path, [replace(made, calls=(Call(0, "write", "{}"),))])
    text = path.read_text()
    assert written in text
    path.write_text(text.replace(written, instead))
    with pytest.raises(RecordError, match=r"a\.jsonl:1: not an episode"):
        list(read_episodes(path))


@pytest.mark.parametrize(
    ("segments", "complaint"),
    [
        ((PROMPT, Segment(Kind.ACTION, (4, 5), (-1.0,))), r"call 1\): 2 ids but 1 log-prob"),
        ((PROMPT, OBSERVATION), "no action token"),
        ((ACTION,), "begins with an action"),
        ((PROMPT, ACTION, replace(ACTION, context=1)), "begins with an action"),
        ((PROMPT, replace(OBSERVATION, logprobs=(-1.0,) * 3)), "only actions"),
        ((PROMPT, ACTION, replace(OBSERVATION, context=2)), "context 2 follows context 0"),
        ((PROMPT, Segment(Kind.ACTION, ())), "without tokens"),
        ((PROMPT, Segment(Kind.ACTION, (1,), (0.5,))), "above 0"),
        ((PROMPT, Segment(Kind.ACTION, (1,), (float("nan"),))), "not a number"),
        ((PROMPT, Segment(Kind.ACTION, (1,), ("nan",))), "not a number"),
        ((PROMPT, Segment(Kind.ACTION, (1,), (-float("inf"),))), "infinite"),
    ],
)
def test_record_that_breaks_invariant_is_refused(
    segments: tuple[Segment, ...], complaint: str
) -> None:
    with pytest.raises(RecordError, match=complaint):
        check(episode(*segments))


def test_counts_of_tokens_and_turns() -> None:
    played = episode(PROMPT, ACTION, OBSERVATION, Segment(Kind.ACTION, (9,), None))
    assert (played.action_tokens, played.tokens, played.turns) == (3, 9, 2)


def test_log_probability_may_exceed_zero_by_roundoff_only() -> None:
    for above, legal in ((0.9e-6, True), (1.5e-6, False)):
        made = episode(PROMPT, Segment(Kind.ACTION, (1,), (above,)))
        if legal:
            check(made)
        else:
            with pytest.raises(RecordError, match="above 0"):
                check(made)


def test_first_context_is_zero() -> None:
    with pytest.raises(RecordError, match="first context must be 0"):
        check(episode(replace(PROMPT, context=1), replace(ACTION, context=1)))


def test_unlearnable_episodes_are_neither_written_nor_read(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder" / "a.jsonl"
    with pytest.raises(RecordError, match="no action token"):
        write_episodes(path, [episode(PROMPT, OBSERVATION)])
    assert write_episodes(path, [episode(PROMPT, ACTION)]) == 1
    path.write_text(path.read_text().replace('"kind": "action"', '"kind": "boundary"'))
    with pytest.raises(RecordError, match=r"a\.jsonl:1: "):
        list(read_episodes(path))


def test_calls_are_known_and_valid_unless_said_otherwise() -> None:
    made = Call(0, "write", "{}")
    assert made.known
    assert made.valid


def test_require_logprobs_checks_the_whole_record() -> None:
    with pytest.raises(RecordError, match="no action token"):
        require_logprobs([episode(PROMPT)])


def test_require_logprobs_names_first_bad_call() -> None:
    good = episode(PROMPT, ACTION)
    bad = episode(PROMPT, ACTION, OBSERVATION, Segment(Kind.ACTION, (5,)), name="e7")
    require_logprobs([good])
    with pytest.raises(RecordError, match="episode e7, call 2: no log-probabilities"):
        require_logprobs([good, bad])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.sampled_from([Kind.ACTION, Kind.OBSERVATION, Kind.BOUNDARY]),
                st.lists(st.integers(0, 30), min_size=1, max_size=5),
            ),
            min_size=1,
            max_size=6,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_batch_contains_exactly_the_sampled_ids(raw: list[list[tuple[Kind, list[int]]]]) -> None:
    episodes = []
    for pieces in raw:
        segments = [PROMPT, ACTION]
        for kind, ids in pieces:
            logprobs = tuple(-i / 8 for i in ids) if kind is Kind.ACTION else None
            segments.append(Segment(kind, tuple(ids), logprobs))
        episodes.append(episode(*segments))
    batch = collate(episodes)
    for row, one in enumerate(episodes):
        everything = [i for s in one.segments for i in s.ids]
        sampled = [s for s in one.segments if s.kind is Kind.ACTION]
        assert batch.ids[row][batch.real[row]].tolist() == everything
        assert batch.ids[row][batch.action[row]].tolist() == [i for s in sampled for i in s.ids]
        assert batch.logprobs[row][batch.action[row]].tolist() == [
            p for s in sampled for p in s.logprobs or ()
        ]
    lengths = batch.real.sum(1)
    groups = list(microbatches(lengths, budget=24))
    assert sorted(torch.cat(groups).tolist()) == list(range(len(episodes)))
    assert sum(take(batch, g).action_tokens for g in groups) == batch.action_tokens
    assert all(len(g) == 1 or len(g) * int(lengths[g].max()) <= 24 for g in groups)


def test_each_context_window_is_one_row() -> None:
    second = [replace(PROMPT, context=1), replace(ACTION, context=1)]
    batch = collate(
        [episode(PROMPT, ACTION), episode(PROMPT, ACTION, *second), episode(PROMPT, ACTION)]
    )
    assert batch.row_episode.tolist() == [0, 1, 1, 2]
    with pytest.raises(RecordError, match="the model's context of 4"):
        collate([episode(PROMPT, ACTION)], longest=4)
