"""Compilation, caching and calls of real C++ kernels."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from cuagent.kernels import CompileFailed, Kernels, load
from cuagent.kernels.calls import CheckedArguments
from cuagent.kernels.compiler import read_recipe
from cuagent.kernels.prototypes import parse

SCALE = """
#include <cstdint>
extern "C" void scale(float* out, const float* in, float factor, int64_t n) {
  #pragma omp parallel for
  for (int64_t i = 0; i < n; ++i) out[i] = in[i] * factor;
}
extern "C" int fail(int code, bool really) { return really ? code : 0; }
extern "C" void fill(double* out, uint8_t value, int n) {
  for (int i = 0; i < n; ++i) out[i] = value;
}
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module")
def kernels(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    source = tmp_path_factory.mktemp("source") / "scale.cpp"
    source.write_text(SCALE)
    return load(source)


def test_launcher_writes_into_tensor(kernels: Kernels):
    x, y = torch.randn(1000, requires_grad=True), torch.empty(1000)
    kernels.scale(y, x, 2, 1000)
    assert torch.equal(y, 2 * x)


def test_launcher_accepts_none_and_empty_tensors(kernels: Kernels):
    kernels.scale(None, None, 1.0, 0)
    kernels.scale(torch.empty(0), torch.empty(0), 1.0, 0)


X, Y = torch.randn(8, 8), torch.empty(8, 8)


def test_launcher_takes_images_in_channels_last_memory_at_named_positions(kernels: Kernels):
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    y, plain = torch.empty_like(x), torch.empty(2, 3, 4, 5)
    kernels.scale.last(0, 1)(y, x, 2, x.numel())
    assert torch.equal(y, 2 * x)
    kernels.scale.last(1)(plain, x, 2.0, x.numel())
    assert torch.equal(plain.view(2, 4, 5, 3), 2 * x.permute(0, 2, 3, 1))
    for launcher, tensors in (
        (kernels.scale.last(0, 1), (plain, x)),
        (kernels.scale.last(1), (y, x)),
        (kernels.scale, (plain, x)),
        (kernels.scale.last(1), (plain, x.permute(0, 2, 3, 1))),
    ):
        with pytest.raises(ValueError, match=r"has strides .*call \.contiguous"):
            launcher(*tensors, 2.0, x.numel())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((Y, X, 2.0), TypeError, "scale takes 4 arguments .* got 3"),
        ((Y, X.double(), 2.0, 64), TypeError, "argument 2 .*in.* torch.float32, got torch.float64"),
        ((Y, X.numpy(), 2.0, 64), TypeError, "argument 2 .*in.* takes a tensor"),
        ((Y.t(), X, 2.0, 64), ValueError, r"argument 1 .*out.*call \.contiguous\(\)"),
        ((Y.to("meta"), X, 2.0, 64), ValueError, "argument 1 .*out.*meta"),
        ((Y, X, X[0, 0], 64), TypeError, "argument 3 .*factor.* takes a number.*item"),
        ((Y, X, "2", 64), TypeError, "argument 3 .*factor.* takes a number"),
        ((Y, X, 2.0, 64.0), TypeError, "argument 4 .*n.* takes an integer"),
        ((Y, X, 2.0, True), TypeError, "argument 4 .*n.* takes an integer"),
        ((Y, X, 2.0, 1 << 63), OverflowError, "argument 4 .*n.* does not fit"),
    ],
)
def test_launcher_names_wrong_argument(kernels: Kernels, arguments, error, message: str):
    with pytest.raises(error, match=message):
        kernels.scale(*arguments)


