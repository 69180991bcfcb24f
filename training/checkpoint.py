"""Checkpoints from which a stage goes on to the same result as if it had never stopped.

A checkpoint is a folder `step-00000012/` with `state.pt` (weights, optimizers, random states,
position), written beside and renamed, so that one that has its final name is whole. Finished models
leave as Hugging Face folders (`save_pretrained`); this format is for resuming only.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from cuagent.training import parallel
from cuagent.training.segments import RecordError

STATE = "state.pt"


def save_checkpoint(
    out: Path,
    step: int,
    modules: Mapping[str, torch.nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer],
    position: Mapping[str, Any],
    keep: int = 2,
) -> Path:
    """Write `out/step-N` and drop all but the newest `keep`. `position` must be plain data."""
    final = out / f"step-{step:08d}"
    if parallel.rank() == 0:
        _write(final, step, modules, optimizers, position)
        for old in sorted(out.glob("step-*"))[:-keep]:
            shutil.rmtree(old)
    parallel.barrier()
    return final


def _write(
    final: Path,
    step: int,
    modules: Mapping[str, torch.nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer],
    position: Mapping[str, Any],
) -> None:
    partial = final.with_name(f".partial-{step:08d}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    state = {
        "step": step,
        "modules": {name: module.state_dict() for name, module in modules.items()},
        "optimizers": {name: opt.state_dict() for name, opt in optimizers.items()},
        "position": dict(position),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": random.getstate(),
    }
    torch.save(state, partial / STATE)
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)


def latest_checkpoint(out: Path) -> Path | None:
    """The newest whole checkpoint under `out`, if any. All processes ask together."""
    newest = max(out.glob("step-*"), default=None)
    # Nobody writes the next one before all have looked: else they would go on from different ones.
    parallel.barrier()
    return newest


def load_checkpoint(
    folder: Path,
    modules: Mapping[str, torch.nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer],
) -> tuple[int, dict[str, Any]]:
    """Restore everything in place; returns (step, position). Raises RecordError."""
    try:
        state = torch.load(folder / STATE, map_location="cpu", weights_only=True)
        for name, module in modules.items():
            module.load_state_dict(state["modules"][name])
        for name, optimizer in optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
    except (OSError, KeyError, RuntimeError, ValueError) as error:
        raise RecordError(
            f"{folder}: does not fit this configuration; start in another folder ({error})"
        ) from error
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    return state["step"], state["position"]
