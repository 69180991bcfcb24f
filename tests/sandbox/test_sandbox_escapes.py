"""Real children try to escape. Tests of tiers that this machine lacks are skipped."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path

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
from cuagent.sandbox.probe import WITHOUT_VIEW, Escape, successful_escapes

PREVENTED_WITHOUT_TIER = {
    "list_home",  # there may be no home
    # A machine may lack what these take.
    "read_attribute",
    "join_segment",
    "remove_queue",
    "inherited_descriptor",
    "inherited_environment",
    "become_root",
    "mount_over",
    "big_file",
    "fork_bomb",
}
"""Escapes that limits, closed descriptors and the rights of an ordinary user can prevent."""


@pytest.fixture(scope="module", params=[Tier.LANDLOCK, Tier.BUBBLEWRAP])
def results(request: pytest.FixtureRequest) -> dict[str, str | None]:
    try:
        return {escape.name: escape.got for escape in selftest(request.param)}
    except SandboxError as error:
        pytest.skip(str(error))


def test_no_escape_from_the_probed_tier_succeeds() -> None:
    tier = probe()
    if tier is Tier.NONE:
        pytest.skip("this machine has no tier; verdicts say UNISOLATED")
    results = selftest(tier)
    assert len(results) >= 12
    assert [escape for escape in results if escape.got is not None] == []


def test_every_tier_prevents_escapes(results: dict[str, str | None]) -> None:
    succeeded = {name for name, got in results.items() if got is not None}
    # Root under bubblewrap has no process limit; the probe then chooses landlock.
    assert succeeded <= {"fork_bomb"}


@pytest.mark.parametrize("count", range(6))
def test_open_descriptors_of_the_caller_change_no_result(count: int) -> None:
    """A probe that mistakes its own file for the caller's makes verdicts UNISOLATED."""
    if not landlock.abi():
        pytest.skip("this kernel has no Landlock")
    program = [sys.executable, "-I", str(Path(__file__).with_name("after_descriptors.py"))]
    done = subprocess.run(
        [*program, str(count)], capture_output=True, text=True, timeout=600, check=True
    )
    assert set(json.loads(done.stdout)) <= WITHOUT_VIEW


def test_escapes_succeed_without_a_tier() -> None:
    prevented = {escape.name for escape in selftest(Tier.NONE) if escape.got is None}
    assert prevented <= PREVENTED_WITHOUT_TIER


def test_forked_child_has_no_tier_without_landlock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as without:
        without.setattr(landlock, "abi", lambda: 0)
        successful_escapes.cache_clear()
        assert probe_forked() is Tier.NONE
    successful_escapes.cache_clear()
    assert probe_forked() in (probe(), Tier.LANDLOCK)


def test_a_root_that_cannot_remove_the_files_of_the_child_has_no_tier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A container may take CAP_DAC_OVERRIDE from root: every command ended with an internal
    error."""

    def fails(tier: Tier) -> list[Escape]:
        raise PermissionError(1, "Operation not permitted", "scratch")

    with monkeypatch.context() as without:
        without.setattr(import_module("cuagent.sandbox.probe"), "selftest", fails)
        successful_escapes.cache_clear()
        assert probe_forked() is Tier.NONE
    successful_escapes.cache_clear()


def test_concurrent_probes_try_each_tier_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tested: list[Tier] = []

    def fake_selftest(tier: Tier) -> list[Escape]:
        tested.append(tier)
        time.sleep(0.05)
        return [Escape("any", "out")]

    module = import_module("cuagent.sandbox.probe")  # the package has a function with this name
    monkeypatch.setattr(module, "selftest", fake_selftest)
    monkeypatch.setattr(landlock, "abi", lambda: 1)
    successful_escapes.cache_clear()
    try:
        with ThreadPoolExecutor(4) as threads:
            assert set(threads.map(lambda _: probe(), range(4))) == {Tier.NONE}
    finally:
        successful_escapes.cache_clear()
    assert len(tested) == len(set(tested)) > 0


def test_stamp_describes_tier() -> None:
    assert stamp(Tier.NONE, Policy()) == "UNISOLATED"
    bounded = Policy(memory_bytes=1 << 30)
    assert stamp(Tier.LANDLOCK, bounded).startswith("landlock (")
    assert "memory by rlimit" in stamp(Tier.LANDLOCK, bounded)
    # CUDA reserves more memory than any limit would allow.
    assert "memory by watch" in stamp(Tier.LANDLOCK, replace(bounded, gpu=True))
