"""Test that packages outside this Python's folders are found if the user installed them, and that
nothing from a repository is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cuagent.library_folders import VARIABLE, library_folders
from cuagent.sandbox import Policy
from cuagent.sandbox.policy import environment, readable

pytestmark = pytest.mark.slow

TASK = """
import torch
import outside

class Model(torch.nn.Module):
    def forward(self, x):
        return x * outside.FACTOR

def get_inputs():
    return [torch.randn(64)]
"""
CANDIDATE = TASK.replace("Model(", "ModelNew(").partition("def get")[0]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return a folder into which pip installed the package `outside`."""
    folder = tmp_path / "target"
    (folder / "outside-1.dist-info").mkdir(parents=True)
    (folder / "outside.py").write_text("FACTOR = 3.0\n")
    return folder


def test_only_folders_that_pip_filled_outside_the_working_directory_count(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    sources = tmp_path / "sources"
    sources.mkdir()
    monkeypatch.setattr(sys, "path", ["", "relative", str(sources), str(installed), *sys.path])
    assert library_folders() == [str(installed)]
    assert installed in readable(Policy())
    assert environment(Policy())[VARIABLE] == str(installed)
    assert installed not in readable(Policy(interpreter=False))
    monkeypatch.chdir(tmp_path)
    assert library_folders() == []


def test_a_parent_process_decides_for_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, os.pathsep.join(("/a", "/b")))
    assert library_folders() == ["/a", "/b"]
    monkeypatch.setenv(VARIABLE, "")
    assert library_folders() == []


def test_task_and_candidate_import_a_package_that_is_on_pythonpath_alone(
    installed: Path, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "task.py").write_text(TASK)
    (project / "candidate").mkdir()
    (project / "candidate" / "model_new.py").write_text(CANDIDATE)
    variables = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [Path(sys.executable).with_name("cuagent"), "verify", "task.py", "candidate"]
    ended = subprocess.run(
        [*command, "--device", "cpu"],
        cwd=project,
        env=variables | {"PYTHONPATH": os.pathsep.join((str(installed), str(project)))},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
