"""Compile generated CUDA C++ for the CPU, where `emulated.h` emulates threads and blocks."""

from __future__ import annotations

import ctypes
import functools
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch

FLAGS = ["-O1", "-w", "-std=c++17", "-fPIC"]
LAUNCH = re.compile(r"(\w+)<<<(.*), 0, stream>>>\((.*)\);")


def emulated(path: str) -> SimpleNamespace:
    """Compile a `.cu` file, whose path is relative to the caller's file, for the CPU; return its
    functions."""
    source = Path(sys._getframe(1).f_globals["__file__"]).parent / path
    text = LAUNCH.sub(_launch, source.read_text()).replace('#include "cluster_cuda.h"\n', "")
    cluster = re.search(r"__cluster_dims__\((\d+)", text)
    target, library = source.with_suffix(".cpp"), source.with_suffix(".so")
    target.write_text(f'#include "{header()}"\n{text}')
    options = [*FLAGS, "-shared"]
    options += ["-I", str(Path(__file__).parent / "emulated_headers")]
    options += [f"-DCLUSTER_SIZE={cluster[1]}"] if cluster else []
    command = ["g++", *options, "-o", str(library), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    functions = ctypes.CDLL(str(library))

    def call(name: str, *tensors: torch.Tensor) -> None:
        functions[name](*(ctypes.c_void_p(t.data_ptr()) for t in tensors), ctypes.c_void_p(0))

    names = re.findall(r'^extern "C" void (\w+)\(', text, re.MULTILINE)
    return SimpleNamespace(**{name: functools.partial(call, name) for name in names})


@functools.cache
def header() -> Path:
    """Return the path of a copy of `emulated.h`, precompiled: most kernels are shorter than it."""
    global _folder
    _folder = tempfile.TemporaryDirectory()
    copy = Path(_folder.name) / "emulated.h"
    shutil.copy(Path(__file__).parent / "emulated.h", copy)
    command = ["g++", *FLAGS, "-x", "c++-header", str(copy), "-o", f"{copy}.gch"]
    subprocess.run(command, check=True, timeout=300)
    return copy


_folder: tempfile.TemporaryDirectory[str]
"""Folder of the precompiled header, which is removed when the process ends."""


def _launch(match: re.Match[str]) -> str:
    name, shape, arguments = match.groups()
    depth = 0
    for k, character in enumerate(shape):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            return f"launch({shape[:k]}, {shape[k + 1 :]}, [=] {{ {name}({arguments}); }});"
    raise AssertionError(f"no block size in {shape}")
