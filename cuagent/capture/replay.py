"""Check a captured folder in a new process: `python -m cuagent.capture.replay FOLDER`.

On the recorded inputs the rebuilt module must return the recorded result, and it must run on the
task's own inputs. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from cuagent.capture.calls import plain_output, tensors_of
from cuagent.task import TaskError, check_runs, load_task, open_reference
from cuagent.task.load import cuda_here

TOLERANCES = {"float64": 1e-9, "float32": 1e-3, "bfloat16": 5e-2, "float16": 1e-2}
"""Largest accepted difference by dtype, relative to the largest absolute value. Another order of
summation can cause such differences."""


def main(folder: str) -> None:
    """Check the captured folder and print the result as JSON."""
    try:
        print(json.dumps(check(Path(folder))))
    except TaskError as error:
        print(json.dumps({"error": str(error)}))


def check(folder: Path) -> dict[str, Any]:
    """Run the rebuilt module on the recorded call and compare the results. Raises TaskError.

    Returns {"difference": largest difference as a share of the tolerance, "note": text} or
    {"error": text}. The difference is None if nothing could be compared.
    """
    import torch

    manifest = json.loads((folder / "manifest.json").read_text())
    inputs = manifest["shapes"][0]["inputs"]
    recorded = inputs[0]["device"] if inputs else "cpu"
    device = "cuda" if recorded == "cuda" and cuda_here() else "cpu"
    reference = open_reference(load_task(folder / "task.py", device=device))
    call = torch.load(folder / "call.pt", weights_only=True)
    model = reference.model(0)
    check_runs(reference)
    if not call["outputs"]:
        note = "not compared with a real call: the weights had changed before the first of its form"
        return {"difference": None, "note": note}
    model.train(manifest["checked_training"])
    with torch.no_grad():
        output = model(*(x.to(device) for x in call["inputs"]))
    results = tensors_of(plain_output(output)[0])
    if len(results) != len(call["outputs"]):
        return {"error": f"{len(results)} result tensors instead of {len(call['outputs'])}"}
    worst = 0.0
    for got, wanted in zip(results, call["outputs"], strict=True):
        if got.shape != wanted.shape or got.dtype != wanted.dtype:
            return {
                "error": f"a result is {got.dtype}{list(got.shape)}, recorded was "
                f"{wanted.dtype}{list(wanted.shape)}"
            }
        worst = max(worst, _difference(got.cpu(), wanted) / _tolerance(wanted))
    if worst <= 1:
        return {"difference": worst, "note": ""}
    if manifest["checked_training"] and _is_random(model):
        return {"difference": None, "note": "dropout in training mode: not compared"}
    hooks = manifest["hooks"]
    why = ""
    if hooks:
        why = f" (its hooks are not part of a task: {', '.join(hooks[:3])}); remove them first"
    return {"error": f"the rebuilt module does not give the recorded result{why}"}


def _is_random(model: Any) -> bool:
    import torch

    drops = torch.nn.modules.dropout._DropoutNd
    return any(
        (isinstance(m, drops) and m.p > 0)
        or (isinstance(rate := getattr(m, "dropout", None), float) and rate > 0)
        for m in model.modules()
    )


def _tolerance(tensor: Any) -> float:
    return TOLERANCES.get(str(tensor.dtype).removeprefix("torch."), 1e-9)


def _difference(got: Any, wanted: Any) -> float:
    """Return the largest absolute difference relative to the largest absolute value; inf if an
    element is finite in one tensor only."""
    import torch

    if not wanted.numel():
        return 0.0
    if not (wanted.is_floating_point() or wanted.is_complex()):
        return float("inf") if bool((got != wanted).any()) else 0.0
    wide = torch.complex128 if wanted.is_complex() else torch.float64
    got, wanted = got.to(wide), wanted.to(wide)
    finite = wanted.isfinite()
    if not torch.equal(finite, got.isfinite()):
        return float("inf")
    if not bool(finite.any()):
        return 0.0
    scale = max(float(wanted[finite].abs().max()), 1e-30)
    return float((got[finite] - wanted[finite]).abs().max()) / scale


if __name__ == "__main__":
    main(sys.argv[1])
