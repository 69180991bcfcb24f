"""Kernels write the parts of a concatenation directly into its memory."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.expert.convolutions import qualify
from cuagent.task import load_task

HOPPER = Target("cuda", (9, 0), 132)
TASK = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = ({layers})
        self.n = nn.ModuleList([nn.BatchNorm2d(8 * k) for k in (1, 2, 3)])
        self.d = nn.ModuleList([nn.Conv2d(8 * k, 8, 3, padding=1, bias=False) for k in (1, 2, 3)])
    def layer(self, k, x):
        return self.d[k](F.relu(self.n[k](x)))
    def forward(self, x):
        {forward}
def get_inputs(): return [torch.randn({shape})]
def get_init_inputs(): return []
"""
LAYERS = "nn.Conv2d(8, 12, 1), nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(8, 4, 5, padding=2)"
BRANCHES = "return torch.cat([F.relu(self.a(x)), self.b(x), F.gelu(self.c(x))], 1)"
POOLED = "y = F.max_pool2d(self.b(x), 3, 1, 1); return torch.cat([self.a(x), y], 1)"
DENSE = "f = [x]; f += [self.layer(0, x)]; f += [self.layer(1, torch.cat(f, 1))]"
DENSE += "; y = self.layer(2, torch.cat(f, 1)); return torch.cat([*f, y], 1) * 2"
GHOST = "a = F.relu(self.a(x)); return torch.cat([a, F.relu(self.b(a))], 1) * 2"
GHOST_LAYERS = "nn.Conv2d(8, 12, 1), nn.Conv2d(12, 12, 3, padding=1, groups=12), None"
NESTED = "x = torch.cat([x, self.layer(0, x)], 1); x = torch.cat([x, self.layer(1, x)], 1)"
NESTED += "; return torch.cat([x, self.layer(2, x)], 1)"


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    """Let small convolutions also become generated kernels."""
    monkeypatch.setattr(qualify, "LEAST_OPERATIONS", 0)
    monkeypatch.setattr(qualify, "LEAST_OCCUPIED", 0)


def made(path, forward: str, options: Options | None = None, **changes: str):
    given = {"layers": LAYERS, "shape": "2, 8, 6, 8"} | changes
    lines = f"\n{' ' * 8}".join(forward.split("; "))
    (path / "task.py").write_text(TASK.format(forward=lines, **given))
    subject = replace(open_subject(load_task(f"{path / 'task.py'}:Model")), target=HOPPER)
    return make_candidate(subject, options or Options())


def body(candidate) -> str:
    return str(candidate.files["model_new.py"]).partition("class ModelNew")[2]


@pytest.mark.parametrize("forward", [BRANCHES, POOLED])
def test_kernels_write_all_parts(tmp_path, forward):
    text = body(made(tmp_path, forward))
    assert "torch.cat" not in text
    assert ".copy_" not in text


def test_part_that_a_depthwise_convolution_reads_is_written_in_place(tmp_path):
    text = body(made(tmp_path, GHOST, layers=GHOST_LAYERS))
    assert "torch.cat" not in text
    assert ".copy_" not in text


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("shape", ["2, 8, 6, 8", "2, 8, 7, 4"])
def test_joined_depthwise_convolution_agrees_with_fp64(tmp_path, interpreted, shape):
    interpreted(made(tmp_path, GHOST, layers=GHOST_LAYERS, shape=shape))


@pytest.mark.parametrize("forward", [DENSE, NESTED])
def test_features_grow_in_one_tensor(tmp_path, forward):
    text = body(made(tmp_path, forward))
    assert "torch.cat" not in text
    assert text.count(".copy_") == 1  # the input
    assert text.count("empty_strided((2, 32, 6, 8)") == 1


def test_part_that_torch_reads_is_copied(tmp_path):
    forward = "y = self.a(x); z = torch.cat([y, self.b(x)], 1); return z, torch.sort(y)[0]"
    text = body(made(tmp_path, forward))
    assert "torch.cat" not in text
    assert text.count(".copy_") == 1


def test_result_is_not_part_of_another_one(tmp_path):
    forward = DENSE.replace("y =", "z = torch.cat(f[:2], 1); y =").replace("* 2", ", z")
    text = body(made(tmp_path, forward))
    (results,) = [line for line in text.splitlines() if line.startswith("        return (cat")]
    assert "narrow" not in results


def test_part_at_an_odd_address_is_copied(tmp_path):
    text = body(
        made(tmp_path, BRANCHES, layers=LAYERS.replace("8, 12", "8, 13"), shape="2, 8, 5, 5")
    )
    assert text.count(".copy_") == 2


def test_vectors_of_depthwise_convolutions_are_aligned_in_memory_of_odd_rows(tmp_path):
    layers = LAYERS.replace("8, 12, 1", "3, 3, 3, padding=1, groups=3").replace("8, ", "3, ")
    forward = "return torch.cat([F.relu(self.a(x)), F.max_pool2d(self.a(x), 3, 1, 1)[..., :3]], 3)"
    candidate = made(tmp_path, forward, layers=layers, shape="3, 3, 5, 4")
    lines = "".join(candidate.files.values()).splitlines()
    stores = [line for line in lines if line.strip().startswith("store_vector(")]
    assert stores
    assert not any("i2 * 7" in line for line in stores)


def test_concatenation_without_written_parts_becomes_a_choice(tmp_path):
    library = Options(convolutions="library")
    forward, layers = (
        "return F.relu(torch.cat([self.a(x), x], 1))",
        LAYERS.replace("1)", "1, bias=False)"),
    )
    text = body(made(tmp_path, forward, library, layers=layers))
    assert "torch.cat" not in text
    assert ".copy_" not in text


def test_compiled_candidate_has_no_joined_memory(tmp_path):
    text = str(made(tmp_path, DENSE, Options(compile="default")).files["model_new.py"])
    assert ".view(-1)[" not in text


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("shape", ["2, 8, 6, 8", "3, 8, 5, 4", "2, 8, 5, 5"])
@pytest.mark.parametrize("convolutions", ["own", "library"])
@pytest.mark.parametrize("forward", [BRANCHES, POOLED, DENSE, NESTED])
def test_joins_agree_with_fp64(tmp_path, interpreted, forward, convolutions, shape):
    interpreted(made(tmp_path, forward, Options(convolutions=convolutions), shape=shape))
