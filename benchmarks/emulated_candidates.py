"""Compute the expert's GPU candidates of reduced tasks on a CPU, and compare them with fp64.

    TRITON=FOLDER_WITH_TRITON
    PYTHONPATH=$TRITON python benchmarks/emulated_candidates.py FOLDER ... [--json FILE]

FOLDERs contain problems in the format of KernelBench. Each is reduced to two sizes
(`reduced_tasks`), in several dtypes, and planned for an H200. Thresholds of the planner that
compare sizes are lowered, so that the plan is that of the full size. All candidates that the search
could try after the first one are computed: CUDA C++ in the emulation of `tests/expert`, Triton in
its interpreter, everything else by torch. Convolutions of torch round their operands to TF32 where
cuDNN would.

A candidate is wrong if

- shape, dtype or strides differ from eager's;
- its error against fp64 exceeds that of eager by a factor;
- it is not finite where the reference is;
- it changes an input or a parameter;
- a kernel accesses memory outside of the tensors of its launch and its own arrays, or a vector at
  an address that is not a multiple of its size.

Memory around inputs and in new tensors is NaN, and so is shared memory before each block. In odd
sizes, threads and blocks of CUDA C++ run in descending order.

Not emulated:

- wrong synchronization that does not show when threads run one after another;
- races between blocks, memory limits, asynchronous copies;
- the arithmetic of `tl.dot` in TF32 (the interpreter multiplies in float32);
- fast approximations (`__expf`);
- CUDA graphs and torch.compile (the text of the forward runs as it is).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "expert"))

from emulated_case import Case, TimeLimit, checked, warm_up
from reduced_tasks import SIZES

CONFIGURATIONS = ("match", "fp32", "bfloat16", "float16")
"""Dtype of the module, or precision of a float32 module."""


def main() -> None:
    """Check all cases that have no record in the file, and print a line for each, then totals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--json", type=Path, help="JSON Lines; cases that it has are not repeated")
    parser.add_argument("--match", default="", help="only files whose path contains this")
    parser.add_argument("--configurations", nargs="*", default=CONFIGURATIONS)
    parser.add_argument("--sizes", nargs="*", default=SIZES)
    parser.add_argument("--most", type=int, default=0, help="candidates of a case; 0 for all")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=int, default=60, help="seconds of processor time of a case")
    given = parser.parse_args()
    records = _read(given.json)
    done = {_key(record) for record in records}
    cases = [
        Case(path, size, configuration, given.most)
        for configuration in given.configurations
        for size in given.sizes
        for folder in given.folders
        for path in sorted(folder.rglob("*.py"), key=_number)
        if given.match in str(path)
    ]
    waiting = [case for case in cases if case.key not in done]
    for record in _run(waiting, given.jobs, given.limit):
        records.append(record)
        print(_line(record), flush=True)
        if given.json is not None:
            with given.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
    print("\n".join(_totals(records)))


def _read(path: Path | None) -> list[dict[str, Any]]:
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _key(record: dict[str, Any]) -> tuple[str, str, str]:
    return record["task"], record["size"], record["configuration"]


def _run(cases: list[Case], jobs: int, limit: int) -> Any:
    """Yield the record of each case; each is computed in a forked process."""
    warm_up()
    waiting, running = list(cases), dict[int, tuple[Case, str]]()
    while waiting or running:
        while waiting and len(running) < jobs:
            case, (handle, path) = waiting.pop(0), tempfile.mkstemp()
            os.close(handle)
            if (pid := os.fork()) == 0:
                _child(case, path, limit)
            running[pid] = (case, path)
        pid, status = os.wait()
        case, path = running.pop(pid)
        text = Path(path).read_text("utf-8")
        Path(path).unlink()
        yield json.loads(text) if text else case.record(error=f"process ended by {status}")


def _child(case: Case, path: str, limit: int) -> None:
    started = time.process_time()

    def stop(*_: Any) -> None:
        raise TimeLimit(f"not computed in {limit} s of processor time")

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, limit)
    # Emulated kernels do not return to Python before they end.
    resource.setrlimit(resource.RLIMIT_CPU, (2 * limit, 2 * limit + 5))
    record = case.record()
    try:
        checked(case, record)
    except (Exception, TimeLimit) as error:  # noqa: BLE001 - the module is foreign code
        record["error"] = f"{type(error).__name__}: {error}"[:300]
        record["traceback"] = traceback.format_exc()[-1500:]
    record["seconds"] = round(time.process_time() - started, 1)
    Path(path).write_text(json.dumps(record), "utf-8")
    os._exit(0)


def _number(path: Path) -> tuple[str, int, str]:
    digits = path.name.partition("_")[0]
    return str(path.parent), int(digits) if digits.isdigit() else 0, path.name


def _line(record: dict[str, Any]) -> str:
    results = record["results"]
    wrong = [r for r in results if r["wrong"]]
    name = f"{record['task'][:40]:40} {record['size']:5} {record['configuration']:8}"
    parts = [f"{record.get('seconds', 0):6.1f} s", f"{len(results)} candidates"]
    worst = max((r.get("ratio", 0.0) for r in results), default=0.0)
    parts += [f"worst {worst:.2f}"] if results else ["nothing planned"]
    parts += [record["error"]] if "error" in record else []
    parts += [f"\n    WRONG {r['change']}: {r['wrong']}" for r in wrong]
    return f"{name} {', '.join(parts)}"


def _totals(records: list[dict[str, Any]]) -> list[str]:
    lines = []
    for configuration in dict.fromkeys(r["configuration"] for r in records):
        own = [r for r in records if r["configuration"] == configuration]
        counts: Counter[str] = Counter()
        for record in own:
            counts["cases"] += 1
            counts["cases with an error"] += "error" in record
            counts["cases without a candidate"] += not record["results"]
            counts["candidates"] += len(record["results"])
            counts["wrong candidates"] += sum(bool(r["wrong"]) for r in record["results"])
        lines.append(f"{configuration}: " + ", ".join(f"{n} {k}" for k, n in counts.items()))
    return lines


if __name__ == "__main__":
    main()
