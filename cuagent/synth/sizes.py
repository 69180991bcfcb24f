"""Find a batch size at which the eager time of a task is in the time window.

A first size is predicted from memory traffic and arithmetic, counted at two batch sizes, and
nominal rates of the device. These do not vary between runs, so the same seed leads to the same
sizes. Timed runs then check the size; it is changed by a factor of 4 while the time is outside of
the window.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from cuagent.synth.reasons import Reason, Rejected

PROBES = (8, 16)
"""The two batch sizes at which the work of a call is counted."""
CLIMB = 16
"""Ratio of two successive batch sizes that are tried before the predicted size, so that no call
takes much longer than the time window allows."""
STEPS = 4
"""Largest number of batch sizes that are timed for one task."""
REPEATS = 5
"""Number of timed calls, of which the fastest is used, because a busy machine only adds time."""
WAITING = 50
"""Ratio of wall time to processor time above which a call on a CPU counts as one that waits, such
as for a file: other processes of a busy machine do not take so much."""


@dataclass(frozen=True)
class Rates:
    """Nominal rates of a kind of device, by which times are predicted."""

    bytes_per_s: float
    flops_per_s: float
    half_flops_per_s: float
    """The GPU's rate in half precision, in FLOP per second."""
    call_s: float
    """Fixed time of one operator call in seconds."""


MARGIN = 1.15
"""Factor on estimates of memory, for fragmented memory."""
FIXED = 1 << 29
"""Bytes of memory that a process needs besides tensors, such as workspaces of libraries."""
NOMINAL = {
    "cpu": Rates(6e9, 5e10, 2e10, 4e-6),
    "cuda": Rates(2e12, 3e13, 3e14, 6e-6),
}


