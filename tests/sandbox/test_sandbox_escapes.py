"""Real children try to get out. Tiers that this machine lacks are reported as skipped, by name."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module

import pytest

from cuagent.sandbox import (
    Policy,
    SandboxError,
    Tier,
    landlock,
    probe,
    probe_forked,
    selftest,
    stamp,
)
from cuagent.sandbox.probe import Escape, tried

HELD_WITHOUT_A_TIER = {
    "list_home",  # there may be no home
    "inherited_descriptor",
    "inherited_environment",
    "become_root",
    "mount_over",
    "big_file",
    "fork_bomb",
}
"""What limits, closed descriptors and an ordinary user's rights refuse on their own."""


@pytest.fixture(scope="module", params=[Tier.LANDLOCK, Tier.BUBBLEWRAP])
def held(request: pytest.FixtureRequest) -> dict[str, str | None]:
    try:
        return {escape.name: escape.got for escape in selftest(request.param)}
    except SandboxError as error:
        pytest.skip(str(error))


def test_no_escape_succeeds_from_the_tier_that_is_in_use() -> None:
    tier = probe()
    if tier is Tier.NONE:
        pytest.skip("this machine has no tier; verdicts say UNISOLATED")
    results = selftest(tier)
    assert len(results) >= 12
    assert [escape for escape in results if escape.got is not None] == []


def test_every_tier_refuses_all_but_what_it_says(held: dict[str, str | None]) -> None:
    succeeded = {name for name, got in held.items() if got is not None}
    # Root under bubblewrap is exempt from the process limit: there the probe chooses landlock.
    assert succeeded <= {"fork_bomb"}


def test_the_escapes_are_real_where_nothing_holds_them() -> None:
    free = {escape.name for escape in selftest(Tier.NONE) if escape.got is not None}
    refused = {escape.name for escape in selftest(Tier.NONE)} - free
    assert refused <= HELD_WITHOUT_A_TIER


def test_without_landlock_a_candidate_is_called_unisolated_though_bubblewrap_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as without:
        without.setattr(landlock, "abi", lambda: 0)
        tried.cache_clear()
        assert probe_forked() is Tier.NONE
    tried.cache_clear()
    assert probe_forked() in (probe(), Tier.LANDLOCK)


def test_threads_that_ask_at_once_have_each_tier_tried_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Tier] = []

    def try_it(tier: Tier) -> list[Escape]:
        asked.append(tier)
        time.sleep(0.05)
        return [Escape("any", "out")]

    module = import_module("cuagent.sandbox.probe")  # the package has a function of that name
    monkeypatch.setattr(module, "selftest", try_it)
    monkeypatch.setattr(landlock, "abi", lambda: 1)
    tried.cache_clear()
    try:
        with ThreadPoolExecutor(4) as threads:
            assert set(threads.map(lambda _: probe(), range(4))) == {Tier.NONE}
    finally:
        tried.cache_clear()
    assert len(asked) == len(set(asked)) > 0


def test_stamp_says_what_holds() -> None:
    assert stamp(Tier.NONE, Policy()) == "UNISOLATED"
    bounded = Policy(memory_bytes=1 << 30)
    assert stamp(Tier.LANDLOCK, bounded).startswith("landlock (")
    assert "memory by rlimit" in stamp(Tier.LANDLOCK, bounded)
    # CUDA reserves more than any limit would let it.
    assert "memory by watch" in stamp(Tier.LANDLOCK, replace(bounded, gpu=True))
