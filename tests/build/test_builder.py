"""Whole builds with real compilers: the loader finds the libraries, and diagnostics are short."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cuagent.attempt import Attempt
from cuagent.build import Diagnostic, build, environment, render, versions
from cuagent.build.resources import short_name
from cuagent.task.task import Device

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")

DOUBLED = 'extern "C" void doubled(float* x, long n) { for (long i = 0; i < n; ++i) x[i] *= 2; }\n'


def attempt(**sources: str) -> Attempt:
    """Return an attempt; `a_cpp="..."` becomes kernels/a.cpp."""
    files = {f"kernels/{name.replace('_', '.')}": text for name, text in sources.items()}
    return Attempt(tuple(sorted({"model_new.py": "class ModelNew: ...\n", **files}.items())))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def errors(cache: Path, device: Device = Device.CPU, **sources: str) -> list[Diagnostic]:
    result = build(attempt(**sources), device, cache=cache)
    assert not result.ok
    return [d for d in result.diagnostics if d.severity == "error"]


def test_second_build_comes_from_the_cache(cache: Path):
    sources = attempt(a_cpp=DOUBLED, b_cpp=DOUBLED.replace("doubled", "twice"))
    first, second = (build(sources, Device.CPU, cache=cache) for _ in range(2))
    assert first.ok
    assert [library.source for library in first.libraries] == ["kernels/a.cpp", "kernels/b.cpp"]
    assert [library.cached for library in first.libraries] == [False, False]
    assert [library.cached for library in second.libraries] == [True, True]
    assert [x.key for x in first.libraries] == [x.key for x in second.libraries]
    assert second.seconds < first.seconds


def test_loader_finds_built_libraries_without_compiling(
    cache: Path, tmp_path: Path, python: list[str]
):
    sources = attempt(a_cpp=DOUBLED)
    result = build(sources, Device.CPU, cache=cache)
    sources.write(tmp_path)
    program = (
        "import torch\nfrom cuagent.kernels import load\nx = torch.ones(3)\n"
        "k = load('kernels/a.cpp'); k.doubled(x, 3); print(x.tolist(), k.library)\n"
    )
    (tmp_path / "main.py").write_text(program)
    out = subprocess.run(
        [*python, str(tmp_path / "main.py")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment(result), "PATH": "", "XDG_CACHE_HOME": str(tmp_path)},
    ).stdout
    assert out.strip() == f"[2.0, 2.0, 2.0] {result.libraries[0].path}"


def test_compiler_runs_inside_given_confinement(tmp_path: Path):
    seen: list[tuple[Path, Path]] = []

    def confine(argv: list[str], sources: Path, scratch: Path) -> list[str]:
        seen.append((sources, scratch))
        return ["env", "-i", f"PATH={os.environ['PATH']}", *argv]

    result = build(attempt(a_cpp=DOUBLED), Device.CPU, cache=tmp_path, confine=confine)
    assert result.ok
    ((sources, scratch),) = seen
    assert not sources.exists()
    assert not scratch.exists()


def test_error_has_file_line_message_and_source_line(cache: Path):
    (error,) = errors(cache, a_cpp='extern "C" void f(float* x) {\n  x[0] = missing;\n}\n')
    assert (error.file, error.line) == ("kernels/a.cpp", 2)
    assert error.message == "'missing' was not declared in this scope"
    assert error.source_line == "x[0] = missing;"


def test_error_in_header_of_attempt_is_located_there(cache: Path):
    files = attempt(a_cpp='#include "h.h"\nextern "C" void f(float* x) { x[0] = one(); }\n').files
    files = (*files, ("kernels/h.h", "inline float one() {\n  return oen;\n}\n"))
    result = build(Attempt(tuple(sorted(files))), Device.CPU, cache=cache)
    assert [(d.file, d.line) for d in result.diagnostics] == [("kernels/h.h", 2)]


def test_template_error_is_reduced_to_line_of_attempt(cache: Path):
    text = (
        "#include <algorithm>\n#include <vector>\nstruct S {};\n"
        'extern "C" void f(int n) {\n  std::vector<S> v(n);\n  std::sort(v.begin(), v.end());\n}\n'
    )
    found = errors(cache, a_cpp=text)
    assert len(found) <= 2
    assert {(d.file, d.line) for d in found} == {("kernels/a.cpp", 6)}


def test_only_first_errors_are_reported(cache: Path):
    lines = "\n".join(f"  x[0] = missing{i};" for i in range(40))
    assert len(errors(cache, a_cpp=f'extern "C" void f(float* x) {{\n{lines}\n}}\n')) == 5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('#include "gone.h"\nextern "C" void f(int n) {}', "gone.h: No such file"),
        ('void g();\nextern "C" void f(int n) { g(); }', "linker: undefined reference to `g()'"),
        (
            '#include <torch/extension.h>\nextern "C" void f(int n) {}',
            "torch headers are not needed",
        ),
        ('extern "C" void f(float** x) {}', "parameter 1"),
        ("void f(float* x) {}", "no extern"),
        ('// cuagent: flags -fplugin=x.so\nextern "C" void f(int n) {}', "-fplugin=x.so"),
    ],
)
def test_faulty_source_gives_one_message(cache: Path, text: str, expected: str):
    (error,) = errors(cache, a_cpp=text)
    assert expected in error.message
    assert "\n" not in error.message


def test_ignored_pragma_is_a_warning(cache: Path):
    text = 'extern "C" void f(float* x) {\n  #pragma omp paralel for\n  x[0] = 1;\n}\n'
    result = build(attempt(a_cpp=text), Device.CPU, cache=cache)
    assert [(d.severity, d.line) for d in result.diagnostics] == [("warning", 2)]
    assert result.ok
    # A library from the cache gives the same warning.
    assert build(attempt(a_cpp=text), Device.CPU, cache=cache).diagnostics == result.diagnostics


def test_cpu_task_skips_cuda_sources_with_warning(cache: Path):
    result = build(attempt(a_cu="not even C++"), Device.CPU, cache=cache)
    assert result.ok
    assert [d.severity for d in result.diagnostics] == ["warning"]


def test_source_with_huge_object_file_gives_diagnostic(cache: Path):
    # Initialised data goes into the object file, which grows past the limit.
    text = 'extern "C" { char big[1 << 30] = {1}; void f(bool* x) { x[0] = big[x[1]]; } }\n'
    (error,) = errors(cache, a_cpp=text)
    assert "too large" in error.message.lower() or "limit" in error.message.lower()


def test_render_names_file_and_line(cache: Path):
    text = render(
        build(attempt(a_cpp='extern "C" void f() {\n  g();\n}\n'), Device.CPU, cache=cache)
    )
    assert "build failed" in text
    assert "kernels/a.cpp:2: error: 'g' was not declared in this scope\n    g();" in text


def test_versions_name_the_compiler():
    assert "g++" in versions()["g++"] or "GCC" in versions()["g++"]


def test_kernel_names_are_demangled_and_short():
    assert short_name("_Z4axpyIfEvPT_PKS0_f") == "axpy<float>"
    assert short_name("plain") == "plain"


CUDA = """
namespace {
template <class T> __global__ void k(T* x, int n) {
  T b[64];
  for (int i = 0; i < 64; ++i) b[i] = x[i * n];
  for (int i = 0; i < 64; ++i) x[i] = b[(int)b[i] & 63];
}
}
extern "C" void f(float* x, int n, cudaStream_t stream) { k<float><<<1, 1, 0, stream>>>(x, n); }
"""


@needs_nvcc
def test_cuda_build_reports_kernel_resources(cache: Path):
    result = build(attempt(a_cu=CUDA), Device.CUDA, cache=cache)
    assert result.ok, render(result)
    (kernel,) = result.libraries[0].resources
    assert kernel.name == "k<float>"
    assert kernel.registers > 8
    assert kernel.stack_bytes == 256
    again = build(attempt(a_cu=CUDA), Device.CUDA, cache=cache)
    assert again.libraries[0].cached
    assert again.libraries[0].resources == result.libraries[0].resources


@needs_nvcc
@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        (CUDA.replace("b[i] =", "b[i] = y +"), 5, 'identifier "y" is undefined'),
        ('#include "gone.cuh"\n' + CUDA, 1, "gone.cuh: No such file"),
        (CUDA.replace("T b[64]", "__shared__ T b[99999]"), 0, "uses too much shared data"),
        (
            'void g();\nextern "C" void f(cudaStream_t s) { g(); }',
            0,
            "undefined reference to `g()'",
        ),
    ],
)
def test_nvcc_ptxas_and_linker_errors_are_short(cache: Path, text: str, line: int, expected: str):
    (error,) = errors(cache, Device.CUDA, a_cu=text)
    assert error.line == line
    assert expected in error.message


@needs_nvcc
def test_source_with_only_kernels_becomes_cubin(cache: Path):
    text = (
        'extern "C" __global__ void k(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 1; }'
    )
    result = build(attempt(a_cu=text), Device.CUDA, cache=cache)
    assert result.ok, render(result)
    assert result.libraries[0].path.suffix == ".cubin"


@needs_nvcc
def test_nvcc_compiles_cubin_if_nvrtc_lacks_headers(cache: Path):
    text = '#include <type_traits>\nextern "C" __global__ void k(float* x) { x[0] = 1; }'
    result = build(attempt(a_cu=text), Device.CUDA, cache=cache)
    assert result.ok, render(result)
    assert result.libraries[0].resources[0].name == "k"


def test_a_missing_parenthesis_is_told_in_the_compilers_words(cache: Path):
    """It also hides the exported function from us, which says nothing about its cause."""
    found = errors(cache, a_cpp=DOUBLED.replace("long n)", "long n"))
    assert found[0].line == 1
    assert "extern" not in found[0].message


def test_a_source_without_an_exported_function_says_so(cache: Path):
    found = errors(cache, a_cpp="static int one() { return 1; }\nint two() { return one(); }\n")
    assert "defines no extern" in found[0].message
