"""Tests of opened tasks: seeds decide all values, and errors are one line with the user's file."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cuagent.task import (
    Device,
    Reference,
    TaskError,
    check_runs,
    load_task,
    open_reference,
    training_note,
)
from cuagent.task.memory import SMALLER

MODEL = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self, n, bias=True):
        super().__init__()
        self.linear = nn.Linear(n, n, bias=bias)
        self.drop = nn.Dropout()
    def forward(self, x):
        return self.drop(self.linear(x))
def get_inputs():
    return [torch.randn(4, 8)]
def get_init_inputs():
    return [8]
"""
PLAIN = "import torch\nfrom torch import nn\nclass Net(nn.Module):\n"


def opened(folder: Path, source: str, **options: str) -> Reference:
    file = folder / "model.py"
    file.write_text(source)
    name = "" if "class Model" in source else ":Net"
    return open_reference(load_task(f"{file}{name}", device="cpu", **options))


def fails(folder: Path, source: str, **options: str) -> str:
    with pytest.raises(TaskError) as caught:
        check_runs(opened(folder, source, **options))
    message = str(caught.value)
    assert "\n" not in message
    assert list(folder.glob("**/*.pyc")) == []
    return message


def test_seeds_decide_parameters_and_inputs(tmp_path: Path) -> None:
    reference = opened(tmp_path, MODEL)
    one, same, other = (reference.model(seed) for seed in (1, 1, 2))
    assert torch.equal(one.linear.weight, same.linear.weight)
    assert not torch.equal(one.linear.weight, other.linear.weight)
    assert torch.equal(reference.inputs(1)[0], reference.inputs(1)[0])
    assert not torch.equal(reference.inputs(1)[0], reference.inputs(2)[0])
    assert not one.training
    assert reference.init_args == ((8,), {})
    check_runs(reference)


def test_global_random_state_is_restored(tmp_path: Path) -> None:
    torch.manual_seed(5)
    random.seed(5)
    expected = torch.rand(1), random.random()
    torch.manual_seed(5)
    random.seed(5)
    reference = opened(tmp_path, MODEL)
    reference.model(1)
    reference.inputs(1)
    assert (torch.rand(1), random.random()) == expected


def test_inputs_option_overrides_get_inputs(tmp_path: Path) -> None:
    reference = opened(tmp_path, MODEL, inputs="f32[3,8]", init="8, bias=False")
    assert reference.inputs(0)[0].shape == (3, 8)
    assert reference.init_args == ((8,), {"bias": False})
    check_runs(reference)


def test_drawn_inputs_follow_the_grammar(tmp_path: Path) -> None:
    source = PLAIN + "    def forward(self, *x): return x[0]\n"
    inputs = "f32[4000]; i64[4000]<7; f32[4000]<1; bf16[2]; [f64[], (bool[9], 3)]; 0.5"
    normal, index, unit, half, nest, scalar = opened(tmp_path, source, inputs=inputs).inputs(0)
    assert abs(normal.mean()) < 0.1
    assert normal.min() < -2
    assert set(index.tolist()) == set(range(7))
    assert unit.min() >= 0
    assert unit.max() < 1
    assert half.dtype is torch.bfloat16
    assert nest[0].shape == ()
    assert nest[1][0].dtype is torch.bool
    assert (nest[1][1], scalar) == (3, 0.5)


def test_init_inputs_accept_named_arguments(tmp_path: Path) -> None:
    source = MODEL.replace("return [8]", "return [[8], {'bias': False}]")
    assert opened(tmp_path, source).init_args == ((8,), {"bias": False})


def test_sibling_modules_import_without_bytecode(tmp_path: Path) -> None:
    (tmp_path / "sibling_of_this_test.py").write_text("WIDTH = 8\n")
    source = MODEL.replace(
        "from torch import nn", "from torch import nn\nimport sibling_of_this_test"
    )
    path = list(sys.path)
    check_runs(opened(tmp_path, source))
    assert sys.path == path
    assert {file.name for file in tmp_path.iterdir()} == {"model.py", "sibling_of_this_test.py"}


def test_relative_imports_work_inside_a_package(tmp_path: Path) -> None:
    package = tmp_path / "package_of_this_test"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "parts.py").write_text("WIDTH = 8\n")
    check_runs(opened(package, "from .parts import WIDTH\n" + MODEL))


