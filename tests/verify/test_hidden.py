"""Hidden dependencies of a reference are found, and harmless caches are accepted."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shares import slow_except

from cuagent.task import load_task, open_reference
from cuagent.verify.fitness.hidden import hidden_dependencies

CLEAN = {"random": [], "changed_state": [], "noise": 0.0}
SOURCE = """
import functools, itertools, os, random, time, torch
import numpy as np
from datetime import datetime
from time import monotonic as now
from beside import table
{prelude}
class Model(torch.nn.Module):
    {attributes}
    def __init__(self):
        super().__init__()
        {construct}
    def forward(self, x):
        {forward}
def get_inputs():
    return [torch.rand(8, 33)]
"""
Found = Callable[..., dict[str, Any]]


@pytest.fixture
def found(tmp_path: Path) -> Found:
    def examined(forward: str, construct: str = "", prelude: str = "", attributes: str = "") -> Any:
        (tmp_path / "beside.py").write_text("table = []\n")
        path = tmp_path / "task.py"
        text = SOURCE.format(
            forward=forward,
            construct=construct or "pass",
            prelude=prelude,
            attributes=attributes,
        )
        path.write_text(text)
        return hidden_dependencies(open_reference(load_task(path, device="cpu")), CLEAN)

    return examined


DEPENDENT = {
    "a counter past a threshold": (
        "self.n += 1; return x * (1 + (self.n > 5))",
        "self.n = 0",
        "calls",
    ),
    "a counter past a far threshold": (
        "self.n += 1; return x * (1 + (self.n > 900))",
        "self.n = 0",
        "later",
    ),
    "every 5,000 calls": (
        "self.n += 1; return x * (2 if self.n % 5000 == 0 else 1)",
        "self.n = 0",
        "later",
    ),
    "a slow drift with calls": (
        "self.n += 1; return x * (1 + 1e-9 * self.n)",
        "self.n = 0",
        "later",
    ),
    "the first input": (
        "self.mean = getattr(self, 'mean', None) or float(x.mean()); return x - self.mean",
        "",
        "calls",
    ),
    "a list that grows": (
        "self.seen.append(1); return x * (2 if len(self.seen) > 700 else 1)",
        "self.seen = []",
        "later",
    ),
    "a countdown": ("self.n -= 1; return x / (2 if self.n == 1 else 1)", "self.n = 9999", "later"),
    "an error after some calls": (
        "self.n += 1; assert self.n < 9; return x * 2",
        "self.n = 0",
        "calls",
    ),
    "a drift with the clock": ("return x * (1 + 1e-9 * (now() % 1e9))", "", "clock"),
    "the time since construction": (
        "return x * (1 + 1e-10 * (time.perf_counter() - self.then))",
        "self.then = time.perf_counter()",
        "clock",
    ),
    "the hour": ("return x * (1 + datetime.now().hour)", "", "clock"),
    "the time of construction": (
        "return x * self.then",
        "self.then = 1 + time.time_ns() // 10**13",
        "clock",
    ),
    "the process": ("return x * os.getpid()", "", "clock"),
    "random bytes at construction": (
        "return x * self.w",
        "self.w = int.from_bytes(os.urandom(4))",
        "construction",
    ),
}


@pytest.mark.parametrize(
    "name",
    slow_except(
        DEPENDENT,
        "a list that grows",
        "the hour",
        "the first input",
        "random bytes at construction",
    ),
)
def test_hidden_dependency_is_found(found: Found, name: str) -> None:
    forward, construct, what = DEPENDENT[name]
    assert found(forward, construct)["depends_on"] == what


@pytest.mark.parametrize(
    ("parts", "changes"),
    [
        pytest.param(
            {"prelude": "n = [0]", "forward": "n[0] += 1; return x * (1 + (n[0] > 900))"},
            "n",
            marks=pytest.mark.slow,
        ),
        (
            {"attributes": "n = 0", "forward": "Model.n += 1; return x * (1 + (Model.n > 900))"},
            "Model.n",
        ),
        (
            {"prelude": "n = 0", "forward": "global n; n += 1; return x * (1 + (n > 900))"},
            "n",
        ),
        pytest.param(
            {"forward": "table.append(1); return x * (1 + (len(table) > 700))"},
            "table",
            marks=pytest.mark.slow,
        ),
        (
            {
                "construct": "self.inner = torch.nn.Identity(); self.inner.n = 0",
                "forward": "self.inner.n += 1; return x * (1 + (self.inner.n > 900))",
            },
            "self.inner.n",
        ),
    ],
    ids=["list", "class", "global", "beside", "child"],
)
def test_counter_is_found_in_any_namespace(
    found: Found, parts: dict[str, str], changes: str
) -> None:
    findings = found(**parts)
    assert findings["depends_on"] == "later"
    assert findings["later"].startswith(changes)


BENIGN = {
    "a mask kept by shape": (
        "if self.mask is None or self.mask.shape != x.shape:\n"
        "            self.mask = torch.ones_like(x).tril()\n"
        "        return x * self.mask",
        "self.mask = None",
        "",
    ),
    "a table built at first use": (
        "return x * rope(x.shape[-1])",
        "",
        "@functools.lru_cache\ndef rope(n):\n    return torch.arange(n).cos()",
    ),
    "a table that grows on demand": (
        "if x.shape[-1] > self.most:\n"
        "            self.most = x.shape[-1]; self.table = torch.arange(self.most).sin()\n"
        "        return x * self.table[: x.shape[-1]]",
        "self.most = 0",
        "",
    ),
    "two alternating buffers": (
        "self.turn = (self.turn + 1) % 2; out = self.buffers[self.turn]; out.copy_(x * 2)\n"
        "        return out",
        "self.turn = 0; self.buffers = [torch.empty(8, 33) for _ in range(2)]",
        "",
    ),
    "its own duration": (
        "begun = time.time(); y = x * 2; self.took = time.time() - begun; return y",
        "",
        "",
    ),
    "calls counted for statistics": ("self.n += 1; return x * 2", "self.n = 0", ""),
    "a weight drawn from torch's seed": ("return x * self.w", "self.w = torch.rand(33)", ""),
}


@pytest.mark.parametrize(
    "name",
    slow_except(
        BENIGN, "a table built at first use", "two alternating buffers", "a mask kept by shape"
    ),
)
def test_state_that_changes_no_answer_is_accepted(found: Found, name: str) -> None:
    forward, construct, prelude = BENIGN[name]
    findings = found(forward, construct, prelude)
    assert findings["depends_on"] == "", findings
    assert findings["draws"] == []


def test_changed_state_random_draws_and_opened_files_are_reported(
    found: Found, tmp_path: Path
) -> None:
    counted = found("self.n += 1; return x * 2", "self.n = 0")
    assert counted["changes"] == ["self.n"]
    assert counted["calls"] > 3
    assert found("random.random(); return x * 2")["draws"] == ["random"]
    assert found("np.random.rand(); return x * 2")["draws"] == ["numpy.random"]
    file = tmp_path / "weights.txt"
    file.write_text("2")
    assert found(f"return x * float(open({str(file)!r}).read())")["opens"] == [str(file)]


def test_environment_is_restored(found: Found) -> None:
    before = (time.time, os.getpid, open, sys.modules.get("beside"), random.getstate())
    begun = time.perf_counter()
    found("return x * now()")
    assert (time.time, os.getpid, open, sys.modules.get("beside"), random.getstate()) == before
    assert time.perf_counter() - begun < 60  # usually below one second
