"""Candidates of many kernels have few source files."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from agreement import Imported, assert_agrees  # type: ignore[import-not-found]
from emulation import emulated  # type: ignore[import-not-found]
from importing import imported  # type: ignore[import-not-found]

from cuagent import kernels
from cuagent.expert.options import Options
from cuagent.expert.packing import ALONE, MOST_FILES, files_of
from cuagent.expert.search.repairs import repairs

TEXT = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return tuple(torch.sin(x[:, :k]).cumsum(1) * k for k in range(2, {end}))
def get_inputs(): return [torch.randn(6, 64)]
def get_init_inputs(): return []
"""
FEW, MANY = TEXT.format(end=6), TEXT.format(end=43)


def sources(candidate) -> list[str]:
    return [path for path in candidate.files if path.endswith((".cu", ".cpp"))]


def test_few_kernels_have_a_file_each(generate):
    made = generate(FEW)
    assert len(made.kernels) == ALONE
    assert sources(made) == [f"kernels/{name}.cu" for name in made.kernels]


def test_many_kernels_share_few_files(generate):
    made = generate(MANY)
    assert len(made.kernels) == 41
    assert len(sources(made)) == 6
    text, launchers = made.files["model_new.py"], []
    for path in sources(made):
        assert made.files[path].count('#include "pointwise_cuda.h"') == 1
        launchers += re.findall(r'extern "C" void (\w+)\(', made.files[path])
        for name in launchers[-2:]:
            assert f'{name} = load("{path}").{name}\n' in text
    assert launchers == list(made.kernels)


@pytest.mark.parametrize(
    ("count", "files"), [(4, 4), (5, 4), (40, 5), (113, 15), (300, MOST_FILES)]
)
def test_number_of_files_is_limited(count, files):
    text = 'extern "C" void {0}(float* out, cudaStream_t stream) {{\n}}\n'
    names = [f"kernel{k}" for k in range(count)]
    calls = [SimpleNamespace(name=n, path=f"kernels/{n}.cu", text=text.format(n)) for n in names]
    found = files_of(calls)
    assert list(found) == [call.path for call in calls]
    assert len(set(found.values())) == files


def test_kernel_with_a_function_of_its_own_has_its_own_file():
    text = 'extern "C" void {0}(float* out) {{\n}}\n'
    names = [f"kernel{k}" for k in range(20)]
    calls = [SimpleNamespace(name=n, path=f"kernels/{n}.cpp", text=text.format(n)) for n in names]
    calls[7].text = "static inline void help() {\n}\n" + calls[7].text
    found = files_of(calls)
    assert [path for path, file in found.items() if file == calls[7].path] == [calls[7].path]
    assert len(set(found.values())) == 4


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
    assert len(sources(made.candidate)) < len(made.candidate.kernels) / 4
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
    assert len(sources(made.candidate)) == 6
    assert_agrees(made, "cuda")
