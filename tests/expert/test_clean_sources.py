"""Generated sources compile without warnings."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace

import pytest
from modules import INPUTS, task_text  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.expert.streaming.text import without_unused
from cuagent.task import load_task

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def subjects(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    found = {}
    for cls in INPUTS:
        path = folder / f"{cls.__name__}.py"
        path.write_text(task_text(cls))
        found[cls.__name__] = open_subject(load_task(f"{path}:{cls.__name__}", device="cpu"))
    return found


def _write_all(subjects, device, folder):
    """Write one file that includes the kernels of all modules, each in a separate namespace."""
    lines = []
    for name, subject in subjects.items():
        candidate = make_candidate(replace(subject, target=Target(device)), Options())
        assert candidate is not None
        for path, text in candidate.files.items():
            target = folder / f"{name}_{path.removeprefix('kernels/')}"
            if path.endswith(".h"):
                (folder / path.removeprefix("kernels/")).write_text(text)
            elif path.startswith("kernels/"):
                target.write_text(text.replace('extern "C" ', ""))
                lines.append(f'namespace {target.stem} {{\n#include "{target.name}"\n}}\n')
    header = "pointwise_cuda.h" if device == "cuda" else "pointwise.h"
    source = folder / f"all.{'cu' if device == 'cuda' else 'cpp'}"
    source.write_text(f'#include "{header}"\n' + "".join(lines))
    return source


def test_gxx_compiles_without_warnings(subjects, tmp_path):
    source = _write_all(subjects, "cpu", tmp_path)
    options = ["-std=c++17", "-fopenmp", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
    _compile(["g++", *options, str(source)])


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_nvcc_compiles_without_warnings(subjects, tmp_path):
    source = _write_all(subjects, "cuda", tmp_path)
    options = ["-std=c++17", "-arch=sm_80", "-ptx", "-Werror", "all-warnings"]
    _compile(["nvcc", *options, "-o", "/dev/null", str(source)])


def _compile(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_unused_removes_constants_that_their_block_does_not_read():
    lines = [
        "{",
        "  const int row = 3;",
        "  const int index = row * 2;",
        "}",
        "{",
        "  const int row = 4;",
        "  use(row);",
        "}",
    ]
    assert without_unused(lines) == ["{", "}", *lines[4:]]
