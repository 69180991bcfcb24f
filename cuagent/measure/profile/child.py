"""Run one model under torch.profiler in a child process, and write its figures to a JSON file.

An attempt's code shares this process, so the figures are feedback for the author of the attempt
only: no verdict, score or time of record uses them. The reference is in this process too, because
its inputs and weights are needed; no seed of the referee is.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import statistics
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent.arms import CANDIDATE
from cuagent.kernels.calls import Launcher
from cuagent.measure.roofline.model import Work
from cuagent.measure.roofline.work import count_calls
from cuagent.sandbox import Tier, enter
from cuagent.sandbox.policy import policy_from_json
from cuagent.task import Device, TaskError, Values, flatten, open_reference, read_settings
from cuagent.task.reference import Reference
from cuagent.task.settings import arm_settings, candidate_settings
from cuagent.worker.arms import ModelSpec, import_arm
from cuagent.worker.channel import receive_message, send_message

if TYPE_CHECKING:
    import torch

REQUEST = "profile-order.json"
RESULT = "profile.json"
OWN_KERNEL = "own kernel: "
"""Prefix of the name of an attempt's kernel launcher among the profiled operators."""
TRACED_S = 0.3
"""Approximate duration in seconds of all profiled calls together."""
MAX_CALLS = 20
"""Largest number of profiled calls of the model."""
MOST_EVENTS = 10_000
"""Largest number of events in a trace of several calls.

torch takes some 0.1 ms to read one. The calls of a network of 700 operators in `TRACED_S` have
70,000, which took 9 s (H200).
"""


def serve(channel: socket.socket, folder: Path) -> None:
    """Prepare the model that the request names, report that it is ready, and profile it when asked.

    Everything that does not depend on an attempt's libraries is done first, while they are
    compiled. The child ends when the channel is closed.
    """
    received = receive_message(channel)
    if received is None:
        return
    message, _ = received
    if message["policy"] is not None:
        enter(policy_from_json(message["policy"]), Tier(message["tier"]))
    try:
        opened = _open(ModelSpec.from_json(json.loads((folder / REQUEST).read_text())))
        send_message(channel, {"opened": True})
        if receive_message(channel) is None:
            return
        result = _profile(opened, folder)
    except TaskError as error:
        result = {"error": str(error)}
    except BaseException as error:  # noqa: BLE001 - the process boundary: candidates raise anything
        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    (folder / RESULT).write_text(json.dumps(result))


def once(folder: Path) -> None:
    """Run the model once in the range that ncu profiles, in a separate process under ncu.

    ncu was started in the attempt's sandbox.
    """
    import torch

    model_spec = ModelSpec.from_json(json.loads((folder / REQUEST).read_text()))
    assert model_spec.task is not None
    reference = dataclasses.replace(open_reference(model_spec.task), values=Values.DRAWN_THERE)
    inputs = reference.inputs(model_spec.seed)
    model: Any = reference.model(model_spec.seed)
    _apply_settings(model_spec)
    if model_spec.arm == CANDIDATE:
        model = _candidate(model_spec, reference, model, folder)
    with torch.no_grad():
        for _ in range(2):
            model(*inputs)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        model(*inputs)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


@dataclasses.dataclass(frozen=True)
class _Opened:
    """Task, inputs and model that are prepared before an attempt is known."""

    model_spec: ModelSpec
    reference: Reference
    inputs: list[Any]
    model: torch.nn.Module
    """The reference's model."""


def _open(model_spec: ModelSpec) -> _Opened:
    """Build the reference and its inputs, and start the device and the profiler, which takes
    seconds."""
    import torch

    assert model_spec.task is not None
    reference = dataclasses.replace(open_reference(model_spec.task), values=Values.DRAWN_THERE)
    opened = _Opened(
        model_spec, reference, reference.inputs(model_spec.seed), reference.model(model_spec.seed)
    )
    _apply_settings(model_spec)
    _traced(lambda: torch.zeros(1, device=model_spec.device.value).add_(1), model_spec.device, 1)
    return opened


def _apply_settings(model_spec: ModelSpec) -> None:
    """Apply torch's settings for this arm, as verdicts and timings do.

    Call it after the task's file was imported, because the file may change the settings.
    """
    own, precision = read_settings(), model_spec.precision
    if model_spec.arm == CANDIDATE:
        candidate_settings(own, precision).apply()
    else:
        arm_settings(own, precision, model_spec.arm.split("+")[1:]).apply()


