"""A task's text to a candidate, written out, built by the real compiler and imported."""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from cuagent.expert.candidate import Candidate, Options, make_candidate
from cuagent.expert.subject import open_subject
from cuagent.task import load_task

sys.path.insert(0, str(Path(__file__).parent))

import modules


@dataclass(frozen=True)
class Made:
    candidate: Candidate
    cls: type[torch.nn.Module]
    reference: type[torch.nn.Module]
    inputs: Callable[[], list[Any]]


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Made]:
    def made(text: str, entry: str, options: Options | None = None, device: str = "cpu") -> Made:
        path = tmp_path / "task.py"
        path.write_text(text)
        subject = open_subject(load_task(f"{path}:{entry}", device=device))
        candidate = make_candidate(subject, options or Options())
        assert candidate is not None
        folder = tmp_path / f"candidate{len(list(tmp_path.iterdir()))}"
        for name, content in candidate.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        module = _imported(folder / "model_new.py")
        task = _imported(path)
        return Made(candidate, module.ModelNew, getattr(task, entry), task.get_inputs)

    return made


def _imported(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def agrees(made: Made, device: str = "cpu", seed: int = 0) -> torch.nn.Module:
    """The candidate's output has the reference's form and its error against fp64; gives it back."""
    torch.manual_seed(seed)
    reference = made.reference().eval().to(device)
    with torch.no_grad():
        for tensor in [*reference.parameters(), *reference.buffers()]:
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.25)
    new = made.cls().eval().to(device)
    new.load_state_dict(reference.state_dict(), strict=True)
    inputs = modules.mapped(lambda t: t.to(device), made.inputs())
    before = modules.mapped(torch.clone, inputs)

    def widened(t: torch.Tensor) -> torch.Tensor:
        return t.double() if t.is_floating_point() else t

    with torch.no_grad():
        expected = list(modules.leaves(reference(*inputs)))
        got = list(modules.leaves(new(*inputs)))
        exact = copy.deepcopy(reference).double()(*modules.mapped(widened, inputs))
    assert list(map(repr, modules.leaves(inputs))) == list(map(repr, modules.leaves(before)))
    for theirs, ours, right in zip(expected, got, modules.leaves(exact), strict=True):
        assert (ours.shape, ours.dtype, ours.stride()) == (
            theirs.shape,
            theirs.dtype,
            theirs.stride(),
        )
        scale = right.double().norm() + 1e-30
        error = (ours.double() - right).norm() / scale
        own_error = (theirs.double() - right).norm() / scale
        assert error <= 4 * own_error + 4e-7
    return new
