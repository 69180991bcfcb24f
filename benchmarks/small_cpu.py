"""Compare the expert's first candidate with eager and torch.compile on 25 small tasks on the CPU.

    python benchmarks/small_cpu.py [--threads 1] [--blocks 8] [--json FILE] [NAME ...]

All tasks are bound by memory or by the cost of a call. No rule of the expert was developed on them.
The arms run in one process in alternating blocks, so that other load affects all alike. A run is
divided into five stretches. An arm's time in a stretch is that of its fastest block, because other
processes only lengthen a block. A ratio is an arm's time over the candidate's: the geometric mean
over the stretches, with Student's 95 % interval. The best rung is the faster of eager and
torch.compile. The last lines are geometric means over the tasks, with Student's 95 % interval.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TASKS = {
    "residual RMSNorm": (
        "h = x + y; return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * w",
        "x(512, 768) y(512, 768) w(768)",
    ),
    "GEGLU of one projection": (
        "a, b = x.chunk(2, -1); return F.gelu(a) * b",
        "x(512, 2048)",
    ),
    "rotary embedding": (
        "a, b = x.chunk(2, -1); return x * y + torch.cat((-b, a), -1) * z",
        "x(2, 8, 256, 64) y(256, 64) z(256, 64)",
    ),
    "lookup and exp": (
        "return x[i].exp()",
        "x(1000, 128) i[2048, 1000]",
    ),
    "lookup, position, norm": (
        "return F.layer_norm(F.embedding(i, x) + y, (128,))",
        "x(2000, 128) i[16x128, 2000] y(128, 128)",
    ),
    "masked softmax": (
        "return (x / 8).masked_fill(m, -1e9).softmax(-1)",
        "x(8, 4, 128, 128) m?(1, 1, 128, 128)",
    ),
    "softmax over channels": (
        "return x.softmax(1)",
        "x(8, 21, 64, 64)",
    ),
    "logsumexp of pairs": (
        "return torch.logsumexp(x + y, -1)",
        "x(512, 1000) y(1000)",
    ),
    "instance norm and SiLU": (
        "m = x.mean((2, 3), keepdim=True); "
        "v = x.var((2, 3), keepdim=True, correction=0); "
        "return F.silu((x - m) * torch.rsqrt(v + 1e-5))",
        "x(4, 32, 48, 48)",
    ),
    "group norm": (
        "return F.group_norm(x, 4, w, y)",
        "x(4, 32, 40, 40) w(32) y(32)",
    ),
    "cosine similarity": (
        "return F.cosine_similarity(x, y, -1)",
        "x(2048, 256) y(2048, 256)",
    ),
    "pairwise distances": (
        "return (x[:, None] - y[None]).pow(2).sum(-1).sqrt()",
        "x(128, 32) y(128, 32)",
    ),
    "Huber loss": (
        "return F.huber_loss(x, y)",
        "x(256, 1024) y(256, 1024)",
    ),
    "label smoothing": (
        "p = x.log_softmax(-1); return -(p.mean(-1) * 0.1 + p[:, 0] * 0.9).mean()",
        "x(512, 500)",
    ),
    "Mish chain": (
        "return F.mish(x) * torch.tanh(y) + x.clamp(-1, 1)",
        "x(512, 512) y(512, 512)",
    ),
    "quantize and back": (
        "s = x.abs().amax(-1, keepdim=True) / 127; return (x / s).round().clamp(-128, 127) * s",
        "x(512, 1024)",
    ),
    "exclusive sum": (
        "return x.cumsum(-1) - x",
        "x(512, 512)",
    ),
    "argmax and margin": (
        "v, i = x.max(-1); return i, v - x.mean(-1)",
        "x(1024, 512)",
    ),
    "max pool and ReLU": (
        "return F.max_pool2d(F.relu(x), 3, 2, 1)",
        "x(4, 32, 56, 56)",
    ),
    "blurred upsampling": (
        "return F.interpolate(F.avg_pool2d(x, 2), scale_factor=2, mode='bilinear')",
        "x(2, 16, 64, 64)",
    ),
    "channel shuffle": (
        "return x.view(4, 2, 16, 28, 28).transpose(1, 2).reshape(4, 32, 28, 28) * y",
        "x(4, 32, 28, 28) y(32, 1, 1)",
    ),
    "window partition": (
        "return (x + 1).view(2, 4, 7, 4, 7, 32).permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, 32)",
        "x(2, 28, 28, 32)",
    ),
    "GRU gates": (
        "r, z, n = x.chunk(3, -1); "
        "a, b, c = y.chunk(3, -1); "
        "z = torch.sigmoid(z + b); "
        "return (1 - z) * torch.tanh(n + torch.sigmoid(r + a) * c) + z * w",
        "x(256, 768) y(256, 768) w(256, 256)",
    ),
    "sum over rows": (
        "return (x * y).sum(0)",
        "x(2048, 256) y(2048, 256)",
    ),
    "padded difference": (
        "return F.pad(x[:, 1:] - x[:, :-1], (1, 0)).abs()",
        "x(512, 1024)",
    ),
}
"""Body of forward and inputs of each task, by the task's name.

