"""Collect the software and hardware versions that can change the last digits of a verdict."""

from __future__ import annotations

import platform

from cuagent import __version__
from cuagent.task import Device


def versions(device: Device) -> dict[str, str]:
    """Return the versions by component name, for example "torch".

    "machine" is the GPU, or the CPU's capability and thread count.
    """
    import torch

    arithmetic = f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
    on_gpu = device is Device.CUDA
    return {
        "machine": torch.cuda.get_device_name() if on_gpu else arithmetic,
        "cuagent": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
    }
