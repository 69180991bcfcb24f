"""Run `cuagent optimize` on many tasks as a user does, one on each GPU, and record the time.

    python benchmarks/user_runs.py TASK.py ... [--gpus N] [--limit S] [--seconds S] [--json FILE]

Each run has a GPU and an equal share of the processors for itself, but the driver creates the
contexts of all GPUs one after another. A run that takes longer than `--limit` seconds is
interrupted, as by Ctrl-C. Each line of the file has the wall time of the command, its exit code
and its result (docs/reference/json.md), without samples. `--script` also runs a plain script of
CUDA events (`against_script.py`) after each run, on the same GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from against_script import scripted

INTERRUPTED_S = 40.0
"""Seconds after the interrupt until a run is killed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="+", help="files, or FILE:CLASS")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--limit", type=float, default=170.0, help="seconds of a run")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no run after this")
    parser.add_argument("--script", action="store_true")
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    waiting, begun, lock = list(given.tasks), time.monotonic(), threading.Lock()
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // given.gpus

    def work(slot: int) -> None:
        own = cores[slot * share : (slot + 1) * share]
        while time.monotonic() - begun < given.seconds:
            with lock:
                if not waiting:
                    return
                task = waiting.pop(0)
            row = run(task, slot, own, given.limit)
            if given.script:
                row |= scripted(Path(task.partition(":")[0]), environment(slot))
            with lock, given.json.open("a") as file:
                file.write(json.dumps(row) + "\n")
                print(line_of(row), flush=True)

    slots = [threading.Thread(target=work, args=(slot,)) for slot in range(given.gpus)]
    for thread in slots:
        thread.start()
    for thread in slots:
        thread.join()
    print(f"not started: {len(waiting)}")


def environment(slot: int) -> dict[str, str]:
    """Return the environment of a process that sees one GPU."""
    return {**os.environ, "CUDA_VISIBLE_DEVICES": str(slot)}


def run(task: str, slot: int, cores: Sequence[int], limit_s: float) -> dict[str, Any]:
    """Run the command on one task; return its row. An interrupted run has the exit code 130."""
    command = [sys.executable, "-m", "cuagent", "optimize", str(Path(task).resolve())]
    command += ["--model", "expert", "--device", "cuda", "--output-format", "json"]
    begun = time.monotonic()
    epoch_s = time.time()
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(slot),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        os.sched_setaffinity(process.pid, cores)
        try:
            text, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGINT)
            try:
                text, errors = process.communicate(timeout=INTERRUPTED_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                text, errors = process.communicate()
        timeline = timeline_of(Path(folder), epoch_s)
    row = {"task": task, "wall_s": round(time.monotonic() - begun, 1), "exit": process.returncode}
    row["timeline"] = timeline
    try:
        return row | {"result": without_samples(json.loads(text))}
    except ValueError:
        return row | {"failed": errors[-1000:]}


def timeline_of(folder: Path, epoch_s: float) -> list[tuple[float, str]]:
    """Return the events of the log of a run below `folder`: (seconds after `epoch_s`, event)."""
    found = []
    for log in folder.glob(".cuagent/runs/*/log.jsonl"):
        for record in map(json.loads, log.read_text().splitlines()):
            for event in events_of(record):
                found.append((round(float(record["time"]) - epoch_s, 1), event))
    return found


def events_of(record: dict[str, Any]) -> list[str]:
    """Return the events in a record of a run's log: stages with their seconds, verdicts, and what
    the expert says of each candidate (its speedups, and why the next one is tried)."""
    match record["type"]:
        case "device":
            return [f"{record['what']} {record['seconds']:.1f} s"]
        case "judgement":
            verdict = record["verdict"]
            why = "" if verdict["accepted"] else f": {verdict['reason']}, {verdict['detail']}"
            return [f"judged {record['attempt']} ({record['effort']}){why}"]
        case "message" if record["role"] == "assistant":
            lines = str(record.get("content", "")).splitlines()
            return [f"expert: {line}" for line in lines if line and not line.startswith("- ")]
        case "end":
            return [f"end: {record['stop']}"]
    return []


def without_samples(value: Any) -> Any:
    """Return a result without the long lists that only a statistician needs."""
    left_out = ("samples_s", "draws", "seeds", "perturbations", "files", "output", "libraries")
    if isinstance(value, dict):
        return {k: without_samples(v) for k, v in value.items() if k not in left_out}
    return [without_samples(v) for v in value] if isinstance(value, list) else value


def line_of(row: dict[str, Any]) -> str:
    """Return one line about a row for the terminal."""
    result = row.get("result") or {}
    parts = result.get("gain_parts") or {}
    ratios = {
        name: round(ratio["value"], 2) for name, ratio in parts.items() if isinstance(ratio, dict)
    }
    found = f"{result.get('result')} {result.get('stop')} {ratios}"
    return f"{Path(row['task']).name} {row['wall_s']} s, exit {row['exit']}: {found}"


if __name__ == "__main__":
    main()
