"""Modules of several Triton kernels compile them in parallel, with the launches' arguments."""

from __future__ import annotations

import re

import pytest
from modules import LAYER_TASK  # type: ignore[import-not-found]

from cuagent.expert.options import Options
from cuagent.expert.warm_ups import warm_ups

NETWORK = LAYER_TASK.format(
    layer="nn.Sequential(nn.Linear(520, 1000), nn.ReLU(), nn.Linear(1000, 520), nn.Sigmoid())",
    body="self.c(x)",
    shape="1200, 520",
)
LAUNCH = """
high = torch.empty((64, 32), dtype=torch.float16, device=x.device)
product_parts[(4, 1)](
    high, x,
    64, 32, num_warps=8,
)
product[(12,)](
    out, x, high,
    128, 64, 32, num_warps=4, num_stages=3,
)
"""


def test_line_has_the_dtypes_and_numbers_of_the_launch():
    assert warm_ups(LAUNCH.splitlines(), {"out": "bfloat16", "x": "float32"}) == [
        "product_parts.warmup(torch.float16, torch.float32, 64, 32, num_warps=8, grid=(1,))",
        "product.warmup(torch.bfloat16, torch.float32, torch.float16, 128, 64, 32, num_warps=4, "
        "num_stages=3, grid=(1,))",
    ]


def test_launch_of_other_arguments_than_tensors_has_no_line():
    text = LAUNCH.replace("out, x, high", "out, x, TensorDescriptor.from_tensor(high, [128, 32])")
    (line,) = warm_ups(text.splitlines(), {"out": "bfloat16", "x": "float32"})
    assert line.startswith("product_parts.")


@pytest.mark.parametrize("graph", [False, True])
def test_all_kernels_are_compiled_before_the_first_launch(generate, graph):
    text = generate(NETWORK, options=Options(graph=graph)).files["model_new.py"]
    kernels = re.findall(r"@triton\.jit\ndef (\w+)\(", text)
    assert len(kernels) > 1
    assert re.findall(r"^    (\w+)\.warmup\(", text, re.MULTILINE) == kernels
    forward = text[text.rindex("def forward(") :]
    first = min(forward.index(f"{name}[(") for name in kernels)
    assert forward.index("if not self._fits(") < forward.index("compile_together(") < first


def test_compiled_module_leaves_its_kernels_to_torch_compile(generate):
    text = generate(NETWORK, options=Options(compile="default")).files["model_new.py"]
    assert "compile_together" not in text


def test_module_of_one_kernel_compiles_it_at_its_launch(generate):
    task = LAYER_TASK.format(layer="nn.Linear(512, 512)", body="self.c(x)", shape="2048, 512")
    text = generate(task).files["model_new.py"]
    assert text.count("@triton.jit") == 1
    assert "compile_together" not in text
