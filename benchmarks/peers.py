"""Time other tools on the same kernel: KernelBench's eval and CUDA-Agent's scripts.

The tools are given as paths of checkouts. An attempt is converted to the form of each tool:
KernelBench needs one file that calls `load_inline`, CUDA-Agent a folder with the sources, a torch
binding and a `model.py`. The text of the kernels is unchanged; the bindings are generated from
their prototypes. Each run compiles from scratch in a fresh process and a new folder, as those tools
do.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from cuagent.kernels.prototypes import Prototype, parse

ARCHITECTURE = {"TORCH_CUDA_ARCH_LIST": "9.0"}
LOADER = "from cuagent.kernels import load\n"
TIME_LIMIT_S = 400.0
"""Time limit in seconds for one command of another tool."""
EVALUATE = """
import importlib.util, json, sys, types
from pathlib import Path
sys.path.insert(0, sys.argv[1] + "/src")
import torch
class Model:
    def __init__(self, **fields):
        self.__dict__.update(fields)
for module, name, what in (
    ("dotenv", "load_dotenv", print), ("litellm", "completion", None), ("openai", "OpenAI", None),
    ("tqdm", "tqdm", None), ("requests", "get", None), ("pydantic", "BaseModel", Model),
):
    if importlib.util.find_spec(module) is None:
        sys.modules[module] = types.SimpleNamespace(**{name: what})
from kernelbench.eval import eval_kernel_against_ref
found = eval_kernel_against_ref(
    Path("model.py").read_text(), Path("model_new.py").read_text(), num_correct_trials=5,
    num_perf_trials=100, measure_performance=True, build_dir="build", device=torch.device("cuda:0"),
)
print(json.dumps({"correct": found.correctness, "runtime": found.runtime,
                  "said": {k: str(v)[:200] for k, v in found.metadata.items()}}))
"""
"""Program that runs KernelBench's eval. The kernelbench package imports clients of language models,
which judging does not need; the program replaces each missing client by an empty stub."""


def kernelbench(checkout: Path, example: Path, attempt: Path) -> dict[str, Any]:
    """Return a row with the seconds of KernelBench's eval (compile, 5 checks, 100 timed trials).

    In the row, `ended` is True if the eval returned a result, right or wrong. Raises
    subprocess.TimeoutExpired.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model.py").write_text(example.read_text())
        (folder / "model_new.py").write_text(_one_file(attempt))
        argv = [sys.executable, "-c", EVALUATE, str(checkout.resolve())]
        seconds, output, _ = _timed(argv, folder)
    last = output.strip().splitlines()[-1:] or [""]
    ended = last[0].startswith("{")
    tail = output[-1000:].replace(str(checkout.resolve()), "KERNELBENCH")
    row = {"tool": "KernelBench", "example": example.stem, "seconds": {"all": seconds}}
    return row | {"ended": ended} | (json.loads(last[0]) if ended else {"said": tail})


def cuda_agent(checkout: Path, example: Path, attempt: Path) -> dict[str, Any]:
    """Return a row with the seconds of CUDA-Agent's three scripts: compile.sh, verification,
    profiling.

    In the row, `ended` is True if all three scripts succeeded. Raises subprocess.TimeoutExpired.
    """
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "work"
        shutil.copytree(checkout / "agent_workdir", folder)
        shutil.rmtree(folder / "kernels")
        shutil.copytree(attempt / "kernels", folder / "kernels")
        (folder / "model.py").write_text(example.read_text())
        source = _source(attempt)
        prototypes = parse(source.read_text(), source.name)
        (folder / f"kernels/{source.stem}_binding.cpp").write_text(_binding(prototypes))
        model = (attempt / "model_new.py").read_text()
        loader = _loader("import cuda_extension as extension\n", prototypes)
        (folder / "model_new.py").write_text(model.replace(LOADER, loader))
        commands = {
            "compile": ["bash", "utils/compile.sh"],
            "verification": [sys.executable, "-m", "utils.verification"],
            "profiling": [sys.executable, "-m", "utils.profiling"],
        }
        seconds, outputs, ended = {}, {}, True
        for name, argv in commands.items():
            seconds[name], text, succeeded = _timed(argv, folder)
            ended = ended and succeeded
            outputs[name] = text.strip().splitlines()[-1][:300] if text.strip() else ""
    seconds["all"] = sum(seconds.values())
    correct = "[PASS] verify success" in outputs["verification"]
    row = {"tool": "CUDA-Agent", "example": example.stem, "seconds": seconds}
    return row | {"ended": ended, "correct": correct, "said": outputs}


