"""Three-dimensional and transposed convolutions as generated Triton kernels."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from importlib.util import find_spec

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]
from shares import slow_after

from cuagent.expert.candidate import Options
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.expert.convolutions import qualify
from cuagent.expert.search.outcomes import Outcome
from cuagent.expert.search.planner import propose
from cuagent.task import load_task
from cuagent.timing import Ratio

HOPPER = Target("cuda", (9, 0), 132)
LAYERS = {
    "3-D, strided": (
        "nn.Conv3d(32, 48, 3, stride=(1, 2, 1), padding=1)",
        "torch.sigmoid(self.c(x)) * 2 + self.s",
        "torch.randn(4, 32, 12, 12, 12)",
    ),
    "3-D, dilated": (
        "nn.Conv3d(33, 48, (3, 1, 2), dilation=(2, 1, 1))",
        "self.c(x)",
        "torch.randn(8, 33, 12, 12, 12)",
    ),
    "transposed 3-D": (
        "nn.ConvTranspose3d(32, 48, 3, stride=2, padding=1, output_padding=1)",
        "F.relu(self.c(x) + self.s)",
        "torch.randn(4, 32, 8, 9, 10)",
    ),
    "transposed 3-D, uneven": (
        "nn.ConvTranspose3d(32, 48, (3, 5, 2), stride=(1, 2, 3), padding=(1, 0, 1), bias=False)",
        "self.c(x)",
        "torch.randn(4, 32, 8, 9, 10)",
    ),
    "transposed 2-D": (
        "nn.ConvTranspose2d(40, 48, 4, stride=2, padding=1)",
        "F.gelu(self.c(x))",
        "torch.randn(4, 40, 40, 41)",
    ),
    "pointwise 2-D": (
        "nn.Conv2d(40, 48, 1)",
        "F.silu(self.c(x)) * self.s[0] + x[:, :1]",
        "torch.randn(16, 40, 60, 61)",
    ),
    "pointwise 1-D of a part": (
        "nn.Conv1d(64, 100, 1, bias=False)",
        "self.c(x[:, 8:72]).relu()",
        "torch.randn(8, 80, 1536)",
    ),
    "transposed 1-D with gaps": (
        "nn.ConvTranspose1d(256, 300, 2, stride=3)",
        "self.c(x) * 2",
        "torch.randn(4, 256, 300)",
    ),
    "transposed 2-D, dilated": (
        "nn.ConvTranspose2d(40, 48, 3, stride=4, padding=1, dilation=2)",
        "self.c(x)",
        "torch.randn(4, 40, 40, 41)",
    ),
    "2-D of few channels": (
        "nn.Conv2d(3, 48, 7, stride=2, padding=3)",
        "F.silu(self.c(x)) + self.s[0]",
        "torch.randn(16, 3, 112, 112)",
    ),
    "3-D of few channels, softmax over the channels": (
        "nn.Conv3d(5, 24, 3)",
        "F.softmax(self.c(x), 1) * 2",
        "torch.randn(8, 5, 20, 30, 30)",
    ),
    "transposed 3-D of few channels, log-sum-exp": (
        "nn.ConvTranspose3d(3, 20, 3, stride=2, padding=1)",
        "torch.logsumexp(self.c(x), 1, keepdim=True) - self.s[:1]",
        "torch.randn(16, 3, 16, 32, 32)",
    ),
    "least over the channels": (
        "nn.Conv2d(16, 40, 3)",
        "torch.min(self.c(x), dim=1, keepdim=True)[0] * 2",
        "torch.randn(8, 16, 64, 64)",
    ),
    "maxima of windows": (
        "nn.Conv2d(8, 24, 3)",
        "F.max_pool2d(F.relu(self.c(x)) * self.s[0], 2) * 2 + 0.5",
        "torch.randn(8, 8, 91, 90)",
    ),
    "means of windows, 3-D": (
        "nn.Conv3d(32, 48, 3, padding=1)",
        "F.relu(F.avg_pool3d(torch.sigmoid(self.c(x)) * 2, (1, 4, 2)))",
        "torch.randn(4, 32, 12, 13, 14)",
    ),
    "transposed, maxima of windows": (
        "nn.ConvTranspose2d(40, 48, 3, padding=1, bias=False)",
        "F.max_pool2d(self.c(x), 4)",
        "torch.randn(4, 40, 40, 41)",
    ),
}
COPIED = {"3-D, strided", "3-D, dilated", "transposed 3-D", "transposed 3-D, uneven",
          "transposed 2-D", "transposed 2-D, dilated", "transposed 1-D with gaps",
          "means of windows, 3-D", "transposed, maxima of windows"}  # fmt: skip
"""Layers whose input is copied to channels-last layout."""


def text_of(name: str, dtype: str = "torch.float32") -> str:
    layer, forward, inputs = LAYERS[name]
    return f"""
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = {layer}
        self.s = nn.Parameter(torch.rand(48, 1, 1, 1))
        self.to({dtype})
    def forward(self, x):
        return {forward}
