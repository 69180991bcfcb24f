"""Run the problems of a benchmark, several at the same time, and append each result when its
problem ends.

Each slot runs one problem after the other, each in a new process. On a GPU the slots share the
device: opening and verifying overlap, and the device lock gives a slot exclusive use while it
times. On a CPU the slots share no core. The order on GPUs follows from the memory that each problem
needs (`placement.py`), which is found first. On a cluster problems that need most of a GPU's memory
run last. A problem that failed for lack of memory runs again, alone on its device.

Invariant: a failed problem never ends the benchmark. Only an interrupt ends it; all results so far
are then in the file.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cuagent.bench.engines import Cancelled, Engine, EngineLost
from cuagent.bench.memory import UNKNOWN_PART, Size
from cuagent.bench.order import DEFERRED, BenchSettings, Order
from cuagent.bench.placement import Queue
from cuagent.bench.problems import Problem
from cuagent.bench.results import FORMAT, Record, ResultFile, key_of, tool_version
from cuagent.task import TaskError, load_task

JOBS_PER_GPU = 4
"""Default number of problems that run at the same time on one GPU, if there are enough CPU
cores.

Whether eight are better on an H200 is not known: in four minutes, more than half of eight did not
end. A model of the lock predicts up to 40 % less time for each problem, without the driver's costs
(benchmarks/bench_flow_model.py).
"""
CORES_PER_JOB = 4
"""Number of CPU cores that a problem on a GPU uses for compilers."""
POLL_S = 0.2


@dataclass(frozen=True)
class Started:
    """Event: a slot began to run a problem."""

    problem: str
    slot: int


@dataclass(frozen=True)
class Progressed:
    """Event: a running problem sent a progress report (`solve.Report`)."""

    problem: str
    slot: int
    report: dict[str, Any]


@dataclass(frozen=True)
class Finished:
    """Event: the record of a problem is available. `earlier`: True if the record was already in the
    results file."""

    record: Record
    slot: int = -1
    earlier: bool = False


Observe = Callable[[Started | Progressed | Finished], None]


@dataclass(frozen=True)
class Slots:
    """Places in which problems run, one problem at a time each.

    `gpus[n]`: value of CUDA_VISIBLE_DEVICES for slot n (None for a CPU). `cores[n]`: its CPU cores;
    empty `cores`: every slot may use all.
    """

    gpus: tuple[str | None, ...]
    cores: tuple[tuple[int, ...], ...] = field(default=())

    def __len__(self) -> int:
        return len(self.gpus)

    @property
    def share_gpus(self) -> bool:
        """True if several slots use one GPU of this machine."""
        gpus = [gpu for gpu in self.gpus if gpu is not None]
        return len(set(gpus)) < len(gpus)


def slots_for(device: str, jobs: int | None, gpus: int) -> Slots:
    """Return `jobs` slots on this machine.

    `jobs` None: one slot on the CPU, or up to `JOBS_PER_GPU` for each of the `gpus` GPUs.
    """
    cores = sorted(os.sched_getaffinity(0))
    if device == "cuda":
        jobs = jobs or max(gpus, min(JOBS_PER_GPU * gpus, len(cores) // CORES_PER_JOB))
        return Slots(tuple(visible_gpu(n % gpus) for n in range(jobs)))
    jobs = min(jobs or 1, len(cores))
    if jobs == 1:
        return Slots((None,))
    share = len(cores) // jobs
    parts = tuple(tuple(cores[n * share : (n + 1) * share]) for n in range(jobs))
    return Slots((None,) * jobs, parts)


def visible_gpu(number: int) -> str:
    """Return the value of CUDA_VISIBLE_DEVICES that selects GPU `number` of this process."""
    seen = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return seen[number] if number < len(seen) else str(number)


def orders_for(
    problems: Sequence[Problem],
    settings: BenchSettings,
    device_name: str,
    out: Path,
    endpoints: dict[str, Any] | None = None,
    prices: dict[str, Any] | None = None,
    versions: Sequence[str] = (),
) -> list[Order]:
    """Return an order for each problem, with the key (`key_of`) of its result.

    `versions`: other versions of cuagent whose results also count.
    """
    about = settings.to_json()
    digests = [_digest(problem, settings) for problem in problems]
    return [
        Order(
            problem=problem.name,
            path=str(problem.path.resolve()),
            group=problem.group,
            title=problem.title,
            settings=settings,
            key=key_of(digest, device_name, about),
            older_keys=tuple(key_of(digest, device_name, about, name) for name in versions),
            runs=str((out / "runs").resolve()),
            endpoints=endpoints,
            prices=prices,
        )
        for problem, digest in zip(problems, digests, strict=True)
    ]


def _digest(problem: Problem, settings: BenchSettings) -> str:
    """Return the digest of the problem's task; if the file cannot be loaded, a digest of the
    error."""
    try:
        task = load_task(problem.path, device=settings.device, precision=settings.precision)
    except TaskError as error:
        return hashlib.sha256(str(error).encode()).hexdigest()
    return task.digest


def run_orders(
    orders: Sequence[Order], engine: Engine, slots: Slots, results: ResultFile, observe: Observe
) -> None:
    """Run the orders without a valid result, and pass events to `observe`.

    An interrupt cancels the running problems; then KeyboardInterrupt is raised.
    """
    waiting: list[Order] = []
    for order in orders:
        known = results.finished(order.problem, order.key, *order.older_keys)
        if known is not None:
            observe(Finished(known, earlier=True))
        else:
            waiting.append(order)
    lock = threading.Lock()
    if slots.share_gpus:
        queue = Queue(unsized=[order.problem for order in waiting])
        sizing = waiting
    else:
        queue = Queue(replace(order, may_defer=len(slots) > 1) for order in waiting)
        sizing = []

    def work(slot: int) -> None:
        while (order := queue.take(slots.gpus[slot])) is not None:
            try:
                _work(order, engine, slots, slot, queue, results, observe, lock)
            except Cancelled:
                return
            finally:
                queue.ended(order)

    sizers = max(1, len(os.sched_getaffinity(0)) // CORES_PER_JOB) if sizing else 0
    with ThreadPoolExecutor(len(slots) + sizers) as threads:
        try:
            futures = [threads.submit(work, slot) for slot in range(len(slots))]
            futures += [
                threads.submit(_size, order, engine, slots.gpus[n % len(slots)], queue)
                for n, order in enumerate(sizing)
            ]
            while not all(future.done() for future in futures):
                time.sleep(POLL_S)
        except BaseException:
            queue.close()
            engine.cancel()
            raise
    for future in futures:
        future.result()


def _size(order: Order, engine: Engine, gpu: str | None, queue: Queue) -> None:
    """Find the share of a GPU's memory that a problem needs, and add the order to the queue."""
    size = None
    try:
        with suppress(Cancelled, EngineLost):
            found = engine.run(replace(order, gpu=gpu, sizes_only=True), lambda _: None)["size"]
            size = None if found is None else Size(**found)
    finally:  # slots wait until the order is in the queue
        share = UNKNOWN_PART if size is None else size.share
        queue.add(replace(order, size=None if size is None else asdict(size)), share)


