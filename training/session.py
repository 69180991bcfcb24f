"""Prepare what every command of `cuagent train` needs: settings, packages, device, processes.

Heavy packages are imported inside the functions, so that `--help` is quick.
Not covered: the commands (`cli.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cuagent.training.settings import TrainConfig

NEEDED = ("transformers", "safetensors", "tokenizers")


def prepare(config: Path | None, sets: list[str] | None) -> TrainConfig:
    """Return the settings from a TOML file and `--set` assignments. Raises ConfigError for an
    invalid setting or a missing package."""
    needs_extra()
    from cuagent.training.config import configure
    from cuagent.training.settings import TrainConfig

    return configure(TrainConfig(), config, sets or [])


def needs_extra() -> None:
    """Raise ConfigError with the install command if a package of `cuagent[train]` is missing."""
    from cuagent.training.config import ConfigError

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{', '.join(missing)} not installed; pip install 'cuagent[train]'")


def choose_device(name: str) -> str:
    """Return `cpu` or `cuda` for the option `--device`; `auto` prefers a GPU.

    Raises ConfigError if the requested device is not available.
    """
    from cuagent.training.config import ConfigError

    if name == "cpu":
        return name
    if name not in ("auto", "cuda"):
        raise ConfigError(f"--device {name}: there are auto, cpu, cuda")
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if name == "cuda":
        raise ConfigError("cuda: torch finds no CUDA device; use --device cpu")
    return "cpu"


@contextmanager
def processes(device: str) -> Iterator[str]:
    """Yield the device of this process; join the process group if torchrun started several
    processes.

    The process group is left at the end of the context. Errors of torch that mean "out of memory"
    are raised as OutOfMemory. On Ctrl-C a message says how to resume.
    """
    from cuagent.training import parallel
    from cuagent.training.engines.engine import OutOfMemory, lacks_memory

    try:
        yield parallel.start(choose_device(device))
    except KeyboardInterrupt:
        say("stopped; the same command continues")
        raise
    except (RuntimeError, MemoryError) as error:
        if not lacks_memory(error):
            raise
        raise OutOfMemory(
            "out of memory while training; lower tokens_per_microbatch of the stage or "
            "play.context, or set placement.recompute=true or lora.rank"
        ) from error
    parallel.stop()


def say(text: str) -> None:
    """Print a line of text, in the process of rank 0 only."""
    if os.environ.get("RANK", "0") == "0":
        print(text, flush=True)