def test_loaded_text_runs_even_if_the_file_changed(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    task = load_task(file, device="cpu")
    file.write_text("raise RuntimeError('edited')")
    check_runs(open_reference(task))


def test_import_failure_names_the_users_line(tmp_path: Path) -> None:
    message = fails(tmp_path, "import torch\nimport not_there_at_all\n" + MODEL)
    assert f"{tmp_path / 'model.py'}:2: the import failed: ModuleNotFoundError" in message
    assert "SystemExit" in fails(tmp_path, "import sys\nsys.exit(1)\n" + MODEL)
    (tmp_path / "broken_of_this_test.py").write_text("x = 1\nx = = 2\n")
    message = fails(tmp_path, "import broken_of_this_test\n" + MODEL)
    assert "broken_of_this_test.py:2" in message


def test_import_failure_names_the_remedy(tmp_path: Path) -> None:
    message = fails(tmp_path, "import not_there_at_all.parts\n" + MODEL)
    install = f"{sys.executable} -m pip install not_there_at_all"
    assert f"not_there_at_all is not installed in this Python: run {install}" in message
    message = fails(tmp_path, "import torch.not_there_at_all\n" + MODEL)
    assert "the installed torch has no such module" in message
    message = fails(tmp_path, "from .parts import WIDTH\n" + MODEL)
    assert f"create an empty __init__.py in {tmp_path}" in message


def test_import_from_the_repository_root_is_explained(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    folder = tmp_path / "networks_of_this_test" / "small"
    folder.mkdir(parents=True)
    (folder / "parts.py").write_text("WIDTH = 8\n")
    text = "from networks_of_this_test.small.parts import WIDTH\n" + MODEL
    message = fails(folder, text)
    named = [tmp_path / "networks_of_this_test", folder]
    assert f"networks_of_this_test is in {tmp_path}" in message
    assert f"__init__.py in {named[0]} and in {named[1]}" in message
    for place in named:
        (place / "__init__.py").touch()
    check_runs(opened(folder, text))


def test_class_that_is_not_a_module_is_rejected(tmp_path: Path) -> None:
    message = fails(tmp_path, "class Net:\n    pass\n", inputs="f32[2]")
    assert "Net is not a subclass of torch.nn.Module" in message


def test_constructor_error_is_reported(tmp_path: Path) -> None:
    init = "    def __init__(self, width):\n        super().__init__()\n"
    message = fails(tmp_path, PLAIN + init, inputs="f32[2]")
    assert "Net() failed: TypeError" in message
    assert "give its arguments with --init" in message
    message = fails(tmp_path, MODEL, init="'wide'")
    assert f"{tmp_path / 'model.py'}:7: Model('wide') failed" in message


def test_error_for_wrong_inputs_shows_their_shapes(tmp_path: Path) -> None:
    message = fails(tmp_path, MODEL, inputs="f32[4,9]")
    assert "Model.forward(float32[4,9]) failed: RuntimeError" in message
    assert "4x9 and 8x8" in message
    assert "check that --inputs fits" in message
    message = fails(tmp_path, MODEL.replace("torch.randn(4, 8)", "torch.randn(4, 8), 3"))
    assert "check that get_inputs() fits" in message


def test_wrong_get_inputs_is_reported(tmp_path: Path) -> None:
    wrong = MODEL.replace("return [torch.randn(4, 8)]", "return torch.randn(4, 8)")
    assert "get_inputs() returns a Tensor; it must return a list" in fails(tmp_path, wrong)
    wrong = MODEL.replace("return [torch.randn(4, 8)]", "return [object()]")
    assert "inputs[0] is a object" in fails(tmp_path, wrong)
    wrong = MODEL.replace("return [torch.randn(4, 8)]", "return 1 / 0")
    assert "model.py:12: get_inputs() failed: ZeroDivisionError" in fails(tmp_path, wrong)


def test_output_that_is_not_a_tensor_tree_is_rejected(tmp_path: Path) -> None:
    source = PLAIN + "    def forward(self, x): return [x, {'y': {x}}]\n"
    assert "Net: its output[1]['y'] is a set" in fails(tmp_path, source, inputs="f32[2]")
    source = PLAIN + "    def forward(self, x): return 3.5\n"
    assert "Net returns no tensor (3.5)" in fails(tmp_path, source, inputs="f32[2]")


def test_tensors_on_a_fixed_device_are_rejected(tmp_path: Path) -> None:
    source = PLAIN + "    def forward(self, x): return torch.ones(2, device='meta')\n"
    assert "returns a tensor on meta" in fails(tmp_path, source, inputs="f32[2]")
    source = (
        PLAIN
        + "    def _apply(self, f, recurse=True):\n"
        + "        self.w = nn.Parameter(torch.ones(2, device='meta'))\n        return self\n"
    )
    assert "w stays on meta when the model is moved to cpu" in fails(
        tmp_path, source, inputs="f32[2]"
    )


def test_parameter_on_the_meta_device_is_rejected(tmp_path: Path) -> None:
    source = MODEL.replace("self.drop =", "self.linear.to('meta')\n        self.drop =")
    assert "linear.weight of Model is on the meta device and has no values" in fails(
        tmp_path, source
    )


def test_output_without_finite_numbers_is_rejected(tmp_path: Path) -> None:
    source = PLAIN + "    def forward(self, x): return x.log(), x[:0]\n"
    message = fails(tmp_path, source.replace("x.log()", "(-1 - x * x).log()"), inputs="f32[2]")
    assert "returns only NaN and infinities (float32[2], float32[0])" in message
    message = fails(tmp_path, source, inputs="f32[0,3]")
    assert "Net.forward(float32[0,3]) returns only empty tensors" in message
    check_runs(opened(tmp_path, source, inputs="f32[200]"))


@pytest.mark.parametrize(
    ("source", "inputs", "place"),
    [
        ("    def forward(self, x): return x\n", "f32[1000000,1000000]", "--inputs f32"),
        ("    def forward(self, x): return x[:, None] + x\n", "f32[1000000]", ":4: Net.forward("),
        (
            "    def __init__(self):\n        super().__init__()\n"
            "        self.w = torch.ones(1000000, 1000000)\n",
            "f32[2]",
            ":6: Net()",
        ),
    ],
    ids=["inputs", "forward", "constructor"],
)
def test_task_that_is_too_large_is_rejected(
    tmp_path: Path, source: str, inputs: str, place: str
) -> None:
    message = fails(tmp_path, PLAIN + source, inputs=inputs)
    assert place in message
    assert "needs 3.64 TiB of memory, but only " in message
    assert message.endswith(f"are free; {SMALLER}")


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ("self.part = torch.nn.Dropout(0.1)", "part (Dropout)"),
        ("self.part = torch.nn.BatchNorm1d(4)", "part (BatchNorm1d)"),
        ("self.part = torch.nn.MultiheadAttention(4, 2, dropout=0.1)", "part (Multihead"),
        ("self.part = None if self.training else 1", "forward"),
        ("self.part = torch.nn.Dropout(0.0)", ""),
        ("self.part = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))", ""),
    ],
)
def test_training_note_names_mode_dependent_parts(tmp_path: Path, part: str, named: str) -> None:
    source = f"""
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {part}
    def forward(self, x): return x
"""
    reference = opened(tmp_path, source, inputs="f32[4]")
    note = training_note(reference.task, reference.model(0))
    assert note.startswith(f"judged in eval mode: {named}") if named else not note


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_cuda_without_a_gpu_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    with pytest.raises(TaskError, match="sees no GPU here; use --device cpu"):
        open_reference(load_task(tmp_path / "model.py", device="cuda"))
    source = PLAIN + "    def forward(self, x): return x + torch.ones(2, device='cuda')\n"
    assert "the task runs on cpu: create tensors on the device of an input" in fails(
        tmp_path, source, inputs="f32[2]"
    )


