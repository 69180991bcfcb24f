"""Generated kernels of convolutions in networks in channels-last layout, in half precision."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.util import find_spec

import pytest

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.expert.convolutions import networks
from cuagent.expert.graph.graph import Graph, Kind, Node
from cuagent.task import load_task

HOPPER = Target("cuda", (9, 0), 132, tf32_convolutions=True)
TASK = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.n = nn.Conv2d(3, 16, 5, stride=2, padding=2), nn.BatchNorm2d(16)
        self.a, self.b = nn.Conv2d(16, 24, 3, padding=1), nn.Conv2d(24, 16, 1, bias=False)
        self.c = nn.Conv2d(16, 16, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2))
        self.down, self.d = nn.Conv2d(16, 16, 1, stride=2), nn.Conv2d(16, 16, 3, 2, 1)
        self.e = nn.ModuleList([nn.Conv2d(16 * k + 16, 16, 3, padding=1) for k in range(3)])
        self.m = nn.ModuleList([nn.BatchNorm2d(16 * k + 16) for k in range(3)])
        self.w = nn.Conv2d(24, 24, 5, padding=2, groups=24)
        self.v = nn.Conv2d(24, 24, (3, 2), stride=2, padding=(1, 0), groups=24, bias=False)
        self.r, self.s = nn.Conv2d(24, 8, 1), nn.Conv2d(8, 24, 1)
        self.scale = nn.Parameter(torch.rand(16 * 4 * 7))
        for p in self.parameters():
            p.data += 0.1 * torch.randn(p.shape)
        self.to(torch.{dtype}).eval()
    def forward(self, x{more}):
        x = F.max_pool2d(F.relu(self.n(self.stem(x))), 2)
        {body}
def get_inputs(): return [torch.randn(3, 3, 34, 54).to(torch.{dtype}){inputs}]
def get_init_inputs(): return []
"""
RESIDUAL = """x = F.relu(self.b(F.silu(self.a(x))) + x)
        x = F.relu(self.d(x) + self.down(x))
        return F.gelu(self.b(self.a(x)) * 0.5 + x)"""
DENSE = """for e, m in zip(self.e, self.m):
            x = torch.cat([x, e(F.relu(m(x)))[:, :16]], 1)
        return x.mean((2, 3)), x"""
MIXED = """y = self.c(x).relu()
        return self.b(self.a(y)).amax((2, 3)), self.b(self.a(F.avg_pool2d(x, 3, 1, 1)))"""
INVERTED = """y = F.silu(self.w(self.a(self.b(self.a(x)))))
        y = F.hardswish(self.v(y) * torch.sigmoid(self.s(F.relu(self.r(y.mean((2, 3), True))))))
        x = F.max_pool2d(x, 2)
        return self.b(y) + x"""
BODIES = {"residual": RESIDUAL, "dense": DENSE, "mixed": MIXED, "inverted": INVERTED}


@pytest.fixture
def cheap(monkeypatch):
    """Let generated kernels compute all convolutions that they can compute."""
    for module in (networks,):
        monkeypatch.setattr(module, "FEW_CHANNELS", 16)
        monkeypatch.setattr(module, "LEAST_OPERATIONS", 0)
        monkeypatch.setattr(module, "STEM", 0)
    monkeypatch.setattr(networks, "own_time", lambda *_: 0.0)


def made(path, body: str, dtype: str = "float16", target=HOPPER, more=("", ""), options=None):
    text = TASK.format(body=body, dtype=dtype, more=more[0], inputs=more[1])
    (path / "task.py").write_text(text)
    subject = replace(open_subject(load_task(f"{path / 'task.py'}:Model")), target=target)
    return make_candidate(subject, options or Options())


def library_convolutions(candidate) -> int:
    return str(candidate.files["model_new.py"]).count(" = F.conv2d(")


@pytest.mark.parametrize("name", list(BODIES))
def test_only_the_stem_stays_with_the_library(tmp_path, cheap, name):
    candidate = made(tmp_path, BODIES[name])
    assert library_convolutions(candidate) == 1
    forward = candidate.files["model_new.py"].rpartition("def forward")[2]
    assert "copy_kernel" not in forward


@pytest.mark.parametrize(
    "change",
    [{"dtype": "float32"}, {"target": replace(HOPPER, capability=(8, 0))}],
)
def test_other_networks_leave_their_convolutions_to_the_library(tmp_path, cheap, change):
    assert library_convolutions(made(tmp_path, RESIDUAL, **change)) == 7


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", list(BODIES))
def test_network_agrees_with_fp64(tmp_path, interpreted, cheap, dtype, name):
    interpreted(made(tmp_path, BODIES[name], dtype), bf16=dtype == "bfloat16")


