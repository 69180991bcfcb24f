"""Blocks of transformers and timm, built from small configurations, if they are installed."""

from __future__ import annotations

import random

from cuagent.synth.compose import Candidate


def block_candidate(draw: random.Random, index: int) -> Candidate | None:
    return None
