"""Threads compute vectors whose accesses fill the sectors of memory (`streaming.cuda`, GPU)."""

from __future__ import annotations

import re

import pytest
import test_reductions as reductions  # type: ignore[import-not-found]

from cuagent.expert.capture.subject import Target

HOPPER = Target("cuda", (9, 0), 132)


@pytest.mark.parametrize(
    ("body", "dtype", "width"),
    [
        ("return x * y + 1", "bfloat16", 8),
        ("return x * y + 1", "float32", 4),
        ("return x.float() * 2 + 1", "bfloat16", 4),
        ("return (x * 2 + 1).bfloat16()", "float32", 4),
        ("return x * 2, y * 3, (x + y).float()", "bfloat16", 8),
        ("return x * y[:1].float()", "bfloat16", 4),
        ("return (x * y[:1].float()).bfloat16()", "bfloat16", 8),
        ("return torch.softmax(x, -1, torch.float32)", "bfloat16", 4),
    ],
)
def test_most_bytes_decide_the_number_of_elements(generate, body, dtype, width):
    candidate = generate(reductions.text_of(body, "300, 1024", dtype), HOPPER)
    (text,) = (t for f, t in candidate.files.items() if f.endswith(".cu"))
    assert re.search(r"int VECTOR = (\d);", text)[1] == str(width)  # type: ignore[index]