def _profile(opened: _Opened, folder: Path) -> dict[str, Any]:
    import torch

    model_spec, inputs = opened.model_spec, opened.inputs
    model: Any = opened.model
    own_work: Work | None = None
    if model_spec.arm == CANDIDATE:
        model = _candidate(model_spec, opened.reference, opened.model, folder)
    with torch.no_grad():
        warm = _seconds(lambda: model(*inputs), model_spec.device, 3)
        if model_spec.arm == CANDIDATE:
            own_work = count_calls(model, inputs)
        count = max(2, min(MAX_CALLS, int(TRACED_S / max(min(warm), 1e-9))))
        before = time.process_time()
        times = _seconds(lambda: model(*inputs), model_spec.device, count)
        busy_threads = (time.process_time() - before) / sum(times)
        figures = _profiled(lambda: model(*inputs), model_spec.device, count)
    return figures | {
        "own_work": own_work.to_json() if own_work is not None else None,
        "seconds": statistics.median(times),
        "busy_threads": busy_threads,
        "threads": torch.get_num_threads(),
        "memory": torch.cuda.max_memory_allocated() if model_spec.device is Device.CUDA else None,
    }


def _candidate(
    model_spec: ModelSpec, reference: Reference, model: torch.nn.Module, folder: Path
) -> Any:
    import torch

    args, named = reference.init_args
    _, init = flatten([list(args), named], "init")
    candidate = import_arm(dataclasses.replace(model_spec, task=None, init=init), folder)()
    candidate.load_state_dict(model.state_dict())
    plain = Launcher.__call__

    def named_call(launcher: Launcher, *arguments: Any) -> None:
        with torch.profiler.record_function(OWN_KERNEL + launcher.prototype.name):
            plain(launcher, *arguments)

    Launcher.__call__ = named_call  # type: ignore[method-assign, assignment]
    return candidate


def _seconds(call: Callable[[], Any], device: Device, count: int) -> list[float]:
    """Return the wall seconds of each of `count` calls, each with the device synchronised after
    it."""
    import torch

    times = []
    for _ in range(count):
        begun = time.perf_counter()
        call()
        if device is Device.CUDA:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return times


def _profiled(call: Callable[[], Any], device: Device, most: int) -> dict[str, Any]:
    """Profile at most `most` calls, and fewer if their trace would exceed `MOST_EVENTS`; return the
    figures of `_traced`."""
    figures, events = _traced(call, device, 1)
    count = min(most, MOST_EVENTS // max(1, events))
    return figures if count < 2 else _traced(call, device, count)[0]


def _traced(call: Callable[[], Any], device: Device, count: int) -> tuple[dict[str, Any], int]:
    """Profile `count` calls. Return the operators and kernels, each with its seconds and number of
    calls per call of the model, and the number of events."""
    import torch
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity

    cuda = device is Device.CUDA
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * cuda
    with torch.profiler.profile(activities=activities) as trace:
        for _ in range(count):
            call()
        if cuda:
            torch.cuda.synchronize()
    operators = [
        {
            "name": e.key,
            "calls": e.count / count,
            "seconds": e.self_cpu_time_total * 1e-6 / count,
            "total_seconds": e.cpu_time_total * 1e-6 / count,
            "device_seconds": e.self_device_time_total * 1e-6 / count if cuda else None,
        }
        for e in trace.key_averages()
        if e.key.startswith(("aten::", OWN_KERNEL, "torch_", "_C", "triton"))
    ]
    events = trace.events() or []
    launched = [
        e
        for e in events
        if e.device_type == DeviceType.CUDA and not getattr(e, "is_user_annotation", False)
    ]
    figures = {
        "operators": operators,
        "kernels": _kernels(launched, count) if cuda else [],
        "busy": _union((e.time_range.start, e.time_range.end) for e in launched) * 1e-6 / count,
    }
    return figures, len(events)


def _kernels(events: Iterable[Any], count: int) -> list[dict[str, Any]]:
    """Return the GPU kernels by name, each with its launch gap: the time that the GPU is idle
    before it."""
    spans = sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in events
        if not event.name.startswith(OWN_KERNEL)
    )
    calls: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    gaps: Counter[str] = Counter()
    until = spans[0][0] if spans else 0.0
    for begin, end, name in spans:
        calls[name] += 1
        taken[name] += end - begin
        gaps[name] += max(0.0, begin - until)
        until = max(until, end)
    return [
        {
            "name": name,
            "calls": calls[name] / count,
            "seconds": taken[name] * 1e-6 / count,
            "gap": gaps[name] * 1e-6 / count,
        }
        for name in calls
    ]


def _union(spans: Iterable[tuple[float, float]]) -> float:
    """Return the total length of the union of intervals, because kernels of several streams may
    overlap."""
    total, end = 0.0, float("-inf")
    for begin, finish in sorted(spans):
        total += max(0.0, finish - max(begin, end))
        end = max(end, finish)
    return total
