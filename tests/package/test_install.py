"""Packages installed with pip in a fresh environment without cuagent, and timed there."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from blocks import ATTEMPT, CUDA_ATTEMPT, CUDA_DOMAIN, CUDA_TASK, DOMAIN, TASK, USERS
from test_export import Measured

from cuagent.attempt import Attempt
from cuagent.cli.export import built_for
from cuagent.package import ExportError, export, hub_repository
from cuagent.package.guarded import verified_facts
from cuagent.package.machine import machine, record_path

WITH_INPUTS = (
    USERS
    + """
def get_inputs():
    return [torch.randn(4, 8)]

def get_init_inputs():
    return [8]
"""
)
TIMED_TASK = replace(TASK, source=WITH_INPUTS)
MEASURED = Measured(domain=DOMAIN)
PIP = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]

USE = """
import importlib.util, json, pathlib, sys, warnings
import torch, users, users_block_fast
assert importlib.util.find_spec("cuagent") is None
assert pathlib.Path(users_block_fast.__file__).is_relative_to(sys.prefix)
torch.manual_seed(0)
model = torch.nn.Sequential(users.Block(8), users.Block(8)).eval()
x = torch.randn(4, 8)
with torch.no_grad():
    before = model(x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        users_block_fast.optimize_(model)
        after = model(x)
    torch.testing.assert_close(before, after, rtol=1e-4, atol=1e-4)
print(json.dumps([str(w.message) for w in caught]))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment that finds torch, but no cuagent."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=600)
    (site,) = folder.glob("lib/python*/site-packages")
    libraries = Path(torch.__file__).resolve().parents[1]
    (site / "torch.pth").write_text(f"{libraries}\n")
    out = folder / "package"
    export(ATTEMPT, TIMED_TASK, MEASURED, out)
    install = [str(folder / "bin" / "python"), *PIP, str(out)]
    subprocess.run(install, check=True, capture_output=True, timeout=600)
    shutil.rmtree(out)
    (folder / "users.py").write_text(USERS)
    return folder


def run(environment: Path, arguments: list[str], **variables: str) -> str:
    done = subprocess.run(
        [str(environment / "bin" / "python"), *arguments],
        capture_output=True,
        text=True,
        cwd=environment,
        env={"PATH": os.environ["PATH"], "HOME": str(environment), **variables},
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_installed_package_runs_without_cuagent(environment: Path) -> None:
    assert json.loads(run(environment, ["-c", USE])) == []


@pytest.mark.slow
def test_without_a_compiler_the_original_runs_and_a_warning_says_so(environment: Path) -> None:
    (text,) = json.loads(run(environment, ["-c", USE], PATH="/nonexistent", HOME="/nonexistent"))
    assert "the original module runs, not the kernel: the kernel cannot be loaded" in text
    assert "install g++" in text


@pytest.mark.slow
def test_installed_package_is_checked_and_timed(environment: Path) -> None:
    text = run(environment, ["-m", "users_block_fast.check", "--time"])
    assert "agrees" in text
    assert "original" in text.splitlines()[-1] or "slower on this machine" in text
    records = list(environment.glob(".cache/cuagent/packages/*/*.json"))
    assert len(records) == 1
    found = json.loads(records[0].read_text())
    assert found["torch"] == torch.__version__
    records[0].write_text(json.dumps(found | {"speedup": 0.5}))
    (warned,) = json.loads(run(environment, ["-c", USE]))
    assert "timed on this machine at 0.50 times the original's speed" in warned
    program = "import users_block_fast, torch; m = users_block_fast.ModelNew(8).eval(); "
    program += "torch.set_grad_enabled(False); print(m.why_original(torch.randn(4, 8)))"
    assert "timed on this machine" in run(environment, ["-c", program])
    records[0].write_text(json.dumps(found | {"torch": "1.0", "speedup": 2.0}))
    assert json.loads(run(environment, ["-c", USE])) == []


def test_record_belongs_to_one_package_and_one_machine(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    export(ATTEMPT, TASK, MEASURED, one)
    changed = dict(ATTEMPT.files)
    changed["kernels/tail.cpp"] += "// changed\n"
    export(Attempt(tuple(changed.items())), TASK, MEASURED, other)
    here = machine("cpu")
    paths = [record_path(out / "model_new_verified", here) for out in (one, other)]
    paths.append(record_path(one / "model_new_verified", here | {"torch": "0"}))
    assert len(set(paths)) == 3


@pytest.mark.slow
def test_format_of_hugging_face_kernels(tmp_path: Path) -> None:
    export(ATTEMPT, TASK, MEASURED, tmp_path / "package")
    out = hub_repository(tmp_path / "package", tmp_path / "hub")
    variant = out / "build" / "torch-cpu"
    metadata = json.loads((variant / "metadata.json").read_text())
    assert metadata["name"] == "users-block-fast"
    assert metadata["backend"] == {"type": "cpu"}
    assert metadata["digest"]["algorithm"] == "sha256"
    files = metadata["digest"]["files"]
    present = {p.relative_to(variant).as_posix() for p in variant.rglob("*") if p.is_file()}
    assert set(files) == present - {"metadata.json"}
    for name, digest in files.items():
        content = (variant / name).read_bytes()
        assert base64.b64encode(hashlib.sha256(content).digest()).decode() == digest
    (tmp_path / "users.py").write_text(USERS)
    program = (
        f"import sys, torch; sys.path[:0] = [{str(variant)!r}, {str(tmp_path)!r}]\n"
        "import users, users_block_fast\n"
        "users_block_fast.optimize_(users.Block(8))\n"
        f"print(hasattr(torch.ops, {metadata['id']!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True
    )
    assert done.stdout == "True\n", done.stderr


def test_readme_of_hugging_face_kernels_does_not_name_pip(tmp_path: Path) -> None:
    """The layout has no `pyproject.toml`."""
    export(ATTEMPT, TASK, MEASURED, tmp_path / "package")
    text = (hub_repository(tmp_path / "package", tmp_path / "hub") / "README.md").read_text()
    assert "pip install ." not in text
    assert "get_kernel(" in text
    assert "PYTHONPATH=build/torch-cpu`, then `import users_block_fast`" in text
    assert text.count("## Verified calls") == text.count("## Trust") == 1


def test_format_of_hugging_face_kernels_is_not_written_over_a_folder(tmp_path: Path) -> None:
    export(ATTEMPT, TASK, MEASURED, tmp_path / "package")
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "mine.txt").write_text("mine")
    with pytest.raises(ExportError, match="not empty"):
        hub_repository(tmp_path / "package", tmp_path / "hub")
    assert [path.name for path in (tmp_path / "hub").iterdir()] == ["mine.txt"]


def test_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="cannot be written") as raised:
        export(ATTEMPT, TASK, MEASURED, tmp_path / "file" / "out")
    assert "\n" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_cubins_for_named_architectures_are_in_the_package(tmp_path: Path) -> None:
    builds = built_for(CUDA_ATTEMPT, ["80", "90a"])
    measured = Measured(domain=CUDA_DOMAIN)
    out = export(CUDA_ATTEMPT, CUDA_TASK, measured, tmp_path / "out", builds=builds)
    prebuilt = out / "model_new_verified" / "kernels" / "prebuilt"
    assert {path.name for path in prebuilt.iterdir()} == {"sm_80", "sm_90a"}
    programs = {}
    for arch in ("86", "90a", "75"):
        program = (
            f"import sys; sys.path.insert(0, {str(out / 'model_new_verified')!r})\n"
            "from pathlib import Path\n"
            "from _kernels.compiler import read_recipe, shared_library\n"
            f"source = Path({str(out / 'model_new_verified' / 'kernels' / 'scale.cu')!r})\n"
            "print(shared_library(read_recipe(source)))"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            env={"PATH": "/nonexistent", "CUAGENT_CUDA_ARCH": arch, "CUDA_HOME": "/none"},
        )
        programs[arch] = done.stdout or done.stderr
    assert "prebuilt/sm_80/" in programs["86"], "code for 8.0 runs on 8.6"
    assert "prebuilt/sm_90a/" in programs["90a"]
    assert "CompilerMissing" in programs["75"], "nothing in the package runs there"


def test_flags_of_products_are_tested_only_if_the_kernel_may_have_products() -> None:
    assert verified_facts(TASK, DOMAIN, ATTEMPT)["products"] is True
    assert verified_facts(CUDA_TASK, CUDA_DOMAIN, CUDA_ATTEMPT)["products"] is False
