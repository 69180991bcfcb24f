"""Checkpoints from which a stage goes on to the same result as if it had never stopped.

A checkpoint is a folder `step-00000012/`: weights and optimizers as a distributed checkpoint of
torch (DCP; every process writes what it holds, and any number of processes reads it, sharded or
not), beside it `state.pt` with random states and position. It is written under another name and
renamed, so that one that has its final name is whole. Several nodes need a folder that all see.
Finished models leave as Hugging Face folders (`save_pretrained`); this format is for resuming only.
Not covered: weights that are not trained (below an adapter); the policy's folder has them.
"""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from cuagent.training import parallel
from cuagent.training.segments import RecordError

STATE, WEIGHTS = "state.pt", "weights"
TRAINED = StateDictOptions(ignore_frozen_params=True, strict=False)

Modules = Mapping[str, torch.nn.Module]
Optimizers = Mapping[str, torch.optim.Optimizer]


def save_checkpoint(
    out: Path,
    step: int,
    modules: Modules,
    optimizers: Optimizers,
    position: Mapping[str, Any],
    keep: int = 2,
) -> Path:
    """Write `out/step-N` and drop all but the newest `keep`. `position` must be plain data."""
    final, partial = out / f"step-{step:08d}", out / f".partial-{step:08d}"
    if parallel.rank() == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    parallel.barrier()
    # An optimizer that never stepped has nothing to keep (asking it would make it step).
    moved = [name for name, optimizer in optimizers.items() if optimizer.state]
    with alone_or_not():
        save(tensors(modules, optimizers, moved), checkpoint_id=partial / WEIGHTS)
    if parallel.rank() == 0:
        torch.save(
            {
                "step": step,
                "moved": moved,
                "position": dict(position),
                "torch": torch.get_rng_state(),
                # Of the GPU that trains alone: the others may be timing kernels.
                "cuda": [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else [],
                "python": random.getstate(),
            },
            partial / STATE,
        )
        if final.exists():
            drop(final)
        partial.rename(final)
        for old in sorted(out.glob("step-*"))[:-keep]:
            drop(old)
    parallel.barrier()
    return final


def tensors(modules: Modules, optimizers: Optimizers, moved: list[str]) -> dict[str, Any]:
    """What DCP writes, or reads into: weights by name, states of the optimizers in `moved`."""
    found: dict[str, Any] = {
        name: {"weights": get_model_state_dict(module, options=TRAINED)}
        for name, module in modules.items()
    }
    for name in moved:
        found[name]["optimizer"] = get_optimizer_state_dict(
            modules[name], optimizers[name], options=TRAINED
        )
    return found


@contextmanager
def alone_or_not() -> Iterator[None]:
    """DCP warns that there is one process only; that is as it should be."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


def latest_checkpoint(out: Path) -> Path | None:
    """The newest whole checkpoint under `out`, if any. All processes ask together."""
    newest = max(out.glob("step-*"), default=None)
    # Nobody writes the next one before all have looked: else they would go on from different ones.
    parallel.barrier()
    return newest


def rewind(out: Path, step: int, modules: Modules, optimizers: Optimizers) -> Path:
    """Restore the newest checkpoint of at most `step`, or else the oldest, and drop those after it.
    Raises RecordError."""
    kept = sorted(out.glob("step-*"))
    parallel.barrier()  # nobody drops any before all have looked
    chosen = max((c for c in kept if c.name <= f"step-{step:08d}"), default=kept[0])
    load_checkpoint(chosen, modules, optimizers)
    parallel.barrier()
    if parallel.rank() == 0:
        for later in kept[kept.index(chosen) + 1 :]:
            drop(later)
    parallel.barrier()
    return chosen


def drop(checkpoint: Path) -> None:
    """Under another name first: after a kill, too, what has its final name is whole."""
    gone = checkpoint.with_name(f".gone-{checkpoint.name}")
    shutil.rmtree(gone, ignore_errors=True)
    shutil.rmtree(checkpoint.rename(gone))


def load_checkpoint(
    folder: Path, modules: Modules, optimizers: Optimizers
) -> tuple[int, dict[str, Any]]:
    """Restore everything in place; returns (step, position). Raises RecordError."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        state = torch.load(folder / STATE, map_location="cpu", weights_only=True)
        found = tensors(modules, optimizers, state["moved"])
        with alone_or_not():
            load(found, checkpoint_id=folder / WEIGHTS)
    except (OSError, KeyError, RuntimeError, ValueError, CheckpointException) as error:
        why: object = error
        if isinstance(error, CheckpointException):  # its own text has the tracebacks of all ranks
            why = next(iter(error.failures.values()))[0]
        raise RecordError(
            f"{folder}: does not fit this configuration; start in another folder ({why})"
        ) from error
    for name, module in modules.items():
        set_model_state_dict(module, found[name]["weights"], options=TRAINED)
    for name, optimizer in optimizers.items():
        optimizer.state.clear()
        if name in state["moved"]:
            set_optimizer_state_dict(
                modules[name], optimizer, found[name]["optimizer"], options=TRAINED
            )
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"][0])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    return state["step"], state["position"]
