"""Compare the expert's first candidate with eager and torch.compile on 25 modules of users (CPU).

    python benchmarks/modules_cpu.py [--folder cpu_modules] [--blocks 6] [--json FILE] [NAME ...]

The modules are the files of `cpu_modules/`: blocks of language models, image networks, recommenders
and speech models, losses and loops over time, some in bf16. No file was changed after it was first
measured. `cpu_modules_2/` (12 modules), `cpu_modules_3/` (24), `cpu_modules_4/` (6) and
`cpu_modules_5/` (31) were each first measured after the expert had been developed on the folders
before. Half of the modules in `cpu_modules_3/` and `cpu_modules_4/` are blocks of the packages
transformers and timm, which must be installed.

All arms run in one process on one thread and are measured in processor time of that thread, in
blocks that alternate, so that other load on the machine affects all alike (`small_cpu.alternate`).
A ratio is an arm's time over the candidate's, with Student's 95 % interval over five stretches.
Without a candidate, the expert's result is the best rung, the faster of eager and torch.compile,
and its ratio is 1 over that.

The parameters of batch norms are drawn at random. Errors are relative, against the module in fp64.
The last column is the candidate's error over eager's.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from small_cpu import alternate, geometric_mean, load_module

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Row:
    """Result of one module: the candidate's kernels, seconds and relative errors by arm, and ratios
    of the other arms' times over the candidate's with limits."""

    name: str
    kernels: tuple[str, ...]
    seconds: dict[str, float]
    ratios: dict[str, tuple[float, float, float]]
    errors: dict[str, float]


def measure(path: Path, folder: Path, blocks: int) -> Row:
    """Generate the expert's candidate for a module's file, and compare it with eager and
    torch.compile; return the result."""
    import torch

    from cuagent.expert.candidate import Options, make_candidate
    from cuagent.expert.capture.subject import open_subject
    from cuagent.task import load_task

    candidate = make_candidate(open_subject(load_task(path, device="cpu")), Options())
    task = load_module(path)
    torch.manual_seed(0)
    model = task.Model(*task.get_init_inputs()).eval()
    inputs = task.get_inputs()
    _draw_statistics(model)
    arms = {"eager": model, "compile": torch.compile(copy.deepcopy(model), dynamic=False)}
    if candidate is not None:
        for file, text in {**candidate.files, "task.py": path.read_text("utf-8")}.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text)
        new = load_module(folder / "model_new.py").ModelNew(*task.get_init_inputs()).eval()
        new.load_state_dict(model.state_dict())
        arms["candidate"] = new
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    exact = copy.deepcopy(model).double()(*wide)
    errors = {arm: _error(call(*inputs), exact) for arm, call in arms.items()}
    calls = {arm: (lambda call=call: call(*inputs)) for arm, call in arms.items()}
    samples = alternate(calls, blocks, time.thread_time)
    ratios = {}
    for arm in ("compile", "eager") if candidate else ():
        pairs = zip(samples[arm], samples["candidate"], strict=True)
        ratios[arm] = geometric_mean([a / b for a, b in pairs])
    seconds = {arm: min(times) for arm, times in samples.items()}
    return Row(path.stem, candidate.kernels if candidate else (), seconds, ratios, errors)


def _draw_statistics(model: Any) -> None:
    """Set random statistics and factors in all batch norms, so that they change their input."""
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_(0, 0.2)
            module.running_var.uniform_(0.5, 1.5)
            module.weight.uniform_(0.5, 1.5)
            module.bias.normal_(0, 0.2)


def _error(made: Any, exact: Any) -> float:
    """Return the largest relative error of a result's tensors, |made - exact| / |exact|.

    Infinity if NaN or infinities are at other positions than in `exact`.
    """
    import torch

    worst = 0.0
    for a, b in zip(_tensors(made), _tensors(exact), strict=True):
        a, b = a.double(), b.double()
        finite = torch.isfinite(b)
        if not torch.equal(torch.where(finite, 0, a), torch.where(finite, 0, b)):
            return float("inf")
        a, b = torch.where(finite, a, 0), torch.where(finite, b, 0)
        worst = max(worst, float((a - b).norm() / (b.norm() + 1e-30)))
    return worst


def _tensors(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def best_rung(row: Row) -> float:
    """Return the best rung's time over the candidate's; 1 without a candidate."""
    return min((middle for middle, _, _ in row.ratios.values()), default=1.0)


def over_compile(row: Row) -> float:
    """Return torch.compile's time over the candidate's; without a candidate, over the best rung's
    time."""
    if "compile" in row.ratios:
        return row.ratios["compile"][0]
    return row.seconds["compile"] / min(row.seconds.values())


def _print(row: Row) -> None:
    times = "".join(
        f"{1e6 * row.seconds.get(a, 0):8.0f}" for a in ("eager", "compile", "candidate")
    )
    shown = "".join(f"{v:6.2f} {low:5.2f}-{high:<5.2f}" for v, low, high in row.ratios.values())
    error = row.errors.get("candidate", 0.0) / max(row.errors["eager"], 1e-12)
    line = (
        f"{row.name:16}{times}  {shown or 'no candidate':36}{row.errors['eager']:9.0e}{error:7.2f}"
    )
    print(line, flush=True)


def main() -> None:
    """Measure the named modules (all if none is named), and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="names of modules; all if none")
    parser.add_argument("--folder", default="cpu_modules", help="folder beside this file")
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="keep the candidates' files in this folder")
    given = parser.parse_args()
    # Kernels of a candidate have their own OpenMP runtime, which reads this when it is loaded.
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    paths = sorted((HERE / given.folder).glob("*.py"))
    load = os.getloadavg()[0]
    print(f"torch {torch.__version__}, {platform.machine()}, load {load:.1f}; us")
    titles = f"{'over compile':18}{'over eager':18}{'eager err':>9}{'ratio':>7}"
    print(f"{'module':16}{'eager':>8}{'compile':>8}{'expert':>8}  {titles}")
    rows = []
    with tempfile.TemporaryDirectory() as home:
        for path in paths:
            if given.names and path.stem not in given.names:
                continue
            (folder := (given.keep or Path(home)) / path.stem).mkdir(parents=True, exist_ok=True)
            rows.append(measure(path, folder, given.blocks))
            _print(rows[-1])
            if given.json:
                text = json.dumps([asdict(row) for row in rows], indent=1)
                given.json.write_text(text + "\n")
    for title, ratio in (("torch.compile", over_compile), ("the best rung", best_rung)):
        found = [ratio(row) for row in rows]
        mean = "{:.2f}x ({:.2f} to {:.2f})".format(*geometric_mean(found))
        print(f"over {title}: {mean}, slowest {min(found):.2f}x")
    print(f"{sum(not row.ratios for row in rows)} of {len(rows)} without a candidate")


if __name__ == "__main__":
    main()
