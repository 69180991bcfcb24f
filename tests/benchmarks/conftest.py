"""Benchmarks are scripts beside each other: their folder is on the path, behind everything else."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