@pytest.mark.gpu
def test_model_and_inputs_are_on_the_gpu(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    reference = open_reference(load_task(tmp_path / "model.py"))
    assert reference.model(0).linear.weight.is_cuda
    assert reference.inputs(0)[0].is_cuda
    check_runs(reference)


@pytest.mark.gpu
@pytest.mark.parametrize("made", ["torch.rand(2, 3)", "torch.from_numpy(numpy.random.rand(2, 3))"])
def test_inputs_are_drawn_on_the_gpu_if_their_code_allows_it(tmp_path: Path, made: str) -> None:
    text = f"import numpy, torch\n{MODEL}\ndef get_inputs():\n    x = {made}\n"
    (tmp_path / "model.py").write_text(f"{text}    return [x.float() + torch.ones(2, 3)]\n")
    reference = open_reference(load_task(tmp_path / "model.py"))
    first, again, other = (reference.inputs(seed)[0] for seed in (5, 5, 6))
    assert first.is_cuda
    assert first.equal(again)
    assert not first.equal(other)


def test_inputs_without_room_on_the_gpu_are_drawn_on_the_cpu_only_if_allowed(
    tmp_path: Path,
) -> None:
    text = f"""{MODEL}
def get_inputs():
    try:
        there = torch.empty(0).is_cuda
    except Exception:  # torch without CUDA cannot create a tensor there
        there = True
    if there:
        raise torch.OutOfMemoryError("full")
    return [torch.rand(2, 3)]
"""
    (tmp_path / "model.py").write_text(text)
    reference = open_reference(load_task(tmp_path / "model.py", device="cpu"))
    there = replace(reference, task=replace(reference.task, device=Device.CUDA))
    assert there._draw_inputs(0)[0].shape == (2, 3)
    with pytest.raises(TaskError, match="full"):
        replace(there, draws_on_cpu=False)._draw_inputs(0)
