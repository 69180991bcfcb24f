"""Processes that a program under ncu leaves behind."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cuagent.measure.profile import counters
from cuagent.measure.profile.counters import CountersMissing, run

pytestmark = pytest.mark.slow

NCU = """#!/bin/sh
(setsid sh -c 'while true; do date +%s.%N > {sign}; sleep 0.1; done' &)
while [ ! -s {sign} ]; do sleep 0.05; done
echo '"Kernel Name"'
echo no more >&2
sleep {seconds}
"""


@pytest.mark.parametrize("seconds", [0.5, 600])
def test_ncu_ends_with_all_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """They keep ncu's output open, and could slow the timings that follow."""
    sign, ncu = tmp_path / "sign", tmp_path / "ncu"
    ncu.write_text(NCU.format(sign=sign, seconds=seconds))
    ncu.chmod(0o755)
    monkeypatch.setattr(counters.shutil, "which", lambda _: str(ncu))
    begun = time.monotonic()
    if seconds < 1:
        assert run(["program"], {"PATH": "/usr/bin:/bin"}, tmp_path, 100.0) == '"Kernel Name"\n'
    else:
        with pytest.raises(CountersMissing, match="ncu took more than 4 s"):
            run(["program"], {"PATH": "/usr/bin:/bin"}, tmp_path, 4.0)
    assert time.monotonic() - begun < 200
    last = sign.read_text()
    time.sleep(0.5)
    assert sign.read_text() == last
