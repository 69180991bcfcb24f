"""Exports of an attempt that acts on import, at load time and at its first call."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_export import DOMAIN, TASK, Measured

from cuagent.attempt import Attempt, freeze
from cuagent.package import export

MODEL = """
import os
open(os.environ["MARKS"] + "/imported", "w").close()
os.environ["LD_PRELOAD"] = "x.so"
import torch
from cuagent.kernels import load

kernels = load("kernels/affine.cpp")

class ModelNew(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((1,), float(factor)))
    def forward(self, x):
        y = torch.empty_like(x)
        kernels.affine(y, x, self.weight, x.numel())
        return y
"""
KERNEL = """
#include <cstdio>
#include <cstdlib>
#include <string>
namespace {
struct AtLoad {
  AtLoad() {
    const std::string path = std::string(std::getenv("MARKS")) + "/loaded";
    if (std::FILE* file = std::fopen(path.c_str(), "w")) std::fclose(file);
  }
} at_load;
}
extern "C" void affine(float* y, const float* x, const float* w, long n) {
  for (long i = 0; i < n; ++i) y[i] = x[i] * w[0] + 1;
}
"""
OTHERS = ("setup.py", "setup.cfg", "evil.pth", "sitecustomize.py", "conftest.py", "MANIFEST.in")
USE = """
import torch, out
with torch.no_grad():
    m = out.ModelNew(3).eval()
    x = torch.ones(4, 8)
    print(m.why_original(x) or m(x)[0, 0].item())
"""


@pytest.fixture
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "marks"
    folder.mkdir()
    monkeypatch.setenv("MARKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def out(tmp_path: Path, marks: Path) -> Path:
    """The export of a folder that also holds files which other tools would run."""
    candidate = tmp_path / "candidate"
    (candidate / "kernels" / "prebuilt" / "x86_64").mkdir(parents=True)
    (candidate / "model_new.py").write_text(MODEL)
    (candidate / "kernels" / "affine.cpp").write_text(KERNEL)
    (candidate / "kernels" / "prebuilt" / "x86_64" / "affine.so").write_text("a library")
    for name in OTHERS:
        (candidate / name).write_text("raise SystemExit('ran')")
        (candidate / "kernels" / name).write_text("raise SystemExit('ran')")
    attempt = freeze(candidate)
    return export(attempt, TASK, Measured(domain=DOMAIN), tmp_path / "out")


def test_export_runs_nothing_of_the_attempt_and_copies_only_what_was_judged(out: Path, marks: Path):
    assert not list(marks.iterdir())
    names = {file.name for file in out.rglob("*")}
    assert not names & {*OTHERS, "prebuilt", "affine.so"}
    assert (out / "model_new_verified" / "kernels" / "affine.cpp").read_text() == KERNEL


def test_building_a_wheel_of_the_package_runs_nothing_of_the_attempt(
    out: Path, marks: Path, tmp_path: Path
):
    folder = tmp_path / "build"
    shutil.copytree(out, folder)
    program = "import sys; sys.path.insert(0, '.'); import cuagent_build as b; b.build_wheel('..')"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert not list(marks.iterdir())


def test_readme_says_that_the_code_runs_with_your_rights(out: Path):
    text = " ".join((out / "README.md").read_text().split())
    assert "runs with the rights of your process, from import on: read it first" in text
    assert "does not check its own files" in text


def test_first_builds_of_two_processes_give_one_library(
    out: Path, marks: Path, tmp_path: Path, python: list[str]
):
    processes = [
        subprocess.Popen(
            [*python, "-c", USE],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    results = [process.communicate(timeout=600) for process in processes]
    assert [text for text, _ in results] == ["4.0\n"] * 2, results
    libraries = list((tmp_path / "cache").rglob("*.so"))
    assert len(libraries) == 1
    assert json.loads(libraries[0].with_suffix(".deps").read_text())
    # The kernel's own code runs in the user's process, as the README says.
    assert {mark.name for mark in marks.iterdir()} == {"imported", "loaded"}


def test_changed_source_is_compiled_as_it_is(
    out: Path, marks: Path, tmp_path: Path, python: list[str]
):
    source = out / "model_new_verified" / "kernels" / "affine.cpp"
    source.write_text(KERNEL.replace("+ 1", "+ 2"))
    done = subprocess.run(
        [*python, "-c", USE], cwd=tmp_path, capture_output=True, text=True, env=os.environ
    )
    assert done.stdout == "5.0\n", done.stderr


def test_attempt_outside_its_folder_is_refused():
    with pytest.raises(Exception, match="not a valid file name"):
        Attempt((("kernels/../../evil.pth", "x"),))
