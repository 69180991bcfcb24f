"""Make the benchmarks importable in tests: append their folder to the end of sys.path."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
