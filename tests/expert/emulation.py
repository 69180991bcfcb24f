"""Compile generated CUDA C++ for the CPU, where `emulated.h` emulates threads and blocks."""

from __future__ import annotations

import ctypes
import functools
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch

from cuagent.expert.candidate import Candidate

PLAIN = ["-O1", "-w", "-std=c++17", "-fPIC"]
FLAGS = [*PLAIN]
FLAGS += ["-fsanitize=kernel-address,bounds,alignment"]
FLAGS += ["--param=asan-instrumentation-with-call-threshold=0"]
FLAGS += ["--param=asan-globals=1", "--param=asan-stack=0"]
"""Options of the compiler; the sanitizers call the functions of `emulated_bounds.h`."""
BOUNDS = "emulated_bounds.o"
HEADER = re.compile(r'^#include "\w+\.h"$', re.MULTILINE)
LAUNCH = re.compile(r"(\w+)<<<(.*), (\d+), stream>>>\((.*)\);")
CLUSTER = re.compile(r"__cluster_dims__\((\d+), 1, 1\).*?(\w+_device\w*)\(")
DYNAMIC = re.compile(r"extern __shared__ (.+) (\w+)_memory\[\];")


def cuda_text(candidate: Candidate) -> str:
    """Return the text of all CUDA kernels of a candidate."""
    return "".join(t for f, t in candidate.files.items() if f.endswith(".cu"))


def emulated(path: str, descending: bool = False) -> SimpleNamespace:
    """Compile a `.cu` file, whose path is relative to the caller's file, for the CPU; return its
    functions.

    They raise `InvalidAccess` if a thread accesses memory outside of the arguments and its block.
    `descending`: threads and blocks run in descending order.
    """
    source = Path(sys._getframe(1).f_globals["__file__"]).parent / path
    text = source.read_text().replace('#include "cluster_cuda.h"\n', "")
    sizes = {name: size for name, _, size, _ in LAUNCH.findall(text)}
    text = DYNAMIC.sub(
        lambda m: f"static {m[1]} {m[2]}_memory[{sizes[f'{m[2]}_device']} / sizeof({m[1]})];", text
    )
    clusters = {name: count for count, name in CLUSTER.findall(text.replace("\n", " "))}
    text = LAUNCH.sub(lambda match: _launch(match, clusters), text)
    # Shared arrays of templates must be variables of this library alone.
    text = HEADER.sub(r"namespace {\n\g<0>\n}", text)
    target, library = source.with_suffix(".cpp"), source.with_suffix(".so")
    target.write_text(f'#include "{header()}"\n{text}')
    options = [*FLAGS, "-shared", "-Wl,-Bsymbolic"]
    options += ["-I", str(Path(__file__).parent / "emulated_headers")]
    command = ["g++", *options, "-o", str(library), str(target), str(header().parent / BOUNDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    made = ctypes.CDLL(str(library))
    made.first_fault.restype = ctypes.c_char_p

    def call(name: str, *tensors: torch.Tensor) -> None:
        writable = _writable(text, name)
        for k, tensor in enumerate(tensors):
            begin, end = extent(tensor)
            made.set_tensor(k, ctypes.c_uint64(begin), ctypes.c_uint64(end), writable[k])
        made.set_order(descending)
        made[name](*(ctypes.c_void_p(t.data_ptr()) for t in tensors), ctypes.c_void_p(0))
        if fault := made.first_fault().decode():
            raise InvalidAccess(f"{name}: {fault}")

    names = re.findall(r'^extern "C" void (\w+)\(', text, re.MULTILINE)
    return SimpleNamespace(**{name: Emulated(call, name) for name in names})


class Emulated:
    """An emulated launcher. It takes tensors in the layouts that the real one takes."""

    def __init__(self, call: Callable[..., None], name: str, images: tuple[int, ...] = ()) -> None:
        self._call, self._name, self._images = call, name, images

    def last(self, *positions: int) -> Emulated:
        return Emulated(self._call, self._name, positions)

    def __call__(self, *tensors: torch.Tensor) -> None:
        for k, tensor in enumerate(tensors):
            is_image = k in self._images
            layout = torch.channels_last if is_image else torch.contiguous_format
            assert tensor.is_contiguous(memory_format=layout), (self._name, k, tensor.stride())
        self._call(self._name, *tensors)


class InvalidAccess(Exception):
    """A kernel reads or writes memory that is not its own, or not aligned."""


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the addresses of a tensor's first byte and of the byte behind its last element."""
    begin = tensor.data_ptr()
    if tensor.numel() == 0:
        return begin, begin
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (last + 1) * tensor.element_size()


def _writable(text: str, name: str) -> list[bool]:
    """Return, for each pointer of an exported function, if the function may write to it."""
    found = re.search(rf'extern "C"[^;{{]*\b{name}\(([^)]*)\)', text)
    assert found is not None, name
    return ["const" not in word for word in found[1].split(",")]


@functools.cache
def header() -> Path:
    """Return the path of a copy of `emulated.h`, precompiled: most kernels are shorter than it.
    The compiled checks of bounds lie beside it."""
    global _folder
    _folder = tempfile.TemporaryDirectory()
    copy = Path(_folder.name) / "emulated.h"
    for name in ("emulated.h", "emulated_bounds.h"):
        shutil.copy(Path(__file__).parent / name, copy.parent / name)
    command = ["g++", *FLAGS, "-x", "c++-header", str(copy), "-o", f"{copy}.gch"]
    subprocess.run(command, check=True, timeout=300)
    checks = ["-c", str(Path(__file__).parent / "emulated_bounds.cpp"), "-o", BOUNDS]
    subprocess.run(["g++", *PLAIN, "-O2", *checks], check=True, timeout=300, cwd=copy.parent)
    return copy


_folder: tempfile.TemporaryDirectory[str]
"""Folder of the precompiled header, which is removed when the process ends."""


def _launch(match: re.Match[str], clusters: dict[str, str]) -> str:
    name, shape, _, arguments = match.groups()
    depth, cluster = 0, clusters.get(name, "1")
    for k, character in enumerate(shape):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            body = f"[=] {{ {name}({arguments}); }}"
            return f"launch({shape[:k]}, {shape[k + 1 :]}, {cluster}, {body});"
    raise AssertionError(f"no block size in {shape}")
