"""Shared parts of the command line tests: the task, the environment and the type of a command's
runner."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

Cuagent = Callable[..., "subprocess.CompletedProcess[str]"]
FOREIGN = ("CUAGENT_", "OPENAI_", "ANTHROPIC_", "COLUMNS", "FORCE_COLOR", "NO_COLOR")


TASK = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)
def get_inputs():
    return [torch.randn(4, 8)]
def get_init_inputs():
    return []
"""
"""The module that the tests optimize; its ladder is measured one time (`ladder_known`)."""


def clean_environment(home: Path) -> dict[str, str]:
    """Return this process's environment without the developer's settings and keys, with `home` as
    the home folder."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
    return kept | {"HOME": str(home), "XDG_CONFIG_HOME": str(home / "config")}
