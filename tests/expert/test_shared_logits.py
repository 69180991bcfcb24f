"""A loss of language models reads its logits once, though two operators reduce them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.task import load_task

LOSS = Path(__file__).parents[2] / "examples" / "loss.py"


@pytest.mark.parametrize("target", [Target("cpu"), Target("cuda", (9, 0), 132)], ids=str)
def test_logsumexp_and_cross_entropy_are_one_kernel(target: Target) -> None:
    """Both have the same maximum and the same sum of powers."""
    subject = open_subject(load_task(LOSS, device="cpu"))
    candidate = make_candidate(replace(subject, target=target), Options())
    assert candidate is not None
    text = candidate.files["model_new.py"]
    assert text.count("reads 16.8 MB") == 1
    assert any("logsumexp" in kernel and "cross_entropy" in kernel for kernel in candidate.kernels)
