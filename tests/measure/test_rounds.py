"""Which rounds of a timing count, and when what they say against a candidate is believed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cuagent.measure.rounds import STRIKES, Round, Rounds
from cuagent.task import Device

CALM = Round({}, {}, wrong="", astray="", hidden="", busy=0.0)
LIED = Round({}, {}, wrong="", astray="", hidden="a call claims 1 us", busy=0.3)


def after(*taken: Round) -> Rounds:
    rounds = Rounds(Device.CPU)
    for each in taken:
        assert not rounds.refused
        rounds.take(each)
    return rounds


def test_a_clock_that_is_contradicted_once_costs_a_round_and_nobody_is_accused() -> None:
    rounds = after(LIED, CALM)
    assert rounds.held == [CALM]
    assert not rounds.refused
    assert rounds.busy == 0.0


def test_a_clock_is_a_contradiction_when_fresh_processes_show_it_in_a_row() -> None:
    assert not after(*[LIED] * (STRIKES - 1)).refused
    assert not after(*[LIED] * (STRIKES - 1), CALM, *[LIED] * (STRIKES - 1)).refused
    rounds = after(CALM, *[LIED] * STRIKES)
    assert rounds.contradiction == LIED.hidden
    assert rounds.held == [CALM, LIED]


def test_a_reader_is_told_of_others_and_of_a_gpu_that_throttled() -> None:
    assert after(CALM).notes == ()
    rounds = after(CALM, replace(CALM, busy=0.4), replace(CALM, slowed=3), replace(CALM, slowed=2))
    assert rounds.notes == (
        "machine busy: 40% by others",
        "the GPU throttled in 5 repeats that count",
    )


@pytest.mark.parametrize("fault", ["wrong", "astray"])
def test_a_wrong_answer_and_a_thread_elsewhere_are_believed_at_once(fault: str) -> None:
    said = {"wrong": "", "astray": ""} | {fault: "this"}
    rounds = after(CALM, Round({}, {}, hidden="", busy=0.0, **said))
    assert rounds.refused
    assert (rounds.wrong, rounds.contradiction) == (said["wrong"], said["astray"])
