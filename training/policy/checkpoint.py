"""Save and load checkpoints; a resumed stage gives the same result as an uninterrupted one.

A checkpoint is a folder `step-00000012/`. It has weights and optimizers as a distributed checkpoint
of torch (DCP: every process writes its part, and any number of processes can read it, sharded or
not), and `state.pt` with random states and position (the stage's own counters). The folder is
written under another name and then renamed, so a folder with the final name is complete. Several
nodes need a shared folder. This format is for resuming only; finished models are saved as Hugging
Face folders.
Not covered: frozen weights below an adapter; the policy's folder has them.
"""

from __future__ import annotations

import random
import shutil
import time
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
from cuagent.training.data.segments import RecordError

SAVE_S = 900.0
"""Longest time in seconds after which a stage saves a checkpoint, independently of `save_every`."""
STATE, WEIGHTS = "state.pt", "weights"
TRAINED = StateDictOptions(ignore_frozen_params=True, strict=False)

Modules = Mapping[str, torch.nn.Module]
Optimizers = Mapping[str, torch.optim.Optimizer]


class SaveTimer:
    """Timer that limits the work that a kill can undo: steps of a large model take minutes."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def due(self, force: bool) -> bool:
        """Return True if a checkpoint should be saved now; `force` overrides the interval.

        All processes call it together and get the same answer.
        """
        late = time.monotonic() - self._last > SAVE_S
        due = force or parallel.sum_number(float(late)) > 0
        if due:
            self._last = time.monotonic()
        return due


def save_checkpoint(
    out: Path,
    step: int,
    modules: Modules,
    optimizers: Optimizers,
    position: Mapping[str, Any],
    keep: int = 2,
) -> Path:
    """Write the folder `out/step-N` and return it; delete all but the newest `keep`.

    `position`: the stage's own counters, as plain data.
    """
    final, partial = out / f"step-{step:08d}", out / f".partial-{step:08d}"
    if parallel.rank() == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    parallel.barrier()
    # An optimizer that never stepped has no state, and get_optimizer_state_dict would step it.
    moved = [name for name, optimizer in optimizers.items() if optimizer.state]
    with ignore_single_process_warning():
        save(tensors(modules, optimizers, moved), checkpoint_id=partial / WEIGHTS)
    if parallel.rank() == 0:
        torch.save(
            {
                "step": step,
                "moved": moved,
                "position": dict(position),
                "torch": torch.get_rng_state(),
                # Only the current GPU: a call to the others could disturb timings there.
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
    """Return the tensors that DCP writes or reads, by module name: weights, and optimizer states.

    `moved`: names of the optimizers that have made a step; only these have states.
    """
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
def ignore_single_process_warning() -> Iterator[None]:
    """Suppress DCP's warning about a single process inside this context; a single process is a
    supported case here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


def latest_checkpoint(out: Path) -> Path | None:
    """Return the newest complete checkpoint under `out`, or None.

    All processes call it together.
    """
    newest = max(out.glob("step-*"), default=None)
    # No process may write a new checkpoint before all have listed the folder.
    parallel.barrier()
    return newest


def rewind(out: Path, step: int, modules: Modules, optimizers: Optimizers) -> Path:
    """Load the newest checkpoint of step `step` or earlier (if none, the oldest), and delete the
    later ones.

    Returns the loaded folder. Raises RecordError if the checkpoint does not fit the models.
    """
    saved = sorted(out.glob("step-*"))
    parallel.barrier()  # no process may delete one before all have listed the folder
    chosen = max((c for c in saved if c.name <= f"step-{step:08d}"), default=saved[0])
    load_checkpoint(chosen, modules, optimizers)
    parallel.barrier()
    if parallel.rank() == 0:
        for later in saved[saved.index(chosen) + 1 :]:
            drop(later)
    parallel.barrier()
    return chosen


def drop(checkpoint: Path) -> None:
    """Delete the folder of a checkpoint.

    The folder is renamed first, so a kill leaves no partial checkpoint under the valid name.
    """
    gone = checkpoint.with_name(f".gone-{checkpoint.name}")
    shutil.rmtree(gone, ignore_errors=True)
    shutil.rmtree(checkpoint.rename(gone))


def load_checkpoint(
    folder: Path, modules: Modules, optimizers: Optimizers
) -> tuple[int, dict[str, Any]]:
    """Restore models, optimizers and random states in place; return (step, position).

    Raises RecordError if the checkpoint does not fit the models.
    """
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        state = torch.load(folder / STATE, map_location="cpu", weights_only=True)
        found = tensors(modules, optimizers, state["moved"])
        with ignore_single_process_warning():
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
