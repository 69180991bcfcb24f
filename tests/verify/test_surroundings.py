"""The note of a verdict on calls by which an attempt can learn about its process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cuagent.attempt import Attempt
from cuagent.verdict import Verdict
from cuagent.verify.surroundings import NOTE, note, surroundings

PLAIN = """
import math
import torch
import torch.nn.functional as F
from cuagent.kernels import load

kernel = load("kernels/a.cpp")


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return kernel.system_of(x, x.device.type == "cuda")
"""
SOURCE = """
#include <cmath>
// getenv("HOME") and system() are not called
extern "C" void system_of(float* y, float time) { *y = std::exp(time); }
"""


@pytest.mark.parametrize(
    ("python", "source", "named"),
    [
        ("import os\n", "", ("os",)),
        ("from os.path import exists\n", "", ("os.path",)),
        ("import cuagent.worker.program\n", "", ("cuagent.worker.program",)),
        ("here = __file__\n", "", ("__file__",)),
        ("text = open('/proc/self/cmdline').read()\n", "", ("open",)),
        ("", 'static bool judged = getenv("CUAGENT_BUILD");', ("getenv",)),
        ("", "#include <chrono>\nauto now() { return std::chrono::seconds(1); }", ("std::chrono",)),
        ("", "int f() { return getpid() + gettid(); }", ("getpid", "gettid")),
        ("", "", ()),
    ],
)
def test_uses_of_the_process_are_named(python: str, source: str, named: tuple[str, ...]) -> None:
    attempt = Attempt((("kernels/a.cpp", SOURCE + source), ("model_new.py", python + PLAIN)))
    assert surroundings(attempt) == named
    assert note(attempt).startswith(NOTE) is bool(named)


def test_the_note_says_if_the_task_reads_the_same() -> None:
    attempt = Attempt((("model_new.py", "import io\nfrom pathlib import Path\n" + PLAIN),))
    same = note(attempt, "import io, pathlib, os\n")
    assert "(io, pathlib, as the task's file does)" in same
    assert "(io, pathlib): read it" in note(attempt, "import io\n")
    assert "(io, pathlib): read it" in note(attempt)


def test_verdict_has_the_note(judged: Callable[[str], Verdict]) -> None:
    scaled = "x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.scale"
    right = f"return torch.relu(self.linear({scaled}))"
    plain, aware = judged(right), judged(f"import sys\nassert sys.argv\n{right}")
    assert plain.accepted
    assert aware.accepted
    assert [note for note in plain.notes if NOTE in note] == []
    assert [note for note in aware.notes if NOTE in note and "sys" in note] != []


def test_text_beyond_the_parsers_depth_names_nothing() -> None:
    """`verify` ended with an internal error instead of a rejection."""
    for deep in ("x = " + "-" * 100_000 + "1", "(" * 5_000, "a\0b"):
        assert surroundings(Attempt((("model_new.py", deep),))) == ()
