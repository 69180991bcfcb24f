"""Choose the devices that judge and the devices that train in a demonstration, and the locks of
shared devices.

Not covered: the judges (`judging/pool.py`), the training (`demo.py`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from cuagent.device_lock import DeviceLock
from cuagent.measure.system_load import cores_for
from cuagent.task import Device
from cuagent.timing import Effort
from cuagent.training.demo.presets import DemoConfig
from cuagent.training.demo.rehearsal import Rehearsal
from cuagent.training.judging.judge_process import gpu_memory, max_open_tasks
from cuagent.training.judging.pool import JudgePool


@contextmanager
def open_pool(config: DemoConfig, out: Path) -> Iterator[JudgePool | Rehearsal]:
    """Yield the pool of judges that the settings select; its cache file is in `out` by default.

    Inside this context, this process and its children avoid the cores that judge, if other cores
    exist: training and compiling would disturb the timing.
    """
    out.mkdir(parents=True, exist_ok=True)
    if config.rehearsal:
        yield Rehearsal()
        return
    memory = Path(config.judgements or out / "judgements.pickle")
    effort = Effort.GLANCE if config.timed else None
    cores, before = judging_cores(config), os.sched_getaffinity(0)
    os.sched_setaffinity(0, before - set(cores) or before)
    try:
        with JudgePool(
            effort,
            gpus=config.gpus,
            cache_file=memory,
            cores=cores,
            judges_per_gpu=fitting_judges_per_gpu(config),
        ) as pool:
            yield pool
    finally:
        os.sched_setaffinity(0, before)


def fitting_judges_per_gpu(config: DemoConfig) -> int:
    """Return the number of judging processes per GPU: `config.beside`, or fewer if the GPU's memory
    cannot hold all open tasks.

    Opening a task again would cost more time than another process saves.
    """
    if config.kernels is not Device.CUDA or config.beside == 1:
        return config.beside
    known = [gpu_memory(n) for n in config.gpus]
    total = min((size for size in known if size is not None), default=0)
    if None in known or not total:
        return config.beside  # opening a task reports the error
    tasks = math.ceil((config.gym.train + config.gym.heldout) / len(config.gpus))
    fit = [n for n in range(1, config.beside + 1) if n * max_open_tasks(total, n) >= tasks]
    return max(fit, default=1)


def training_devices(config: DemoConfig, device: str) -> list[str]:
    """Return the names of the devices on which seeds train, such as `cuda:1`.

    With `device` cuda these are all GPUs that time no kernels. If every GPU times kernels, they are
    the timing GPUs, shared by a lock.
    """
    if device != "cuda":
        return [device]
    timing = config.gpus if config.kernels is Device.CUDA else ()
    free = [n for n in range(torch.cuda.device_count()) if n not in timing]
    return [f"cuda:{n}" for n in free or config.gpus]


def lock_for(config: DemoConfig, pool: JudgePool | Rehearsal, place: str) -> DeviceLock:
    """Return the lock to hold while training on device `place` (such as `cuda:0`).

    If kernels are timed on that GPU, it is the lock that the judges of `pool` hold while they time.
    """
    timing = {f"cuda:{n}": n for n in config.gpus} if config.kernels is Device.CUDA else {}
    return pool.device_lock(timing[place]) if place in timing else DeviceLock()


def judging_cores(config: DemoConfig) -> list[int]:
    """Return the indices of the `config.cores` CPU cores that judge, on different physical cores if
    there are enough."""
    if not config.cores:
        return []
    return sorted(cores_for(config.cores) or os.sched_getaffinity(0))[: config.cores]
