"""Compile generated CUDA C++ for the CPU, where `emulated.h` emulates threads and blocks."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

LAUNCH = re.compile(r"(\w+)<<<(.*), 0, stream>>>\((.*)\);")


def emulated(path: str) -> SimpleNamespace:
    """Compile a `.cu` file, whose path is relative to the caller's file, for the CPU; return its
    functions."""
    source = Path(sys._getframe(1).f_globals["__file__"]).parent / path
    text = LAUNCH.sub(_launch, source.read_text()).replace('#include "cluster_cuda.h"\n', "")
    cluster = re.search(r"__cluster_dims__\((\d+)", text)
    target, library = source.with_suffix(".cpp"), source.with_suffix(".so")
    target.write_text(f'#include "{Path(__file__).parent / "emulated.h"}"\n{text}')
    options = ["-O1", "-w", "-std=c++17", "-fPIC", "-shared"]
    options += [f"-DCLUSTER_SIZE={cluster[1]}"] if cluster else []
    command = ["g++", *options, "-o", str(library), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    function = ctypes.CDLL(str(library))[source.stem]

    def call(*tensors: torch.Tensor) -> None:
        function(*(ctypes.c_void_p(t.data_ptr()) for t in tensors), ctypes.c_void_p(0))

    return SimpleNamespace(**{source.stem: call})


def _launch(match: re.Match[str]) -> str:
    name, shape, arguments = match.groups()
    depth = 0
    for k, character in enumerate(shape):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            return f"launch({shape[:k]}, {shape[k + 1 :]}, [=] {{ {name}({arguments}); }});"
    raise AssertionError(f"no block size in {shape}")