FLAT = """x = F.relu(self.d(x) + self.down(x))
        x = F.relu(self.b(self.a(x)))
        y = self.b(self.a(x))
        return y.flatten(1) * self.scale + 1, y.flatten(2)"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_flattened_epilogue_agrees_with_fp64(tmp_path, interpreted, cheap):
    interpreted(made(tmp_path, FLAT))


def test_first_concatenation_of_a_dense_block_is_no_copy(tmp_path, cheap):
    body = "x = torch.cat([x], 1) * 2\n        return self.b(F.relu(self.a(torch.cat([x], 1))))"
    forward = made(tmp_path, body).files["model_new.py"].rpartition("def forward")[2]
    assert "cat" not in forward.partition("def _")[0].replace("cat_", "").replace("cat=", "")


def test_library_call_of_a_permuted_value_is_stored_in_order(tmp_path, cheap):
    body = "x = self.b(self.a(self.c(x))).relu()\n        y = torch.special.i1(x.float())\n"
    body += "        return y * self.n.bias[0] + x"
    forward = made(tmp_path, body).files["model_new.py"].rpartition("def forward")[2]
    (line,) = (text for text in forward.splitlines() if "special_i1 = " in text)
    assert ").contiguous()" in line


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_short_first_convolution_reads_the_image_in_place(
    tmp_path, interpreted, cheap, monkeypatch
):
    monkeypatch.setattr(networks, "STEM", 75)
    candidate = made(tmp_path, RESIDUAL)
    assert library_convolutions(candidate) == 0
    interpreted(candidate)


SHUFFLED = """x = F.relu(self.a(x))
        y, z = F.relu(self.d[1](x)), x
        for e, w, d in zip(self.e, self.w, self.d):
            x = torch.cat([y, F.relu(d(w(F.relu(e(z)))))], 1)
            n, c, h, v = x.shape
            x = x.view(n, 2, c // 2, h, v).transpose(1, 2).reshape(n, c, h, v)
            y, z = x.chunk(2, 1)
        return x"""
UNITS = """
        self.a = nn.Conv2d(16, 18, 3, padding=1)
        self.e, self.d = (nn.ModuleList([nn.Conv2d(18, 18, 1) for _ in "ab"]) for _ in "ed")
        self.w = nn.ModuleList([nn.Conv2d(18, 18, 3, padding=1, groups=18) for _ in "ab"])
        self.scale ="""


def shuffled(path, monkeypatch, **change):
    monkeypatch.setitem(globals(), "TASK", TASK.replace("\n        self.scale =", UNITS))
    return made(path, SHUFFLED, **change)


def test_channels_that_are_no_multiple_of_a_vector_get_own_kernels(tmp_path, cheap, monkeypatch):
    candidate = shuffled(tmp_path, monkeypatch)
    forward = candidate.files["model_new.py"].rpartition("def forward")[2].partition("def _")[0]
    assert library_convolutions(candidate) == 1
    assert not re.search(r"aten|torch\.cat", forward)
    sources = "".join(text for path, text in candidate.files.items() if path.endswith(".cu"))
    assert "VECTOR = 2, ROWS" in sources, "depthwise kernels load stored vectors"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_shuffled_network_agrees_with_fp64(tmp_path, interpreted, cheap, monkeypatch):
    interpreted(shuffled(tmp_path, monkeypatch))


def test_odd_channels_stay_with_the_library(tmp_path, cheap, monkeypatch):
    monkeypatch.setitem(globals(), "TASK", TASK.replace("24", "25"))
    assert library_convolutions(made(tmp_path, RESIDUAL)) > 3


def test_padding_adds_to_the_time_of_the_library():
    def nodes(channels: int) -> tuple[Graph, Node]:
        x = Node("x", Kind.INPUT, "", (), (64, channels, 14, 14), "float16")
        weight = Node("w", Kind.PARAMETER, "", (), (channels, channels, 1, 1), "float16")
        node = Node("y", Kind.LIBRARY, "F.conv2d({0}, {1})", ("x", "w"), x.shape, "float16")
        return Graph((x, weight, node), ("y",)), node

    times = [networks.library_time(*found, found[0].users()) for found in map(nodes, (112, 116))]
    assert times[1] > 2 * times[0]
    own = [networks.own_time(*found, HOPPER) for found in map(nodes, (112, 116))]
    assert own[0] < own[1] < times[1]
