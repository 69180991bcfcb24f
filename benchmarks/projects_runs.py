"""Run the scripts of `projects` in new environments without and with an exported package; compare
results and times. `projects.py` has the options."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent / "projects"
WORSE = 3.0
"""Largest accepted error with the package, as a multiple of the error without it."""
ROUNDING = 1e-5
"""Relative error that is accepted in any case: scripts in float32 also round their reference."""
ABSENT = """
import torch
try:
    import cuagent
except ImportError:
    print("absent")
"""


class ProjectFailed(Exception):
    """Error: a step of a project failed. The message is one line."""


def run(command: list[Any], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the folder of the scripts, with paths that hold there."""
    text = os.environ.get("PYTHONPATH", "")
    paths = os.pathsep.join(str(Path(p).resolve()) for p in text.split(os.pathsep) if p)
    environment = os.environ | ({"PYTHONPATH": paths} if paths else {}) | variables
    words = [str(word) for word in command]
    return subprocess.run(
        words, cwd=HERE, env=environment, capture_output=True, text=True, check=False
    )


def environment(folder: Path) -> Path:
    """Create a virtual environment that has the libraries of this process and no cuagent; return
    the path of its Python.

    Raises ProjectFailed if cuagent can be imported there.
    """
    import torch

    venv.create(folder, symlinks=True, with_pip=False, clear=True)
    given = [Path(p).resolve() for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    folders = dict.fromkeys([*given, Path(torch.__file__).resolve().parents[1]])
    # A folder that holds cuagent is its source; without torch's there would be no torch.
    lines = [str(f) for f in folders if not (f / "cuagent").is_dir() or (f / "torch").is_dir()]
    if any((Path(line) / "cuagent").is_dir() for line in lines):
        lines.append("import sys; sys.modules['cuagent'] = None")
    (_site(folder) / "libraries_of_the_host.pth").write_text("\n".join(lines) + "\n")
    python = folder / "bin" / "python"
    done = run([python, "-c", ABSENT], PYTHONPATH="")
    if done.stdout.strip() != "absent":
        raise ProjectFailed(last_line(done.stderr) or "the new environment can import cuagent")
    return python


def _site(folder: Path) -> Path:
    found = next(folder.glob("lib/python*/site-packages"))
    assert isinstance(found, Path)
    return found


def install(package: Path, python: Path) -> str:
    """Install a package for the interpreter `python` by pip; without pip, unpack the package's
    wheel. Return how. Raises ProjectFailed."""
    if not run([sys.executable, "-m", "pip", "--version"]).returncode:
        command = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps"]
        done = run([*command, "--no-index", "--force-reinstall", package])
        if done.returncode:
            raise ProjectFailed(f"not installed: {last_line(done.stderr)}")
        return "pip"
    with tempfile.TemporaryDirectory() as scratch:
        code = f"import cuagent_build; print(cuagent_build.build_wheel({scratch!r}))"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=package, check=True, capture_output=True, text=True
        )
        with zipfile.ZipFile(Path(scratch, done.stdout.strip())) as wheel:
            wheel.extractall(_site(python.parents[1]))
    return "wheel"


def compare(
    script: str, package: Path, *, device: str, pairs: int, seconds: float, lock: Path
) -> dict[str, Any]:
    """Install the package in a new environment and run the script there without and with it.

    The first runs save their results, also those of float64. Then follow `pairs` pairs of timed
    runs of at least `seconds`. Returns the fields of `projects.py`'s record. Raises ProjectFailed.
    """
    name = json.loads((package / "task.json").read_text())["name"]
    python = environment(package.parent / "env")
    how = install(package, python)
    command = [python, f"{script}.py", "--device", device]
    fast = ["--package", name]
    saved = {word: package.parent / f"{word}.pt" for word in ("exact", "before", "after")}
    _steps([*command, "--double", "--save", saved["exact"]])
    _steps([*command, "--save", saved["before"]])
    warned = _steps([*command, "--save", saved["after"], *fast])[1]
    errors = {
        word: relative_errors(saved["exact"], saved[word]) for word in ("before", "after")
    } | {"difference": relative_errors(saved["before"], saved["after"])}
    for file in saved.values():
        file.unlink()
    timed = [*command, "--seconds", seconds, "--lock", lock]
    times = [(_steps(timed)[0], _steps([*timed, *fast])[0]) for _ in range(pairs)]
    return {
        "installed": how,
        "warned": warned,
        "errors": errors,
        "same": all(within(errors["before"][k], errors["after"][k]) for k in errors["before"]),
        **{kind: ratio([(b[kind][1], a[kind][1]) for b, a in times]) for kind in times[0][0]},
    }


def _steps(command: list[Any]) -> tuple[dict[str, list[float]], list[str]]:
    """Run a script; return its times and the texts of its warnings. Raises ProjectFailed."""
    done = run(command, PYTHONPATH="")
    if done.returncode:
        raise ProjectFailed(f"the script failed: {last_line(done.stderr)}")
    lines = [line for line in done.stderr.splitlines() if "RuntimeWarning: " in line]
    warned = [line.partition("RuntimeWarning: ")[2] for line in lines]
    return json.loads(done.stdout.strip().rpartition("\n")[2]), warned


def relative_errors(exact: Path, found: Path) -> dict[str, float]:
    """Return the largest root mean square error of a saved tensor, relative to that of its values:
    one figure for `outputs`, and one for `gradients` if the script saves these."""
    import torch
    from torch.utils import _pytree as pytree

    pairs = (
        pytree.tree_flatten_with_path(torch.load(file, map_location="cpu"))[0]
        for file in (exact, found)
    )
    worst: dict[str, float] = {}
    for (path, one), (_, other) in zip(*pairs, strict=True):
        kind = "gradients" if "gradients" in pytree.keystr(path) else "outputs"
        size = one.double().square().mean().sqrt().clamp_min(1e-30)
        error = float((one.double() - other.double()).square().mean().sqrt() / size)
        # max() would drop a NaN that is not the first value.
        worst[kind] = error if math.isnan(error) else max(worst.get(kind, 0.0), error)
        if math.isnan(error):
            break
    return worst


def within(before: float, after: float) -> bool:
    """Return True if the error with a package is that of the script without it, or rounding."""
    return after <= max(WORSE * before, ROUNDING)


def ratio(pairs: list[tuple[float, float]]) -> dict[str, Any]:
    """Return medians without and with the package in seconds, and their ratio with the interval of
    95 % over the pairs of runs (None for one pair)."""
    from cuagent.measure.statistics import t_quantile

    logs = [math.log(before / after) for before, after in pairs]
    centre, interval = statistics.mean(logs), None
    if len(logs) > 1:
        half = t_quantile(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
        interval = [math.exp(centre - half), math.exp(centre + half)]
    return {
        "before": statistics.median(before for before, _ in pairs),
        "after": statistics.median(after for _, after in pairs),
        "ratio": math.exp(centre),
        "interval": interval,
    }


def last_line(text: str) -> str:
    """Return the last line of a program's errors, without space around it."""
    return text.strip().rpartition("\n")[2].strip()[-400:]