def get_inputs(): return [{inputs}.to({dtype})]
def get_init_inputs(): return []
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_convolution_and_all_operations_behind_it_are_one_kernel(generate, name):
    candidate = generate(text_of(name))
    assert candidate is not None
    module = candidate.files["model_new.py"]
    forward = module[module.rindex("def forward") :]
    kernels = module.count("@triton.jit") - module.count("_of_element(x):")
    assert len(candidate.kernels) == kernels == 1 + (name in COPIED)
    assert "F.conv" not in forward
    assert any("copy" in kernel for kernel in candidate.kernels) == (name in COPIED)
    compile(module, "model_new.py", "exec")


@pytest.mark.parametrize(
    ("admitted", "precision"), [(True, '"tf32")'), (False, '"tf32x3")')], ids=["TF32", "float32"]
)
def test_arithmetic_follows_the_settings_of_convolutions(generate, admitted, precision):
    target = replace(HOPPER, tf32_convolutions=admitted)
    module = generate(text_of("transposed 3-D"), target).files["model_new.py"]
    assert f"input_precision={precision}" in module


@pytest.mark.slow
@pytest.mark.parametrize(
    "layer",
    [
        "nn.ConvTranspose3d(32, 48, 3, stride=2, groups=2)",
        "nn.Conv3d(32, 48, 3, padding='same')",
        "nn.Conv3d(32, 48, 1, stride=2, groups=2)",
    ],
)
def test_other_convolutions_stay_with_the_library(generate, layer):
    text = text_of("transposed 3-D").replace(LAYERS["transposed 3-D"][0], layer)
    candidate = generate(text)
    assert candidate is None or "@triton.jit" not in candidate.files["model_new.py"]


def test_two_dimensional_convolution_with_a_long_sum_stays_with_the_library(generate):
    text = text_of("2-D of few channels").replace("Conv2d(3, 48, 7", "Conv2d(30, 48, 7")
    candidate = generate(text.replace("(16, 3,", "(16, 30,"))
    assert candidate is not None
    assert "@triton.jit" not in candidate.files["model_new.py"]


GATE = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Conv2d(16, 48, 3), nn.Conv2d(16, 48, 3)
    def forward(self, x):
        return torch.sigmoid(self.gate(x)) * self.up(x)
