"""Candidates of many kernels have few source files."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from agreement import Imported, assert_agrees  # type: ignore[import-not-found]
from emulation import emulated  # type: ignore[import-not-found]
from importing import imported  # type: ignore[import-not-found]

from cuagent import kernels
from cuagent.expert.options import Options
from cuagent.expert.packing import MOST_FILES
from cuagent.expert.search.repairs import repairs

TEXT = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return tuple(torch.sin(x[:, :k]).cumsum(1) * k for k in range(2, {end}))
def get_inputs(): return [torch.randn(6, 64)]
def get_init_inputs(): return []
"""
FEW, MANY = TEXT.format(end=10), TEXT.format(end=43)


def sources(candidate) -> list[str]:
    return [path for path in candidate.files if path.endswith((".cu", ".cpp"))]


def test_few_kernels_have_a_file_each(generate):
    made = generate(FEW)
    assert sources(made) == [f"kernels/{name}.cu" for name in made.kernels]


def test_many_kernels_share_few_files(generate):
    made = generate(MANY)
    assert len(made.kernels) == 41
    assert len(sources(made)) == MOST_FILES
    text, launchers = made.files["model_new.py"], []
    for path in sources(made):
        assert made.files[path].count('#include "pointwise_cuda.h"') == 1
        launchers += re.findall(r'extern "C" void (\w+)\(', made.files[path])
        for name in launchers[-2:]:
            assert f'{name} = load("{path}").{name}\n' in text
    assert launchers == list(made.kernels)


def test_all_kernels_of_a_file_that_does_not_compile_are_left_to_torch(generate):
    made = generate(MANY)
    path = sources(made)[2]
    lost = [n for n in made.kernels if f"void {n}(" in made.files[path]]
    assert len(lost) > 1
    options, why = next(repairs(made, "build failed", [path]))
    assert options.keep == frozenset().union(
        *(o for n, o in zip(made.kernels, made.origins, strict=True) if n in lost)
    )
    assert all(name in why for name in lost)


def test_kernel_with_a_similar_name_is_kept(generate):
    made = generate(FEW)
    assert all(name.startswith(made.kernels[0]) for name in made.kernels)
    (options, _), *_ = repairs(made, "build failed", [f"kernels/{made.kernels[3]}.cu"])
    assert options.keep == made.origins[3]


@pytest.mark.slow
def test_shared_files_compile_on_a_cpu_and_agree(make):
    made = make(MANY, "Model", Options(chains=False))
    assert len(sources(made.candidate)) <= MOST_FILES < len(made.candidate.kernels)
    assert_agrees(made)


@pytest.mark.slow
def test_emulated_kernels_of_shared_files_agree(generate, make, tmp_path, monkeypatch):
    made, reference = generate(MANY), make(MANY, "Model")
    for name, text in made.files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(kernels, "load", emulated)
    module = imported(tmp_path / "model_new.py")
    assert_agrees(replace(reference, candidate=made, cls=module.ModelNew))


@pytest.mark.gpu
def test_shared_files_compile_for_a_gpu_and_agree(make):
    made: Imported = make(MANY, "Model", Options(), "cuda")
    assert len(sources(made.candidate)) == MOST_FILES
    assert_agrees(made, "cuda")