def _timed(argv: list[str], folder: Path) -> tuple[float, str, bool]:
    """Run a command; return (seconds, output, True if the exit code is 0)."""
    # compile.sh calls `python3`, which must be this interpreter.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    start = time.perf_counter()
    done = subprocess.run(
        argv,
        cwd=folder,
        env=os.environ | ARCHITECTURE | {"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    seconds = time.perf_counter() - start
    return seconds, done.stdout.decode(errors="replace"), done.returncode == 0


def _source(attempt: Path) -> Path:
    (source,) = (attempt / "kernels").glob("*.cu")
    return source


def _one_file(attempt: Path) -> str:
    """Return the attempt as the text of one Python file, the form that KernelBench needs."""
    source = _source(attempt)
    prototypes = parse(source.read_text(), source.name)
    wrappers = "".join(_wrapper(prototype) for prototype in prototypes)
    declarations = "".join(f"{_signature(prototype)};\n" for prototype in prototypes)
    text = f"{source.read_text()}\n#include <c10/cuda/CUDAStream.h>\n{wrappers}"
    names = [f"{prototype.name}_call" for prototype in prototypes]
    compiled = (
        "from torch.utils.cpp_extension import load_inline\n"
        f"extension = load_inline(name={attempt.name!r}, cpp_sources={declarations!r},\n"
        f"    cuda_sources={text!r}, functions={names!r})\n"
    )
    model = (attempt / "model_new.py").read_text()
    return model.replace(LOADER, _loader(compiled, prototypes))


def _loader(compiled: str, prototypes: list[Prototype] | tuple[Prototype, ...]) -> str:
    """Return source text that replaces cuagent's `load` by a function that returns the same kernels
    from a torch extension.

    `compiled`: source text that defines `extension`.
    """
    names = ", ".join(f"{p.name}=extension.{p.name}_call" for p in prototypes)
    return (
        f"{compiled}from types import SimpleNamespace\n"
        f"def load(path):\n    return SimpleNamespace({names})\n"
    )


def _binding(prototypes: list[Prototype] | tuple[Prototype, ...]) -> str:
    """Return the C++ source of a torch binding in the form that CUDA-Agent's instructions
    require."""
    head = (
        "#include <torch/types.h>\n#include <torch/csrc/utils/pybind.h>\n"
        "#include <cuda_runtime.h>\n#include <c10/cuda/CUDAStream.h>\n"
        '#include "../binding_registry.h"\n'
    )
    body = "".join(f"{_launcher(p)};\n{_wrapper(p)}" for p in prototypes)
    calls = "".join(f'm.def("{p.name}_call", &{p.name}_call);' for p in prototypes)
    return (
        f"{head}{body}static void register_all(pybind11::module& m) {{ {calls} }}\n"
        "REGISTER_BINDING(all, register_all);\n"
    )


def _launcher(prototype: Prototype) -> str:
    parameters = ", ".join(p.text for p in prototype.parameters)
    return f'extern "C" void {prototype.name}({parameters}, cudaStream_t stream)'


def _signature(prototype: Prototype) -> str:
    """Return the C++ signature of the wrapper function that torch calls."""
    kinds = {"float": "double", "double": "double"}
    parameters = ", ".join(
        f"{'torch::Tensor' if p.pointer else kinds.get(p.type, 'int64_t')} {p.name}"
        for p in prototype.parameters
    )
    return f"void {prototype.name}_call({parameters})"


def _wrapper(prototype: Prototype) -> str:
    arguments = ", ".join(
        f"({p.text.rsplit(p.name, 1)[0].strip()}){p.name}.data_ptr()" if p.pointer else p.name
        for p in prototype.parameters
    )
    stream = "c10::cuda::getCurrentCUDAStream().stream()"
    return f"{_signature(prototype)} {{ {prototype.name}({arguments}, {stream}); }}\n"
