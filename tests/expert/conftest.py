"""Fixtures that generate a candidate from a task's text, and import or interpret it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from agreement import Imported
from importing import imported  # type: ignore[import-not-found]
from known_names import unknown_names  # type: ignore[import-not-found]

from cuagent.expert.candidate import Candidate, Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.task import load_task


@pytest.fixture(scope="session", autouse=True)
def quick_export() -> Iterator[None]:
    from quick_export import quick_overrides

    with pytest.MonkeyPatch.context() as patch:
        quick_overrides(patch)
        yield


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Imported]:
    def make(
        text: str, entry: str, options: Options | None = None, device: str = "cpu"
    ) -> Imported:
        path = tmp_path / "task.py"
        path.write_text(text)
        subject = open_subject(load_task(f"{path}:{entry}", device=device))
        candidate = make_candidate(subject, options or Options())
        assert candidate is not None
        folder = tmp_path / f"candidate{len(list(tmp_path.iterdir()))}"
        for name, content in candidate.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        module = imported(folder / "model_new.py")
        task = imported(path)
        return Imported(candidate, module.ModelNew, getattr(task, entry), task.get_inputs)

    return make


HOPPER = Target("cuda", (9, 0), 132)


@pytest.fixture
def generate(tmp_path: Path) -> Callable[..., Candidate | None]:
    """Return a function that generates a candidate of a task text for a target, which need not
    exist on this machine."""

    def generate(
        text: str, target: Target = HOPPER, options: Options | None = None
    ) -> Candidate | None:
        path = tmp_path / "task.py"
        path.write_text(text)
        subject = replace(open_subject(load_task(f"{path}:Model")), target=target)
        made = make_candidate(subject, options or Options())
        if made is not None:
            assert not unknown_names(made.files["model_new.py"])
        return made

    return generate


INTERPRETED = """
import sys, torch
sys.path[:0] = [{folder!r}, {tests!r}]
import cuagent.kernels, emulation, interpreter
interpreter.checked_accesses()
if {bf16}:
    interpreter.exact_arithmetic()
cuagent.kernels.load = emulation.emulated
import task, model_new
torch.manual_seed(0)
inputs = task.get_inputs()
reference, new = task.Model().eval(), model_new.ModelNew().eval()
new.load_state_dict(reference.state_dict())
with torch.no_grad():
    expected, got = reference(*inputs), new(*inputs)
    if {tf32}:
        nearest = lambda t: ((t.view(torch.int32) + 4096) & -8192).view(torch.float32)
        inputs = [nearest(t) for t in inputs]
        for parameter in reference.parameters():
            if parameter.dim() > 1:
                parameter.copy_(nearest(parameter))
    if {same_as!r}:
        other = __import__({same_as!r}).ModelNew().eval()
        other.load_state_dict(reference.state_dict())
        assert torch.equal(got, other(*inputs))
        sys.exit()
    exact = reference.double()(*[t.double() for t in inputs])
if not isinstance(got, tuple):
    expected, got, exact = (expected,), (got,), (exact,)
for wanted, value, right in zip(expected, got, exact, strict=True):
    assert (value.shape, value.dtype) == (wanted.shape, wanted.dtype)
    assert value.stride() == wanted.stride()
    error, bound = ((t - right).norm() / right.norm() for t in (value, wanted))
    assert error <= 4 * bound + 4e-7, (error, bound)
"""


@pytest.fixture
def interpreted(tmp_path: Path, python: list[str], monkeypatch) -> Callable[..., None]:
    """Return a function that runs a candidate's Triton kernels in Triton's interpreter and compares
    the results with fp64.

    Kernels in CUDA C++ are emulated. Accesses outside of tensors are errors. `tf32`: round inputs
    and weights of the comparison to TF32. `bf16`: compute bfloat16 as a GPU does.
    `same_as`: file of a candidate whose results must be equal instead.
    """

    def run(
        candidate: Candidate | None, tf32: bool = False, same_as: str = "", bf16: bool = False
    ) -> None:
        assert candidate is not None
        if find_spec("triton") is None:
            pytest.skip("Triton is not installed")
        for path, text in candidate.files.items():
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_text(text)
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        tests = str(Path(__file__).parent)
        command = [
            *python,
            "-c",
            INTERPRETED.format(
                folder=str(tmp_path), tests=tests, tf32=tf32, same_as=same_as, bf16=bf16
            ),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-2000:]

    return run
