"""Run other projects' correctness rules from their checkouts, one forked process per candidate.

    python benchmarks/rules.py kernelbench PATH < jobs.jsonl
    python benchmarks/rules.py cuda-agent PATH < jobs.jsonl

A job is {"task": file, "candidate": folder}; each answer is a line {"word", "detail"} with the word
"passes", "rejected" or "not run". The judging functions are those of the projects, unchanged.
Without a CUDA device, functions that move tensors to it or wait for it do nothing, and
KernelBench's `eval_kernel_against_ref`, which needs CUDA, is replaced by the functions that it
calls. The projects' clocks need CUDA and are not used.

This is not a sandbox: candidates run with the rights of the caller, as in the other projects.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import select
import shutil
import signal
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

TIME_LIMIT_S = 30.0
"""Time limit of one candidate, in seconds."""
TRIALS = 5
"""Number of KernelBench's correctness trials, the same as KernelBench's default."""


def main() -> int:
    name, checkout = sys.argv[1], Path(sys.argv[2]).resolve()
    rule = {"kernelbench": kernelbench, "cuda-agent": cuda_agent}[name](checkout)
    for line in sys.stdin:
        job = json.loads(line)
        print(
            json.dumps(_judge_in_fork(rule, Path(job["task"]), Path(job["candidate"]))), flush=True
        )
    return 0


Rule = Callable[[Path, Path], tuple[str, str]]


def kernelbench(checkout: Path) -> Rule:
    """Return KernelBench's correctness rule: `run_and_check_correctness` with five trials."""
    import torch

    # The package imports clients of language models and a progress bar; judging does not use them.
    for module, names in {
        "litellm": ("completion",),
        "dotenv": ("load_dotenv",),
        "tqdm": ("tqdm",),
    }.items():
        if module not in sys.modules:
            stand_in = types.ModuleType(module)
            stand_in.__dict__.update(dict.fromkeys(names, lambda *a, **k: None))
            sys.modules[module] = stand_in
    sys.path.insert(0, str(checkout / "src"))
    from kernelbench import eval as rules  # type: ignore[import-not-found]

    if not torch.cuda.is_available():
        torch.cuda.synchronize = lambda *a, **k: None

    def judge(task: Path, folder: Path) -> tuple[str, str]:
        candidate = (folder / "model_new.py").read_text()
        # A file in the form of KernelBench has no folder with kernels.
        candidate = candidate.replace('load("kernels/', f'load("{folder}/kernels/')
        context: dict[str, Any] = {}
        model, get_init_inputs, get_inputs = rules.load_original_model_and_inputs(
            task.read_text(), context
        )
        precision = next(
            (x.dtype for x in get_inputs() if torch.is_tensor(x) and x.is_floating_point()),
            torch.float32,
        )
        if torch.cuda.is_available():
            result = rules.eval_kernel_against_ref(
                task.read_text(), candidate, num_correct_trials=TRIALS, precision=precision
            )
        else:
            device = torch.device("cpu")
            rules.set_seed(42)
            arguments = get_init_inputs()
            with torch.no_grad():
                rules.set_seed(42)
                reference = model(*arguments).to(device=device, dtype=precision)
                cls = rules.load_custom_model(candidate, context)
                rules.set_seed(42)
                ours = cls(*arguments).to(device=device, dtype=precision)
            result = rules.run_and_check_correctness(
                reference, ours, get_inputs, {}, TRIALS, device=device, precision=precision
            )
        facts = result.metadata
        why = next((facts[k] for k in ("correctness_issue", "runtime_error") if k in facts), "")
        return ("passes" if result.correctness else "rejected"), str(why)

    return judge


def cuda_agent(checkout: Path) -> Rule:
    """Return CUDA-Agent's correctness rule: its program verification.py must succeed."""
    import torch
    import torch.nn.functional

    program = checkout / "agent_workdir" / "utils" / "verification.py"
    if not torch.cuda.is_available():
        torch.nn.Module.cuda = torch.Tensor.cuda = lambda self, *a, **k: self
        torch.cuda.synchronize = lambda *a, **k: None

    def judge(task: Path, folder: Path) -> tuple[str, str]:
        shutil.copy(task, folder / "model.py")
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            runpy.run_path(str(program), run_name="__main__")
        return ("passes" if "[PASS] verify success" in output.getvalue() else "rejected"), ""

    return judge


def _judge_in_fork(rule: Rule, task: Path, candidate: Path) -> dict[str, str]:
    """Apply a rule to a copy of the candidate in a forked process; return `word` and `detail` of
    the outcome."""
    with tempfile.TemporaryDirectory(prefix="rules-") as name:
        folder = Path(name) / "work"
        shutil.copytree(candidate, folder)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            _child(rule, task, folder, write)
        os.close(write)
        text, deadline = b"", time.monotonic() + TIME_LIMIT_S
        while select.select([read], [], [], max(0.0, deadline - time.monotonic()))[0]:
            piece = os.read(read, 1 << 16)
            if not piece:
                break
            text += piece
        os.close(read)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
    with contextlib.suppress(ValueError, UnicodeDecodeError):
        return dict(json.loads(text))
    return {"word": "rejected", "detail": f"the process ended with wait status {status}"}


def _child(rule: Rule, task: Path, folder: Path, write: int) -> None:
    code = 1
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        try:
            word, detail = rule(task, folder)
        except BaseException as error:  # noqa: BLE001 - the process boundary
            word, detail = "rejected", f"{type(error).__name__}: {error}"
        os.write(
            write, json.dumps({"word": word, "detail": " ".join(detail.split())[:200]}).encode()
        )
        code = 0
    finally:
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