@dataclass(frozen=True)
class Cost:
    """Counted memory traffic and arithmetic of one eager call of a task."""

    bytes: int
    """Bytes that all operators of a task together read and write."""
    made: int
    """Total bytes of all operators' results, an upper limit of the memory that a call allocates."""
    flops: int
    calls: int
    inputs: int = 0
    outputs: int = 0

    @property
    def held(self) -> int:
        """Upper limit in bytes of the memory of one call with its inputs."""
        return self.inputs + self.made

    def checked(self, dtype: str) -> int:
        """Return the estimated bytes of memory that the checks of the task need at most.

        The factors are numbers of copies that the stages `fit`, `fp64` and `certified` keep at the
        same time. The peaks of 11 tasks, measured on a CPU, were 0.7 to 1.0 of the estimate.
        """
        wide = 2 if dtype == "float32" else 4
        fit = 6 * self.inputs + self.made + 2 * self.outputs
        fp64 = self.inputs + self.outputs + wide * self.held
        certified = 3 * self.inputs + 2 * self.made + (3 + wide // 2) * self.outputs
        return _with_margin(max(fit, fp64, certified))

    def compiled(self, dtype: str) -> int:
        """Return the estimated bytes of memory that the run under torch.compile needs at most, with
        the outputs to compare with in fp32."""
        return _with_margin(self.held + (1 if dtype == "float32" else 2) * self.outputs)

    def seconds(self, device: str, dtype: str) -> float:
        """Return the predicted time of the call in seconds; `dtype`: dtype of the matrix
        products."""
        rates = NOMINAL[device]
        flops_per_s = rates.flops_per_s if dtype == "float32" else rates.half_flops_per_s
        work = self.bytes / rates.bytes_per_s + self.flops / flops_per_s
        return work + self.calls * rates.call_s


NOTHING = Cost(0, 0, 0, 0)


def _with_margin(size: int) -> int:
    return int(MARGIN * size) + FIXED


@dataclass(frozen=True)
class Prediction:
    """Batch sizes that are predicted from the costs at two small ones."""

    first: int = 0
    """Batch size to try first; 0 if the code's own size is kept."""
    largest: int = 0
    """Largest batch size whose inputs and results fit into the memory limit."""
    near: Cost = NOTHING
    far: Cost = NOTHING
    """Costs at the two batch sizes of `PROBES`."""

    def at(self, batch: int) -> Cost:
        """Return the cost at a batch size, linear in the two measured costs."""
        share = (batch - PROBES[0]) / (PROBES[1] - PROBES[0])
        values = ((getattr(self.near, f.name), getattr(self.far, f.name)) for f in fields(Cost))
        return Cost(*(max(0, round(a + share * (b - a))) for a, b in values))


def count_cost(run: Callable[[], Any], inputs: Any = ()) -> Cost:
    """Call `run` once and return its counted memory traffic and arithmetic. `inputs`: the tensors
    that it reads."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import FlopCounterMode

    class Counter(TorchDispatchMode):
        bytes = made = calls = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            self.calls += 1
            if not func.is_view:
                made = _bytes(out)
                self.made += made
                self.bytes += made + _bytes(args)
            return out

    with FlopCounterMode(display=False) as flops, Counter() as counter:
        output = run()
    sizes = counter.bytes, counter.made, flops.get_total_flops(), counter.calls
    return Cost(*sizes, _bytes(inputs), _bytes(output))


def _bytes(values: Any) -> int:
    import torch

    if isinstance(values, torch.Tensor):
        # The repeated elements of an expanded tensor are read from the cache, so they do not count.
        size = values.untyped_storage().nbytes()
        return min(size, values.numel() * values.element_size())
    if isinstance(values, list | tuple):
        return sum(map(_bytes, values))
    return 0


def predicted_batch(
    low: Cost, high: Cost, device: str, dtype: str, target_s: float, memory: int
) -> int:
    """Return the batch size at which a call is predicted to take `target_s` seconds and its inputs
    and results fit into `memory` bytes.

    `low`, `high`: costs at the two batch sizes of `PROBES`.
    """
    near, far = low.seconds(device, dtype), high.seconds(device, dtype)
    step = PROBES[1] - PROBES[0]
    slope = (far - near) / step
    if slope <= 0:
        return PROBES[0]
    batch = PROBES[0] + (target_s - near) / slope
    if (grown := (high.held - low.held) / step) > 0:
        batch = min(batch, memory / grown)
    return rounded(batch)


def rounded(batch: float) -> int:
    """Return the batch size rounded down to four significant bits, at least 1."""
    whole = max(1, int(batch))
    shift = max(0, whole.bit_length() - 4)
    return whole >> shift << shift


def climbed(first: int, most_s: float, call_s: Callable[[int], float]) -> int:
    """Return `first`, or a smaller batch size at which one call already takes longer than `most_s`
    seconds.

    The nominal rates may be far too high for an operator. So calls grow in steps of `CLIMB`, each
    only if the call before took at most `most_s`. `call_s`: function that returns the seconds of
    one call at a batch size.
    """
    batch = PROBES[1] * CLIMB
    while batch < first:
        if call_s(batch) > most_s:
            return batch
        batch *= CLIMB
    return first


def solve(
    first: int, window: tuple[float, float], timed: Callable[[int], float], largest: int
) -> tuple[int, float]:
    """Return (batch size whose time is in `window`, seconds of one call at it). Raises Rejected if
    none is found.

    `first`: batch size to try first. `largest`: largest batch size. `timed`: function that returns
    the seconds of one call at a batch size.
    """
    batch, tried = min(first, largest), set[int]()
    for _ in range(STEPS):
        seconds = timed(batch)
        tried.add(batch)
        if window[0] <= seconds <= window[1]:
            return batch, seconds
        batch = min(batch * 4, largest) if seconds < window[0] else max(1, rounded(batch / 4))
        if batch in tried:
            break
    raise Rejected(Reason.TIME, f"{seconds * 1e3:.3g} ms at a batch of {max(tried)}")


def fastest(
    run: Callable[[], Any], device: str, repeats: int = REPEATS, most_s: float = math.inf
) -> float:
    """Return the seconds of the fastest of `repeats` calls after one call that is not timed.

    On a CPU they are processor seconds, so that a busy machine hardly changes the sizes of tasks,
    except for calls that wait (`WAITING`). Ends early once a call has taken longer than `most_s`
    seconds.
    """
    import torch

    on_gpu = device == "cuda"
    wait: Callable[[], None] = torch.cuda.synchronize if on_gpu else lambda: None
    run()
    times: list[float] = []
    while len(times) < repeats and not (times and times[-1] > most_s):
        wait()
        started, begun = time.perf_counter(), time.process_time()
        run()
        wait()
        wall, spent = time.perf_counter() - started, time.process_time() - begun
        times.append(wall if on_gpu or spent * WAITING < wall else spent)
    return min(times)
