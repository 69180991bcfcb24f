"""The process of a captured script: its arguments and folder, and interrupts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest
from scripts import SMALL  # type: ignore[import-not-found]

pytestmark = pytest.mark.slow


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "cuagent", "capture", "script.py", *arguments]


def test_the_script_sees_what_python_gives_it(tmp_path: Path) -> None:
    (tmp_path / "sibling.py").write_text("VALUE = 3\n")
    (tmp_path / "script.py").write_text(
        dedent(
            """
            import sys, os, pickle
            import sibling
            class Mine: pass
            pickle.loads(pickle.dumps(Mine()))
            print(__name__, sys.argv, os.path.basename(__file__), os.getcwd())
            import torch
            torch.nn.Linear(2, 2)(torch.ones(1, 2))
            """
        )
    )
    done = subprocess.run(
        command("--list", "--verbose", "-x", "--", "--module"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    shown = f"__main__ ['script.py', '--verbose', '-x', '--module'] script.py {tmp_path}"
    assert shown in done.stderr
    assert "Linear" in done.stdout


def waiting_capture(folder: Path) -> subprocess.Popen[str]:
    """Start a capture, in its own process group, of a script that calls the module once and then
    waits; return when it waits."""
    (folder / "script.py").write_text(
        SMALL + "net(torch.ones(2, 8))\nopen('ready', 'w').close()\nimport time\ntime.sleep(300)\n"
    )
    process = subprocess.Popen(
        command("--module", "net.part", "--out", "task"),
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    deadline = time.monotonic() + 200
    while not (folder / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return process


def test_an_interrupt_keeps_what_was_recorded(tmp_path: Path) -> None:
    process = waiting_capture(tmp_path)
    process.terminate()
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 1
    assert "the script failed (interrupted); its one call is kept" in output
    manifest = json.loads((tmp_path / "task" / "manifest.json").read_text())
    assert manifest["calls"] == 1


def test_neither_list_nor_module(tmp_path: Path) -> None:
    (tmp_path / "script.py").touch()
    done = subprocess.run(command(), cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert done.stderr == "cuagent: give --module NAME, or --list to see the names\n"


def test_ctrl_c_on_a_terminal_arrives_twice_and_keeps_what_was_recorded(tmp_path: Path) -> None:
    """The terminal interrupts the whole group, and the parent passes the interrupt on."""
    process = waiting_capture(tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 1
    assert "the script failed (interrupted); its one call is kept" in output
    assert (tmp_path / "task" / "task.py").is_file()


def test_an_interrupt_before_the_script_begins_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SMALL)
    shim = tmp_path / "shim" / "torch.py"
    shim.parent.mkdir()
    shim.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run(
        command("--module", "net.part", "--out", "task"),
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(shim.parent)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 2
    assert done.stderr == "cuagent: script.py: interrupted before anything was recorded\n"
    assert not (tmp_path / "task").exists()
