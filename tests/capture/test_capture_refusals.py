"""Capture of modules in users' scripts: one clear line for each bad input."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from scripts import SMALL, Run, opened

from cuagent.capture.run import CaptureRefused, ScriptFailed
from cuagent.cli.capture import default_folder
from cuagent.cli.exits import Refused

pytestmark = pytest.mark.slow


def refused_task(folder: Path) -> Refused:
    """Return the refusal of a captured folder as the task of a command."""
    from cuagent.cli.options import open_task
    from cuagent.config import Settings

    with pytest.raises(Refused) as found:
        open_task(str(folder), None, None, Settings(device="cpu"))
    return found.value


def refused(
    capture: Run, text: str, module: str, kind: type[Exception] = CaptureRefused, **options: Any
) -> str:
    """Return the message of the error with which the capture ends; check that it is one line."""
    with pytest.raises(kind) as found:
        capture(text, module, **options)
    assert "\n" not in str(found.value)
    return str(found.value)


def test_a_script_that_crashes_midway_keeps_what_was_recorded(capture: Run) -> None:
    script = SMALL + "for n in range(4):\n    net(torch.ones(2, 8))\nraise ValueError('full')\n"
    done = capture(script, "net.part")
    assert "ValueError: full); the 4 calls until then are kept" in done.text
    assert "cuagent optimize task" in done.text
    assert done.manifest["failure"].startswith("script.py:28: ")
    opened(done.folder)


def test_a_script_that_crashes_before_the_module_is_called(capture: Run, tmp_path: Path) -> None:
    line = refused(capture, SMALL + "1 / 0\n", "net.part", ScriptFailed)
    assert "failed before net.part was called: script.py:26: ZeroDivisionError" in line
    assert not (tmp_path / "task").exists()


def test_a_process_that_is_killed_says_so(capture: Run) -> None:
    script = SMALL + "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    assert "before anything could be written" in refused(capture, script, "net.part")


def test_a_module_that_is_not_there_or_never_called(capture: Run) -> None:
    script = SMALL + "net(torch.ones(2, 8))\n"
    line = refused(capture, script, "net.prat")
    assert "net.prat was never called in script.py; did you mean net.part" in line
    line = refused(capture, script, "net.unused")
    assert "net.unused exists, but was never called" in line
    assert "unused exists, but was never called in script.py" in refused(capture, script, "unused")


def test_a_module_of_a_function_that_has_ended_is_known(capture: Run) -> None:
    script = """
        import torch
        from torch import nn
        def main():
            model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
            model.unused = nn.Linear(3, 3)
            model.forward = model[0].forward
            model(torch.ones(2, 8))
        main()
        """
    assert "model.unused exists, but was never called" in refused(capture, script, "model.unused")
    line = refused(capture, script, "model.unsued")
    assert "was never called in script.py; did you mean Sequential.unused" in line


def test_inputs_beyond_the_quota(capture: Run) -> None:
    script = SMALL + "net(torch.ones(200_000, 8))\n"
    line = refused(capture, script, "net.part", quota=5 << 20)
    assert "over the quota of 5 MiB; name a smaller module, or give --quota" in line


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("lambda y: y", "argument extra is a lambda; use a function of the file's top level"),
        ("open(__file__)", "argument extra is a TextIOWrapper, which cannot be pickled"),
        ("(i for i in range(3))", "argument extra is a generator, which cannot be recorded"),
        ("__import__('threading').Lock()", "argument extra is a lock, which cannot be recorded"),
        ("torch.ones(2, 2).to_sparse()", "argument extra is a tensor of another kind"),
    ],
)
def test_unsupported_arguments(capture: Run, argument: str, named: str) -> None:
    script = f"""
        import torch
        from torch import nn
        class Net(nn.Module):
            def forward(self, x, extra):
                return x + 1
        net = Net()
        net(torch.ones(2), {argument})
        """
    assert named in refused(capture, script, "net")


SPAWNS = """
from torch import multiprocessing as mp

