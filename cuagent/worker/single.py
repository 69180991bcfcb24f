"""Run one call of a candidate in a process of its own, under a debugging tool such as a sanitizer.

    python single.py FOLDER [timed]

FOLDER contains the attempt, `order.json` and, from some time on, the weights and the inputs. No
result is compared. The exit code says if the call completed. `reached.json` lists the functions of
the attempt's libraries that were called, and the Triton kernels that were launched; with "timed"
also the seconds of the call.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

REACHED = "reached.json"
WEIGHTS, INPUTS = "weights.pt", "inputs.pt"
"""Names of the files of the tensors. The inputs appear last, and complete."""
WAIT_S = 120.0
"""Seconds to wait for the inputs."""
TIMED = "timed"
FIRST_S = 3.0
"""Seconds of a first call that may go into compiling, loading and instrumenting kernels.

A first call that took less is repeated, and the second one is timed. A longer one counts without
them, because a second one would take too long.
"""


def main(folder: Path, *, timed: bool = False) -> None:
    import torch

    from cuagent.library_folders import library_folders
    from cuagent.task import unflatten
    from cuagent.worker.arms import ModelSpec, import_arm
    from cuagent.worker.memory.arena import synchronize

    sys.path += library_folders()
    model_spec = ModelSpec.from_json(json.loads((folder / "order.json").read_text()))
    device = model_spec.device.value
    torch.zeros(1, device=device)  # starts CUDA while another process writes the inputs
    weights, inputs = _tensors(folder, device)
    if model_spec.settings is not None:
        model_spec.settings.apply()
    model = import_arm(model_spec, folder)()
    model.load_state_dict(dict(zip(model_spec.state, weights, strict=True)))
    reached = _recorded()
    launched = _launched() if "triton" in sys.modules else set()

    def call_s() -> float:
        begun = time.monotonic()
        with torch.no_grad():
            model(*unflatten(inputs, model_spec.inputs))
        synchronize(device)
        return time.monotonic() - begun

    first_s = call_s()
    ran = [sorted(reached), sorted(launched)]
    (folder / REACHED).write_text(json.dumps(ran))
    if timed:
        try:
            seconds = call_s() if first_s < FIRST_S else first_s - FIRST_S
        except RuntimeError:  # it may begin to capture a CUDA graph, which fails under a tool
            return
        (folder / REACHED).write_text(json.dumps([*ran, [seconds]]))


def _tensors(folder: Path, device: str) -> tuple[list[Any], list[Any]]:
    """Wait for the files of the tensors; return (weights, inputs) on `device`."""
    import torch

    ends = time.monotonic() + WAIT_S
    while not (folder / INPUTS).exists():
        if time.monotonic() > ends:
            raise TimeoutError(f"no {INPUTS} within {WAIT_S:g} s")
        time.sleep(0.005)
    weights, inputs = (
        [t.to(device) for t in torch.load(folder / name, mmap=True, weights_only=True)]
        for name in (WEIGHTS, INPUTS)
    )
    return weights, inputs


def _launched() -> set[str]:
    """Return a set; each later launch of a Triton kernel adds the kernel's name to it."""
    names = set[str]()
    try:
        from triton.runtime.jit import JITFunction

        plain = JITFunction.run
    except (ImportError, AttributeError):
        return names

    def recorded_run(function: Any, *arguments: Any, **named: Any) -> Any:
        if not named.get("warmup"):  # which compiles without a launch
            names.add(str(getattr(function, "__name__", function)))
        return plain(function, *arguments, **named)

    JITFunction.run = recorded_run
    return names


def _recorded() -> set[str]:
    """Return a set; each later call of a library function adds the function's name to it."""
    from cuagent.kernels.calls import Launcher

    plain, names = Launcher.__call__, set[str]()

    def recorded_call(launcher: Launcher, *arguments: Any) -> None:
        names.add(launcher.prototype.name)
        plain(launcher, *arguments)

    Launcher.__call__ = recorded_call  # type: ignore[method-assign, assignment]
    return names


def _make_cuagent_importable() -> None:
    """Add the folder that contains cuagent to sys.path, because `python -I` leaves it out."""
    package = Path(__file__).resolve().parents[1]
    spec = importlib.util.spec_from_file_location(
        "cuagent", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cuagent"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    _make_cuagent_importable()
    main(Path(sys.argv[1]), timed=TIMED in sys.argv[2:])