def get_inputs(): return [torch.randn(8, 16, 64, 64)]
def get_init_inputs(): return []
"""


def test_one_convolution_of_a_gate_takes_the_epilogue(generate):
    module = generate(GATE).files["model_new.py"]
    assert module.count("@triton.jit") == 2
    assert module.count("tl.sigmoid") + module.count("tl.exp(-") == 1


@pytest.mark.parametrize(
    ("channels", "exact", "precision"),
    [(16, False, "tf32x3"), (24, False, "tf32"), (24, True, "tf32x3")],
)
def test_few_channels_and_exact_convolutions_keep_float32_where_tf32_is_admitted(
    generate, monkeypatch, channels, exact, precision
):
    monkeypatch.setattr(qualify, "SHORT_EXACT_SUM", 256)
    text = GATE.replace("Conv2d(16", f"Conv2d({channels}").replace("(8, 16", f"(8, {channels}")
    target = replace(HOPPER, tf32_convolutions=True)
    candidate = generate(text, target, Options(exact_convolutions=exact))
    module = candidate.files["model_new.py"]
    assert f'input_precision="{precision}"' in module
    assert ("4096) & -8192" in module) is (precision == "tf32"), "the rounded weight"


def test_imprecise_convolutions_are_tried_again_as_in_float32(generate, tmp_path):
    text = GATE.replace("Conv2d(16", "Conv2d(24").replace("(8, 16", "(8, 24")
    candidate = generate(text, replace(HOPPER, tf32_convolutions=True))
    path = tmp_path / "task.py"
    subject = open_subject(load_task(f"{path}:Model"))
    subject = replace(subject, target=replace(HOPPER, tf32_convolutions=True))
    for reason in ("less precise than the task allows", "wrong while timed"):
        proposal = propose(subject, [Outcome(candidate, False, reason)])
        assert proposal is not None
        assert proposal.candidate.options.exact_convolutions


def test_transposed_convolution_without_settings_is_captured(generate):
    text = text_of("transposed 3-D").replace(
        LAYERS["transposed 3-D"][0], "nn.ConvTranspose3d(32, 48, 3, bias=False)"
    )
    candidate = generate(text)
    assert candidate is not None
    assert candidate.kernels[-1] == "conv_transpose3d_relu_kernel"


@pytest.mark.parametrize(
    "pool",
    slow_after(
        2,
        [
            "F.max_pool2d(y, 3)",
            "F.max_pool2d(y, 2) + y[:, :, :88:2, ::2]",
            "F.max_pool2d(y, 2, stride=1)",
            "F.avg_pool2d(y, 2, padding=1)",
            "F.max_pool2d(y, 2, dilation=2)",
        ],
    ),
)
def test_pool_of_other_windows_stays_a_kernel(generate, monkeypatch, pool):
    layer, _, inputs = LAYERS["maxima of windows"]
    monkeypatch.setitem(LAYERS, "other", (layer, f"(lambda y: {pool})(self.c(x))", inputs))
    candidate = generate(text_of("other"))
    assert len(candidate.kernels) == 2


LONG_SUM = ("nn.Conv2d(64, 48, 3)", "F.relu(self.c(x)) + self.s[0]", "torch.randn(8, 64, 9, 9)")


def test_kernel_behind_a_convolution_of_the_library_adds_its_bias(generate, monkeypatch):
    monkeypatch.setitem(LAYERS, "long sum", LONG_SUM)
    candidate = generate(text_of("long sum"))
    forward = candidate.files["model_new.py"].rpartition("def forward")[2]
    call = "F.conv2d(x, self._modules['c'].weight"
    assert f"{call}, stride" in forward or f"{call})" in forward
    assert len(candidate.kernels) == 1


@pytest.mark.parametrize("behind", ["F.relu(self.c(x)) + self.s[0]", "F.max_pool2d(self.c(x), 2)"])
def test_channels_last_convolution_has_one_kernel_behind_it(generate, monkeypatch, behind):
    monkeypatch.setitem(LAYERS, "long sum", (LONG_SUM[0], behind, LONG_SUM[2]))
    candidate = generate(text_of("long sum"), options=Options(convolutions="channels_last"))
    forward = candidate.files["model_new.py"].rpartition("def forward")[2]
    assert "memory_format=torch.channels_last" not in forward
    assert "bias=" not in forward
    assert len(candidate.kernels) == 2  # a copy of the input before it


def test_torch_copies_few_channels_to_channels_last_layout(generate, monkeypatch):
    layer = ("nn.Conv2d(3, 48, 3)", "F.relu(self.c(x))", "torch.randn(8, 3, 9, 9)")
    monkeypatch.setitem(LAYERS, "few channels", layer)
    candidate = generate(text_of("few channels"), options=Options(convolutions="channels_last"))
    assert "memory_format=torch.channels_last" in candidate.files["model_new.py"]
    assert len(candidate.kernels) == 1


def layouts_tried(path, layer, forward, inputs, speed):
    """Return the convolution layouts that the expert tries, if each candidate has the speedup
    `speed` over torch.compile."""
    text = text_of("transposed 3-D")
    for old, new in zip(LAYERS["transposed 3-D"], (layer, forward, inputs), strict=True):
        text = text.replace(old, new)
    (path / "task.py").write_text(text)
    subject = replace(open_subject(load_task(f"{path / 'task.py'}:Model")), target=HOPPER)
    outcomes: list[Outcome] = []
    ratios = {"compile": Ratio(speed, speed * 0.99, speed * 1.01)}
    while (proposal := propose(subject, outcomes)) is not None:
        outcomes.append(Outcome(proposal.candidate, True, "accepted", 1, ratios))
    return [outcome.candidate.options.convolutions for outcome in outcomes]


def test_few_convolutions_are_tried_in_each_layout(tmp_path):
    tried = layouts_tried(tmp_path, *LAYERS["transposed 2-D"], speed=1.0)
    assert tried[:3] == ["own", "channels_last", "library"]


def test_clear_gain_is_tuned_before_other_layouts(tmp_path):
    tried = layouts_tried(tmp_path, *LAYERS["transposed 2-D"], speed=1.5)
    assert tried[:2] == ["own", "own"]


def test_single_convolution_of_the_library_is_tried_in_channels_last_layout(tmp_path):
    layer = ("nn.Conv2d(64, 48, 3)", "self.c(x)", "torch.randn(8, 64, 9, 9)")
    assert layouts_tried(tmp_path, *layer, speed=1.0)[:1] == ["channels_last"]


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_channels_last_convolution_agrees_with_fp64(generate, interpreted, monkeypatch):
    monkeypatch.setitem(LAYERS, "long sum", (LONG_SUM[0], "F.softmax(self.c(x), 1)", LONG_SUM[2]))
    candidate = generate(text_of("long sum"), options=Options(convolutions="channels_last"))
    interpreted(candidate)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("tf32", [False, True], ids=["float32", "TF32 on inputs far from 0"])
def test_kernel_agrees_with_fp64_in_the_interpreter(generate, interpreted, monkeypatch, name, tf32):
    monkeypatch.setattr(qualify, "SHORT_EXACT_SUM", qualify.SHORT_SUM)
    # Sums of at most SHORT_EXACT_SUM terms with more outputs stay with the library.
    monkeypatch.setattr(qualify, "FEW_COLUMNS", 256)
    monkeypatch.setattr(qualify, "LEAST_OPERATIONS", 0)
    *_, inputs = LAYERS[name]
    _, channels, *places = re.findall(r"\d+", inputs)
    small = ", ".join(["2", channels, *(str(min(int(n), 9)) for n in places)])
    text = text_of(name).replace(inputs, f"torch.randn({small})")
    text = text.replace("torch.randn(", "100 + torch.randn(") if tf32 else text
    interpreted(generate(text, replace(HOPPER, tf32_convolutions=tf32)), tf32)


UNEVEN = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.ConvTranspose2d(32, 48, (4, 3), stride=(3, STRIDE), padding=1)
        self.t = nn.Parameter(torch.rand(48, *self.c(torch.zeros(1, 32, 4, 5)).shape[2:]))
    def forward(self, x):
        return self.c(x) * self.t
def get_inputs(): return [torch.randn(3, 32, 4, 5)]
def get_init_inputs(): return []
"""


