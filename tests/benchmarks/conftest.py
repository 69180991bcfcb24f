"""Make the benchmarks importable: they are scripts in one folder, which goes last on the path."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