An input `x(shape)` is float32, `i[shape, high]` contains indices below `high`, and `m?(shape)` is a
boolean mask.
"""
STRETCHES = 5
BLOCK_S = 2e-3
"""Duration of a block in seconds; a block has at least one call."""


@dataclass(frozen=True)
class Row:
    """Result of one task: seconds per call by arm, and ratios of the other arms' times over the
    candidate's with limits.

    `kernels`: number of the candidate's kernels; 0 without a candidate. `error`: largest relative
    error of the candidate's results (of eager's without a candidate).
    """

    name: str
    kernels: int
    seconds: dict[str, float]
    ratios: dict[str, tuple[float, float, float]]
    error: float


def text_of(name: str) -> str:
    """Return the source text of a task's file."""
    body, inputs = TASKS[name]
    names, made = [], []
    for word in inputs.replace(", ", ",").split():
        names.append(word[0])
        if word[1] == "(":
            made.append(f"torch.randn{word[1:]}")
        elif word[1] == "[":
            shape, high = word[2:-1].split(",")
            sizes = ", ".join(shape.split("x"))
            made.append(f"torch.randint(0, {high}, ({sizes},))")
        else:
            made.append(f"torch.rand{word[2:]} > 0.5")
    lines = ["import torch", "import torch.nn.functional as F", "", ""]
    lines += ["class Model(torch.nn.Module):", f"    def forward(self, {', '.join(names)}):"]
    lines += [f"        {part.strip()}" for part in body.split(";")]
    lines += ["", "", "def get_inputs():", f"    return [{', '.join(made)}]", "", ""]
    return "\n".join([*lines, "def get_init_inputs():", "    return []", ""])


def load_module(path: Path) -> Any:
    """Import a Python file under a name that includes its folder's name."""
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measure(name: str, folder: Path, blocks: int) -> Row:
    """Generate the expert's candidate for a task, and compare it with eager and torch.compile;
    return the result."""
    import torch

    from cuagent.expert.candidate import Options, make_candidate
    from cuagent.expert.capture.subject import open_subject
    from cuagent.task import load_task

    path = folder / "task.py"
    path.write_text(text_of(name))
    candidate = make_candidate(open_subject(load_task(path, device="cpu")), Options())
    task = load_module(path)
    torch.manual_seed(0)
    inputs = task.get_inputs()
    arms: dict[str, Any] = {"eager": task.Model(), "compile": torch.compile(task.Model())}
    if candidate is not None:
        for file, text in candidate.files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text)
        arms["candidate"] = load_module(folder / "model_new.py").ModelNew()
    for arm in arms.values():
        arm.eval()
    exact = arms["eager"](*(x.double() if x.is_floating_point() else x for x in inputs))
    made = arms.get("candidate", arms["eager"])(*inputs)
    samples = alternate({arm: _call(model, inputs) for arm, model in arms.items()}, blocks)
    seconds = {arm: min(times) for arm, times in samples.items()}
    own = samples.get("candidate")
    ratios = {}
    for arm in ("compile", "eager") if own else ():
        pairs = zip(samples[arm], own or [], strict=True)
        ratios[arm] = geometric_mean([a / b for a, b in pairs])
    count = len(candidate.kernels) if candidate else 0
    return Row(name, count, seconds, ratios, _error(made, exact))


