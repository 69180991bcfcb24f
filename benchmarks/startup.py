"""Compare the start of `cuagent --help` with `python -c "import typer, rich"`: at most 2 times.

    python benchmarks/startup.py [ROUNDS]

This is not a test, because it would fail on a loaded machine. The commands alternate, so that a
disturbance affects all of them; the medians are compared. Exit 1 above the limit.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

LIMIT = 2.0
"""Largest accepted ratio of the median time of `cuagent --help` to that of the imports."""
COMMANDS = {
    "import typer, rich": ["-c", "import typer, rich"],
    "cuagent --help": ["-m", "cuagent", "--help"],
    "cuagent --version": ["-m", "cuagent", "--version"],
    "nothing": ["-c", "pass"],
}


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, arguments in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            seconds[name].append(time.perf_counter() - start)
    base = statistics.median(seconds["import typer, rich"])
    for name, samples in seconds.items():
        median = statistics.median(samples)
        print(f"{name:<20} {1e3 * median:6.0f} ms  {median / base:.2f}x")
    return int(statistics.median(seconds["cuagent --help"]) > LIMIT * base)


if __name__ == "__main__":
    sys.exit(main())