@pytest.mark.parametrize("stride", [1, 2, 4], ids=["one", "pairs", "together"])
def test_phases_of_different_lengths_divide_by_constants(generate, monkeypatch, stride):
    monkeypatch.setattr(qualify, "LEAST_OPERATIONS", 0)
    module = generate(UNEVEN.replace("STRIDE", str(stride))).files["model_new.py"]
    assert "count_0 = tl.where(" in module
    assert "points_0 = 4" in module
    assert ("rest_1 = " in module) is (stride == 4)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("stride", [1, 2, 4], ids=["one", "pairs", "together"])
def test_rows_without_a_point_read_inside_of_the_tensors(
    generate, interpreted, monkeypatch, stride
):
    monkeypatch.setattr(qualify, "LEAST_OPERATIONS", 0)
    interpreted(generate(UNEVEN.replace("STRIDE", str(stride))))


GAPS = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = LAYER
    def forward(self, x):
        return self.c(x) * 2
def get_inputs(): return [torch.randn(INPUT)]
def get_init_inputs(): return []
"""
SINGLE = {
    "a line": ("nn.ConvTranspose1d(24, 32, 1, stride=5, padding=1, groups=2)", "2, 24, 5"),
    "a pair of phases": ("nn.ConvTranspose2d(32, 32, 1, stride=2)", "2, 32, 5, 4"),
    "together": ("nn.ConvTranspose2d(32, 32, 1, stride=(3, 4))", "2, 32, 5, 4"),
}


def gaps(name: str) -> str:
    layer, shape = SINGLE[name]
    return GAPS.replace("LAYER", layer).replace("INPUT", shape)


@pytest.mark.parametrize("name", SINGLE)
def test_phases_without_a_tap_have_no_step(generate, monkeypatch, name):
    monkeypatch.setattr(qualify, "LEAST_OPERATIONS", 0)
    module = generate(gaps(name)).files["model_new.py"]
    assert re.search(r"for step in range\(0, .*taps_0.* \* blocks\)", module)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("name", SINGLE)
def test_outputs_between_single_elements_are_zero(generate, interpreted, monkeypatch, name):
    monkeypatch.setattr(qualify, "LEAST_OPERATIONS", 0)
    interpreted(generate(gaps(name)))


@pytest.mark.parametrize("operation", ["softmax", "relu"])
def test_products_are_rounded_before_their_maximum_is_subtracted(generate, operation):
    forward = "(self.c(x) * 3).softmax(1)" if operation == "softmax" else "(self.c(x) * 3).relu()"
    layer, _, inputs = LAYERS["transposed 3-D"]
    text = text_of("transposed 3-D").replace(LAYERS["transposed 3-D"][1], forward)
    assert layer in text
    assert inputs in text
    module = generate(text).files["model_new.py"]
    launch = next(part for part in module.split("@triton.jit") if "_kernel[(" in part)
    assert ("enable_fp_fusion=False" in launch) is (operation == "softmax")


@pytest.mark.gpu
@pytest.mark.parametrize("tiles", [0, 2])
@pytest.mark.parametrize("dtype", ["torch.float32", "torch.bfloat16"])
@pytest.mark.parametrize("name", LAYERS)
def test_cuda_candidate_agrees_with_reference(make, name, dtype, tiles):
    assert_agrees(make(text_of(name, dtype), "Model", Options(tiles=tiles), "cuda"), "cuda")


def test_kept_convolution_with_options_by_position_is_not_rewritten(make):
    text = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.n = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.d, self.l = nn.Conv2d(8, 4, 1), nn.Linear(5, 7)
    def forward(self, x):
        return torch.relu(self.l(self.d(self.n(self.c(x)))))
def get_inputs(): return [torch.randn(2, 3, 10, 9)]
def get_init_inputs(): return []
"""
    for kept in ({"conv2d"}, {"conv2d", "conv2d_1"}, {"linear"}):
        assert_agrees(make(text, "Model", Options(keep=frozenset(kept))))


