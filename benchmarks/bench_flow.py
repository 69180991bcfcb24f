"""Measure and model how problems of a benchmark share one device.

    python benchmarks/bench_flow.py measure FOLDER --in-flight 3 --out lock.jsonl
    python benchmarks/bench_flow.py table lock.jsonl

`measure` runs the bench's own code on the tasks of a folder, several at the same time, on the CPU
with a device lock as on a GPU, and prints by stage who kept the device from whom. `table` prints
that of records, also of those of `cuagent bench`. `bench_flow_model.py` predicts the throughput.
Not covered: a GPU's own costs, such as contexts; the problems share the processors.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

Record = dict[str, Any]
ONE = """
import json, sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from cuagent.bench.child import WARM
from cuagent.bench.order import BenchSettings, Order
from cuagent.bench.solve import solve
from cuagent.device_lock import DeviceLock
from cuagent.record import plain
from cuagent.worker import ForkServer
path, lock, runs, steps, out = sys.argv[1:]
settings = BenchSettings(max_steps=int(steps), max_time_s=3600.0)
name = Path(path).stem
order = Order(name, path, "tasks", name, settings, "", runs)
forks, fork = Counter(), ForkServer.fork
def counted(server, module, *rest, **named):
    forks[module] += 1
    return fork(server, module, *rest, **named)
ForkServer.fork = counted
with ForkServer(compiler=True, eager=True) as server:
    for module in ("torch", *WARM):
        import_module(module)
    assert server.threads  # it is ready
    record = plain(solve(order, DeviceLock(Path(lock)), lambda _: None, server))
with open(out, "a") as file:
    file.write(json.dumps(record | {"processes": forks}) + "\\n")
"""
"""Program that solves one problem; several share a lock file."""
FIGURES = (
    *("shared", "shared_s", "longest_s", "kept_s", "kept_longest_s"),
    *("exclusive", "exclusive_s", "queue_s", "drain_s", "drain_longest_s"),
)
POLL_S = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    measured = commands.add_parser("measure")
    measured.add_argument("folder", type=Path)
    measured.add_argument("--in-flight", type=int, default=3)
    measured.add_argument("--steps", type=int, default=4, help="calls of the model for a problem")
    measured.add_argument("--out", type=Path, required=True)
    commands.add_parser("table").add_argument("records", type=Path, nargs="+")
    options = parser.parse_args()
    if options.command == "measure":
        measure(options.folder, options.in_flight, options.steps, options.out)
        options.records = [options.out]
    for path in options.records:
        print(f"{path}:")
        print_table([json.loads(line) for line in path.read_text().splitlines()])


def measure(folder: Path, in_flight: int, steps: int, out: Path) -> None:
    """Solve the tasks of a folder, `in_flight` at the same time; append their records to `out`."""
    waiting, begun = sorted(folder.glob("*.py")), time.monotonic()
    count, running = len(waiting), list[subprocess.Popen[bytes]]()
    with tempfile.TemporaryDirectory(prefix="bench-flow-") as given:
        base = Path(given)
        while waiting or running:
            running = [process for process in running if process.poll() is None]
            while waiting and len(running) < in_flight:
                words = (str(waiting.pop(0)), str(base / "device.lock"), str(base / "runs"))
                command = [sys.executable, "-c", ONE, *words, str(steps), str(out)]
                running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
            time.sleep(POLL_S)
    seconds = time.monotonic() - begun
    print(f"{count} problems, {in_flight} in flight: {seconds / count:.1f} s a problem")


def print_table(records: Sequence[Record]) -> None:
    """Print the uses of the lock by stage, for a problem on average."""
    uses = [r["lock"] for r in records if r.get("lock")]
    if not uses:
        print("no record has figures of the lock")
        return
    total = [r["seconds"]["total_s"] for r in records]
    print(
        f"{len(records)} records, seconds a problem: {mean(total):.1f}, median {median(total):.1f}"
    )
    for module in sorted({module for r in records for module in r.get("processes", {})}):
        count = mean(r.get("processes", {}).get(module, 0) for r in records)
        print(f"  {count:.1f} processes of {module} a problem")
    print(f"{'stage':<16}" + "".join(f"{name.replace('longest', 'max'):>14}" for name in FIGURES))
    for stage, figures in _by_stage(uses):
        print(f"{stage:<16}" + "".join(f"{figures[name]:>14.2f}" for name in FIGURES))


def _by_stage(uses: Sequence[dict[str, Any]]) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield each stage with its figures: means over the problems, or maxima."""
    for stage in [*dict.fromkeys(stage for used in uses for stage in used), "all"]:
        found = dict.fromkeys(FIGURES, 0.0)
        for used in uses:
            for figures in used.values() if stage == "all" else [used.get(stage, {})]:
                for name in FIGURES:
                    value = figures.get(name, 0.0)
                    longest = "longest" in name
                    found[name] = (
                        max(found[name], value) if longest else found[name] + value / len(uses)
                    )
        yield stage, found


if __name__ == "__main__":
    main()
