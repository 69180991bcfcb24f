"""Small linear layers that follow each other, in one kernel on a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import test_emulated_cuda as emulated  # type: ignore[import-not-found]
from modules import LAYER_TASK  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.expert.mlps import match
from cuagent.task import load_task

SCALED = (
    "nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(24, {h}, 1), nn.{act}(), "
    "nn.Conv2d({h}, 24, 1, bias=False), nn.{gate}())"
)
FORMS = {
    "squeeze and excitation": (
        SCALED.format(h=8, act="SiLU", gate="Sigmoid"), "x * self.c(x)", "3, 24, 9, 7"
    ),
    "odd hidden features": (
        SCALED.format(h=5, act="ReLU", gate="Hardsigmoid"), "x * self.c(x) + x", "3, 24, 3, 7"
    ),
    "an activation written as a product": (
        "nn.ModuleList([nn.Linear(70, 33), nn.Linear(33, 300, bias=False), nn.Linear(300, 10)])",
        "self.c[2](F.relu(h := self.c[1](F.hardswish(self.c[0](x)))) * h.tanh()) * 2", "5, 70"
    ),
    "large weights of more rows": (
        "nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 24))", "self.c(x) + 1",
        "8, 128",
    ),
    "rows that are computed": (
        "nn.Sequential(nn.Linear(64, 16), nn.GELU(), nn.Linear(16, 64))", "self.c(x.relu()) + x",
        "5, 64",
    ),
}  # fmt: skip
OTHERS = {
    "a hidden value is returned": (
        "nn.ModuleList([nn.Linear(24, 8), nn.Linear(8, 24)])",
        "(h := self.c[0](x).relu(), self.c[1](h))", "3, 24",
    ),
    "a hidden value is read twice": (
        "nn.ModuleList([nn.Linear(24, 8), nn.Linear(8, 24), nn.Linear(8, 24)])",
        "self.c[1](h := self.c[0](x).relu()) * self.c[2](h)", "3, 24",
    ),
    "a hidden value depends on another input": (
        "nn.ModuleList([nn.Linear(24, 24), nn.Linear(24, 24)])",
        "self.c[1](self.c[0](x) * x).relu() * 2", "3, 24",
    ),
    "many rows": (
        "nn.Sequential(nn.Linear(24, 8), nn.GELU(), nn.Linear(8, 24))", "self.c(x) + x", "600, 24"
    ),
    "few rows of large weights": (
        "nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 24))", "self.c(x) + 1",
        "7, 128",
    ),
    "large weights": (
        "nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 24))", "self.c(x) + 1",
        "9, 512",
    ),
}  # fmt: skip


def text_of(name: str, cast: str = "") -> str:
    layer, body, shape = (FORMS | OTHERS)[name]
    text: str = LAYER_TASK.format(layer=layer + cast, body=body, shape=shape)
    return text.replace(f"randn({shape})", f"randn({shape}){cast}") if cast else text


def made(path, name: str, cast: str = "", options=None):
    (path / "task.py").write_text(text_of(name, cast))
    subject = open_subject(load_task(f"{path / 'task.py'}:Model", device="cpu"))
    candidate = make_candidate(replace(subject, target=Target("cuda")), options or Options())
    return "" if candidate is None else "".join(candidate.files.values())


@pytest.mark.parametrize("name", FORMS)
def test_one_kernel_computes_all_layers(tmp_path, name):
    text = made(tmp_path, name)
    assert "F.linear(" not in text
    assert text.count("features.") == 1


@pytest.mark.parametrize("name", OTHERS)
def test_other_layers_stay(tmp_path, name):
    assert "features." not in made(tmp_path, name)


def test_a_layer_that_is_kept_is_in_no_kernel(tmp_path):
    options = Options(keep=frozenset({"conv2d"}))
    text = made(tmp_path, "squeeze and excitation", options=options)
    assert "features." not in text


def test_weights_of_all_blocks_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(match, "MOST_READ", 3 * 2 * 24 * 8 * 4 - 1)
    assert "features." not in made(tmp_path, "squeeze and excitation")


@pytest.mark.slow
@pytest.mark.parametrize("cast", ["", ".bfloat16()", ".half()"])
@pytest.mark.parametrize("name", FORMS)
def test_emulated_layers_agree_with_reference(tmp_path, monkeypatch, name, cast):
    candidate = emulated.check(tmp_path, monkeypatch, text_of(name, cast), Options())
    assert "features." in "".join(candidate.files.values())