def work(rank):
    import torch
    torch.nn.ReLU()(torch.ones(2))

if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""


def test_calls_in_other_processes_are_named_as_the_reason(capture: Run) -> None:
    line = refused(capture, SPAWNS, "model.layer")
    assert "started 2 processes, whose calls are not recorded: run it as one process" in line


def test_calls_in_other_threads_are_counted(capture: Run) -> None:
    script = SMALL + "import threading\n"
    script += "t = threading.Thread(target=net, args=(torch.ones(2, 8),))\nt.start()\nt.join()\n"
    line = refused(capture, script, "net")
    assert "module calls ran in other threads, which are not recorded" in line


@pytest.mark.parametrize(
    ("result", "named"),
    [
        ("Named(y=x + cache.y)", "a Named, which has its own way to be pickled"),
        ("(x + 1, {'y'})", "what they return or change"),
    ],
    ids=["class of dict", "set"],
)
def test_a_call_that_a_package_cannot_replace_says_so(
    result: str, named: str, capture: Run
) -> None:
    script = f"""
        from collections import OrderedDict
        from dataclasses import dataclass
        import torch

        class Named(OrderedDict):
            pass

        @dataclass
        class Out:
            y: torch.Tensor

        class Net(torch.nn.Module):
            def forward(self, x, cache):
                return {result}

        net = Net()
        net(torch.ones(2, 8), cache=Out(torch.ones(2, 8)))
        """
    done = capture(script, "net")
    assert f"calls: {named}; name a module inside" in done.text


def test_a_class_defined_in_a_function(capture: Run) -> None:
    script = """
        import torch
        def main():
            class Net(torch.nn.Module):
                def forward(self, x):
                    return x + 1
            Net()(torch.ones(2))
        main()
        """
    line = refused(capture, script, "Net")
    assert "defined inside a function: move it to the file's top level" in line


def test_hooks_are_named_and_a_result_they_change_is_refused(capture: Run) -> None:
    watched = SMALL + "net.part.register_forward_hook(lambda m, i, o: None)\n"
    done = capture(watched + "net(torch.ones(2, 8))\n", "net.part", out="a")
    assert "hooks are not part of the task: the module (1)" in done.text
    changed = SMALL + "net.part.register_forward_hook(lambda m, i, o: o + 1)\n"
    done = capture(changed + "net(torch.ones(2, 8))\n", "net.part", out="b")
    assert done.checked == {
        "error": "the rebuilt module does not give the recorded result (its hooks are not part of "
        "a task: the module (1)); remove them first"
    }
    assert "cuagent optimize" not in done.text
    assert json.loads((done.folder / "manifest.json").read_text())["error"] in str(
        refused_task(done.folder)
    )


def test_weight_norm_is_refused(capture: Run) -> None:
    script = SMALL + "nn.utils.parametrizations.weight_norm(net.part.fc)\nnet(torch.ones(2, 8))\n"
    assert "remove_parametrizations" in refused(capture, script, "net.part")


def test_a_folder_that_cannot_be_written_is_refused_before_the_script_runs(
    capture: Run, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    script = SMALL + "open('ran', 'w')\nnet(torch.ones(2, 8))\n"
    line = refused(capture, script, "net.part", Refused, out="file/task")
    assert "file/task: cannot be written (Not a directory)" in line
    assert "already exists" in refused(capture, script, "net.part", Refused, out="full")
    if os.geteuid() != 0:  # root writes everywhere
        (tmp_path / "shut").mkdir(mode=0o500)
        line = refused(capture, script, "net.part", Refused, out="shut/task")
        assert "Permission denied" in line
    assert not (tmp_path / "ran").exists()


def test_two_captures_at_the_same_time_get_two_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_folder("net.head") == Path("captured/net.head")
    assert default_folder("net.head") == Path("captured/net.head-2")
    Path("captured").rename("elsewhere")
    Path("captured").touch()
    assert default_folder("net.head") == Path("captured/net.head"), "reported when it is written"