ONE_COLUMN = {
    "window as wide as the input": (
        "nn.Conv2d(1, 48, (3, 64))", "F.relu(self.c(x))", "torch.randn(8, 1, 50, 64)", False
    ),
    "two columns": (
        "nn.Conv2d(1, 48, (3, 63))", "F.relu(self.c(x))", "torch.randn(8, 1, 50, 64)", True
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_COLUMN)
def test_inputs_of_outputs_with_one_column_are_not_read_as_adjacent(generate, monkeypatch, name):
    monkeypatch.setattr(qualify, "LEAST_OPERATIONS", 0)
    *layer, adjacent = ONE_COLUMN[name]
    monkeypatch.setitem(LAYERS, name, tuple(layer))
    text = generate(text_of(name, "torch.float16")).files["model_new.py"]
    assert "first = sample" in text
    assert ("tl.max_contiguous(first" in text) == adjacent


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_convolution_of_one_column_reads_its_inputs(generate, interpreted, monkeypatch):
    monkeypatch.setattr(qualify, "LEAST_OPERATIONS", 0)
    layer = ("nn.Conv2d(1, 24, (3, 16))", "F.relu(self.c(x))", "torch.randn(2, 1, 20, 16)")
    monkeypatch.setitem(LAYERS, "one column", layer)
    interpreted(generate(text_of("one column"), replace(HOPPER, tf32_convolutions=False)))


EXCHANGED = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.c = torch.nn.{layer}
    def forward(self, x):
        return self.c({x})
def get_inputs(): return [torch.randn(2, {channels}, 12, 15).mT]
def get_init_inputs(): return []
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("x", ["x", "torch.nn.functional.gelu(x)"])
@pytest.mark.parametrize(
    ("layer", "channels"),
    [("Conv2d(64, 64, 3)", 64), ("ConvTranspose2d(24, 32, 4, 2)", 24)],
)
def test_input_whose_height_and_width_are_exchanged_is_copied(
    generate, interpreted, monkeypatch, layer, channels, x
):
    monkeypatch.setattr(qualify, "LEAST_OPERATIONS", 0)
    monkeypatch.setattr(qualify, "LEAST_OCCUPIED", 0)
    text = EXCHANGED.format(layer=layer, channels=channels, x=x)
    candidate = generate(text, replace(HOPPER, tf32_convolutions=True))
    assert candidate is not None
    assert candidate.library_convolutions == 0
    interpreted(candidate, tf32=True)


@pytest.mark.parametrize("convolutions", ["own", "every"])
@pytest.mark.parametrize(
    "mask", ["torch.sigmoid(self.c(x)) > 0.5", "(self.c(x) > 0).to(torch.int32)"]
)
def test_mask_of_a_convolution_is_computed_behind_it(generate, mask, convolutions):
    """A segmentation returns masks. Such results had no dtype in a Triton kernel."""
    text = f"""
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.ConvTranspose3d(3, 20, 3, stride=2)
    def forward(self, x):
        return {mask}
def get_inputs(): return [torch.randn(16, 3, 16, 32, 32)]
def get_init_inputs(): return []
"""
    made = generate(text, options=Options(convolutions=convolutions))
    assert made.kernels[0] == "conv_transpose3d_kernel"


def test_nan_has_a_name_in_triton(generate):
    """logsumexp of a row with NaN is NaN, a constant of the kernel. Python does not know `nan`."""
    made = generate(text_of("transposed 3-D of few channels, log-sum-exp"))
    module = made.files["model_new.py"]
    kernel = module[module.index("@triton.jit") : module.index("class ModelNew")]
    names = {node.id for node in ast.walk(ast.parse(kernel)) if isinstance(node, ast.Name)}
    assert 'float("nan")' in kernel
    assert not names & {"nan", "inf"}