def _work(
    order: Order,
    engine: Engine,
    slots: Slots,
    slot: int,
    queue: Queue,
    results: ResultFile,
    observe: Observe,
    lock: threading.Lock,
) -> None:
    """Run an order in a slot; append its record to the results, or the order to the queue again.

    Raises Cancelled.
    """
    cores = slots.cores[slot] if slots.cores else ()
    alone = order.alone or len(slots) == 1
    placed = replace(order, gpu=slots.gpus[slot], cores=cores, alone=alone)
    record = _run(placed, engine, slot, observe, lock)
    if record["status"] == DEFERRED:
        queue.add(replace(order, may_defer=False), 0.0)
    elif not alone and is_for_memory(record):
        queue.add(replace(order, may_defer=False), 1.0)
    else:
        with lock:
            results.append(record)
            observe(Finished(record, slot))


def _run(order: Order, engine: Engine, slot: int, observe: Observe, lock: threading.Lock) -> Record:
    """Run one problem and return its record. If its process ended without a record, return a record
    with the reason."""

    def report(message: dict[str, Any]) -> None:
        with lock:
            observe(Progressed(order.problem, slot, message))

    with lock:
        observe(Started(order.problem, slot))
    started = time.monotonic()
    try:
        return engine.run(order, report)
    except EngineLost as lost:
        return {
            "format": FORMAT,
            "key": order.key,
            "problem": order.problem,
            "title": order.title,
            "group": order.group,
            "settings": order.settings.to_json(),
            "cuagent": tool_version(),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "status": "failed",
            "reason": str(lost),
            "seconds": {"total_s": round(time.monotonic() - started, 3)},
        }


MEMORY = (
    "of memory",
    "more memory",
    "free memory",
    "device memory",
    "gpu memory",
    "too large",
    "sigkill",
)
"""Words in a failure's reason that mean lack of memory. Alone on its device the problem may
succeed."""


def is_for_memory(record: Record) -> bool:
    """Return True if the problem of this record failed for lack of memory."""
    text = record["reason"].lower()
    return record["status"] == "failed" and any(words in text for words in MEMORY)