def test_launcher_refuses_scalars_outside_type_range(kernels: Kernels):
    out = torch.empty(2, dtype=torch.float64)
    kernels.fill(out, 255, 2)
    assert out.tolist() == [255, 255]
    with pytest.raises(OverflowError, match=r"uint8_t value.* 256 does not fit into \[0, 255\]"):
        kernels.fill(out, 256, 2)
    with pytest.raises(OverflowError, match="int n"):
        kernels.fill(out, 1, 1 << 31)


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        ("uint8_t", 0, 255),
        ("int32_t", -(2**31), 2**31 - 1),
        ("uint32_t", 0, 2**32 - 1),
        ("int64_t", -(2**63), 2**63 - 1),
        ("uint64_t", 0, 2**64 - 1),
    ],
)
def test_integers_reach_exactly_the_ends_of_their_type(kind: str, low: int, high: int):
    text = f'extern "C" void f({kind} value) {{}}'
    checked = CheckedArguments(parse(text, "f.cpp")[0], on_cuda=False)
    for value in (low, 0, high):
        assert checked((value,)) == ([value], -1)
    for value in (low - 1, high + 1):
        with pytest.raises(OverflowError, match=re.escape(f"[{low}, {high}]")):
            checked((value,))


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU; enough for the checks, which read no data."""

    number = 0

    def get_device(self) -> int:
        return self.number

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.number)


def on_gpu(number: int) -> torch.Tensor:
    found = torch.zeros(2).as_subclass(OnGpu)
    found.number = number
    return found


def test_tensors_of_a_cuda_kernel_are_on_one_gpu():
    checked = CheckedArguments(parse('extern "C" int f(float* a, float* b) {}', "f.cu")[0], True)
    assert checked((None, None))[1] == -1
    for number in (0, 1):
        assert checked((on_gpu(number), None))[1] == number
        assert checked((on_gpu(number), on_gpu(number)))[1] == number
    for number in (0, 1):
        first, second = on_gpu(number), on_gpu(1 - number)
        with pytest.raises(ValueError, match=f"2 .*earlier tensor is on cuda:{number}"):
            checked((first, second))
    with pytest.raises(ValueError, match=r"argument 1 .*on cpu; a \.cu kernel takes CUDA tensors"):
        checked((torch.zeros(2), on_gpu(0)))


def test_tensors_of_a_cpp_kernel_are_on_the_cpu():
    checked = CheckedArguments(parse('extern "C" void f(float* a) {}', "f.cpp")[0], False)
    for number in (0, 1):
        with pytest.raises(ValueError, match=rf"on cuda:{number}; a \.cpp kernel takes CPU"):
            checked((on_gpu(number),))


def test_launcher_shows_its_prototype(kernels: Kernels):
    assert repr(kernels.fill) == "<launcher fill(double* out, uint8_t value, int n)>"


def test_nonzero_status_raises(kernels: Kernels):
    kernels.fail(7, False)
    with pytest.raises(RuntimeError, match="fail returned 7"):
        kernels.fail(7, True)


def test_unknown_function_error_lists_exported_functions(kernels: Kernels):
    with pytest.raises(AttributeError, match="scale, fail, fill"):
        kernels.scael  # noqa: B018


def test_recipe_key_depends_on_content_headers_and_flags_but_not_on_folder(tmp_path: Path):
    def key(folder: str, header: str, text: str = SCALE) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "h.h").write_text(header)
        (tmp_path / folder / "k.cpp").write_text('#include "h.h"\n' + text)
        return read_recipe(tmp_path / folder / "k.cpp").key

    first = key("a", "int a;")
    assert key("b", "int a;") == first
    assert key("b", "int b;") != first
    assert key("b", "int a;", SCALE + " ") != first
    assert key("b", "int a;", SCALE + "\n// cuagent: flags -ffast-math\n") != first


def test_load_refuses_flag_outside_allowed_list(tmp_path: Path):
    (tmp_path / "k.cpp").write_text("// cuagent: flags -fplugin=x.so\n" + SCALE)
    with pytest.raises(CompileFailed, match=r"-fplugin=x\.so"):
        load(tmp_path / "k.cpp")


def test_compile_error_message_is_one_line_with_full_output(cache: Path, tmp_path: Path):
    (tmp_path / "k.cpp").write_text('extern "C" void f(float* x) { x[0] = missing; }')
    with pytest.raises(CompileFailed, match="'missing' was not declared") as caught:
        load(tmp_path / "k.cpp")
    assert "\n" not in str(caught.value)
    assert "k.cpp:1" in caught.value.output


def test_undefined_symbol_fails_at_compile_time(cache: Path, tmp_path: Path):
    (tmp_path / "k.cpp").write_text('void g();\nextern "C" void f() { g(); }')
    with pytest.raises(CompileFailed, match="undefined reference"):
        load(tmp_path / "k.cpp")


def run_python(
    folder: Path, text: str, python: Sequence[str] = (sys.executable,), **environment: str
) -> str:
    (folder / "main.py").write_text(textwrap.dedent(text))
    done = subprocess.run(
        [*python, str(folder / "main.py")],
        capture_output=True,
        text=True,
        cwd="/",
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_load_path_is_relative_to_calling_file(cache: Path, tmp_path: Path):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "k.cpp").write_text(SCALE)
    out = run_python(tmp_path, 'from cuagent.kernels import load\nprint(load("kernels/k.cpp"))')
    assert "k.cpp: scale, fail, fill" in out


@pytest.mark.slow
def test_load_without_compiler_finds_library_in_build_folder(kernels: Kernels, tmp_path: Path):
    (tmp_path / "scale.cpp").write_text(SCALE)
    out = run_python(
        tmp_path,
        'from cuagent.kernels import load\nprint(load("scale.cpp").library)',
        CUAGENT_BUILD=str(kernels.library.parent),
        XDG_CACHE_HOME=str(tmp_path / "empty"),
        PATH="/nonexistent",
    )
    assert out.strip() == str(kernels.library)


def test_cache_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "k.cpp").write_text(SCALE)
    (tmp_path / "home").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    with pytest.raises(CompileFailed, match=r"cannot be made .*; set XDG_CACHE_HOME to a folder"):
        load(tmp_path / "k.cpp")


def test_concurrent_loads_of_same_source_succeed(tmp_path: Path, python: list[str]):
    (tmp_path / "k.cpp").write_text(SCALE)
    text = "import torch\nfrom cuagent.kernels import load\nload('k.cpp').fail(0, True)\n"
    (tmp_path / "main.py").write_text(text)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [*python, str(tmp_path / "main.py")]
    running = [subprocess.Popen(command, env=environment) for _ in range(2)]
    assert [process.wait() for process in running] == [0, 0]
    written = tmp_path.glob("cache/cuagent/kernels/loaded/*/*")
    assert sorted(path.suffix for path in written) == [".deps", ".log", ".so"]


def test_kernels_share_openmp_runtime_with_torch(cache: Path, tmp_path: Path, python: list[str]):
    (tmp_path / "k.cpp").write_text(
        '#include <omp.h>\nextern "C" void count(int* n) {\n#pragma omp parallel\n'
        "#pragma omp single\n*n = omp_get_num_threads();\n}\n"
    )
    out = run_python(
        tmp_path,
        """
        import torch
        from cuagent.kernels import load
        torch.set_num_threads(2)
        count, n = load("k.cpp").count, torch.zeros(1, dtype=torch.int32)
        count(n)
        first = n.item()
        torch.set_num_threads(1)
        count(n)
        runtimes = {line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line}
        print(first, n.item(), len(runtimes))
        """,
        python,
    )
    assert out.split() == ["2", "1", "1"]


def test_fast_math_flag_keeps_denormals_in_rest_of_process(
    cache: Path, tmp_path: Path, python: list[str]
):
    (tmp_path / "k.cpp").write_text("// cuagent: flags -ffast-math\n" + SCALE)
    out = run_python(
        tmp_path,
        """
        import torch
        from cuagent.kernels import load
        load("k.cpp").fail(0, True)
        print((torch.tensor([1e-30]) * 1e-10).item() > 0, 1e-300 * 1e-10 > 0)
        """,
        python,
    )
    assert out.split() == ["True", "True"]


def test_loader_import_loads_neither_torch_nor_rest_of_cuagent():
    out = subprocess.run(
        [sys.executable, "-c", "import sys, cuagent.kernels; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "torch" not in out.split()
    other_packages = [name for name in out.split() if re.match(r"cuagent\.(?!kernels)", name)]
    assert other_packages == []
