"""Examine candidate tasks one after another in a forked process, the child of `process.py`.

A crash ends only this process.
"""

from __future__ import annotations

import gc
import socket
import sys
from pathlib import Path
from typing import Any

from cuagent.synth.examine import Examined
from cuagent.synth.order import AGAIN, REUSABLE, Order
from cuagent.synth.progress import Progress
from cuagent.synth.reasons import Reason, Rejected
from cuagent.worker.channel import receive_message, send_message

SEED = 0
"""Seed of the checks' random numbers, so that they do not depend on the candidates before."""
LEFT = 256 << 20
"""Largest number of bytes of GPU memory, such as workspaces of libraries, with which a process
examines another candidate."""


def serve(channel: socket.socket, folder: Path) -> None:
    """Examine one candidate after another until `channel` closes.

    A message names the folder with the candidate's order. The answer has the measured facts, or the
    reason of its rejection.
    """
    import torch

    torch.set_num_threads(1)
    while (received := receive_message(channel)) is not None:
        torch.manual_seed(SEED)
        send_message(channel, _answer(Path(received[0]["folder"])))


def _answer(folder: Path) -> dict[str, Any]:
    """Examine the candidate of the order in `folder`."""
    used_s = _cpu_seconds()
    order = Order.read(folder)
    progress = Progress(folder)
    stages: dict[str, float] = {}
    reusable, answer = _examined(order, folder, stages, progress)
    reusable &= _cleaned()
    if _ran_out_of_memory():
        # The result may be wrong, because some checks regard an error as the candidate's.
        answer[AGAIN] = not order.alone
        if answer.get("reason") == Reason.FAILS.value:
            answer["reason"] = Reason.MEMORY.value
        reusable = False
    seconds = {name: round(value, 3) for name, value in stages.items()}
    cpu_s = round(_cpu_seconds() - used_s, 2)
    answer |= {"cpu_s": cpu_s, "stages": seconds, REUSABLE: reusable}
    return answer | ({"gpu": progress.seen.to_json()} if order.lock else {})


def _examined(
    order: Order, folder: Path, stages: dict[str, float], progress: Progress
) -> tuple[bool, dict[str, Any]]:
    """Return (True if no unexpected error occurred, facts or reason of the rejection)."""
    import torch

    if order.compile:
        import torch._inductor.config

        # The number of its processes, one for each core, was read when the fork server imported it.
        torch._inductor.config.compile_threads = 1
    try:
        return True, Examined(order, folder, stages, progress).facts()
    except Rejected as rejected:
        return rejected.reason not in (Reason.FAILS, Reason.COMPILE_FAILS), {
            "reason": rejected.reason.value,
            "detail": rejected.detail,
        }
    except torch.OutOfMemoryError as error:
        detail = " ".join(str(error).split())[:200]
        return False, {"reason": Reason.MEMORY.value, "detail": detail}
    except Exception as error:  # noqa: BLE001 - the process boundary: a foreign module failed
        detail = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return False, {"reason": Reason.FAILS.value, "detail": detail}


def _cleaned() -> bool:
    """Free the candidate's memory; return True if little GPU memory remains allocated."""
    import torch

    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    gc.collect()
    if not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.empty_cache()
    except RuntimeError:  # a kernel failed, and CUDA refuses all further calls of this process
        return False
    return torch.cuda.memory_allocated() < LEFT


def _ran_out_of_memory() -> bool:
    """Return True if an allocation on the GPU has failed in this process."""
    import torch

    return torch.cuda.is_initialized() and torch.cuda.memory_stats().get("num_ooms", 0) > 0


def _cpu_seconds() -> float:
    """Return the processor time in seconds of this process and its ended child processes, such as
    compilers."""
    import resource

    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)