def _call(model: Any, inputs: Sequence[Any]) -> Callable[[], Any]:
    return lambda: model(*inputs)


def _error(made: Any, exact: Any) -> float:
    """Return the largest relative error of the results' tensors, |made - exact| / |exact|."""
    pairs = zip(_leaves(made), _leaves(exact), strict=True)
    return max(
        float((a.double() - b.double()).norm() / (b.double().norm() + 1e-30)) for a, b in pairs
    )


def _leaves(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def alternate(
    arms: dict[str, Callable[[], Any]],
    blocks: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds per call of each arm's fastest block, one value for each stretch.

    The order of the arms rotates. `blocks`: number of blocks of each arm per stretch. `clock`:
    function that returns the time in seconds.
    """
    for call in arms.values():
        for _ in range(3):
            call()
    begun = clock()
    for call in arms.values():
        call()
    once = (clock() - begun) / len(arms)
    calls = max(1, math.ceil(BLOCK_S / once))
    samples: dict[str, list[float]] = {name: [] for name in arms}
    names = list(arms)
    for _ in range(STRETCHES):
        fastest = dict.fromkeys(names, math.inf)
        for k in range(blocks):
            for name in names[k % len(names) :] + names[: k % len(names)]:
                call = arms[name]
                begun = clock()
                for _ in range(calls):
                    call()
                fastest[name] = min(fastest[name], (clock() - begun) / calls)
        for name in names:
            samples[name].append(fastest[name])
    return samples


T_95 = {1: 12.7, 2: 4.3, 3: 3.18, 4: 2.78, 9: 2.26, 14: 2.14, 19: 2.09, 24: 2.06}
"""97.5 % quantiles of Student's t distribution, by degrees of freedom."""


def geometric_mean(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return (geometric mean, lower limit, upper limit) of ratios, with Student's 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.fmean(logs)
    if len(logs) < 2:
        return (math.exp(middle),) * 3
    quantile = T_95[min(T_95, key=lambda n: abs(n - (len(logs) - 1)))]
    half = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def _words(ratios: Sequence[float]) -> str:
    return "{:.2f}x ({:.2f} to {:.2f})".format(*geometric_mean(ratios))


def _print(row: Row) -> None:
    times = "  ".join(f"{arm} {1e6 * s:7.1f}" for arm, s in row.seconds.items())
    shown = "  ".join(f"{v:5.2f}x {low:5.2f}-{high:<5.2f}" for v, low, high in row.ratios.values())
    print(
        f"{row.name:24} {shown or 'no candidate':36} us: {times}  error {row.error:.0e}", flush=True
    )


def main() -> None:
    """Measure the named tasks (all if none is named), and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of the names of tasks; all if none")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    # Kernels of a candidate have their own OpenMP runtime, which reads this when it is loaded.
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    import torch

    torch.set_num_threads(given.threads)
    torch.set_grad_enabled(False)
    chosen = [n for n in TASKS if not given.names or any(part in n for part in given.names)]
    load = os.getloadavg()[0]
    print(
        f"torch {torch.__version__}, {platform.machine()}, {os.cpu_count()} cores, load {load:.1f}"
    )
    print(f"{'task':24} {'over torch.compile':18} {'over eager':18}")
    rows = []
    with tempfile.TemporaryDirectory() as home:
        for k, name in enumerate(chosen):
            (folder := Path(home) / f"task{k}").mkdir()
            rows.append(measure(name, folder, given.blocks))
            _print(rows[-1])
    timed = [row for row in rows if row.ratios]
    print(f"over torch.compile: {_words([r.ratios['compile'][0] for r in timed])}")
    best = [min(ratio[0] for ratio in r.ratios.values()) for r in timed]
    print(f"over the best rung: {_words(best)}, slowest {min(best):.2f}x")
    print(f"{len(rows) - len(timed)} of {len(rows)} without a candidate")
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
