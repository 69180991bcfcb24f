"""`cuagent capture` on users' scripts: what is recorded, and one clear line for each bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from scripts import DECODER, SMALL, TRAINING

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]


@pytest.fixture
def capture(tmp_path: Path) -> Run:
    """Run `cuagent capture SCRIPT ...` in tmp_path; the text is written to the script first."""

    def run(text: str, *arguments: str) -> Done:
        (tmp_path / "script.py").write_text(dedent(text))
        command = [sys.executable, "-m", "cuagent", "capture", "script.py", *arguments]
        environment = os.environ | {"HOME": str(tmp_path), "OMP_NUM_THREADS": "2"}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )

    return run


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return found


def last_line(done: Done) -> str:
    return done.stderr.strip().splitlines()[-1]


def refused(done: Done, code: int = 2) -> str:
    """Return the one line of an error."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr.replace("Traceback (most recent call last)", "", 0) or (
        code == 1
    )
    return last_line(done)


def opened(folder: Path) -> Any:
    from cuagent.task import check_runs, load_task, open_reference

    reference = open_reference(load_task(folder, device="cpu"))
    check_runs(reference)
    return reference


def test_a_module_of_a_training_script_becomes_a_task(capture: Run, tmp_path: Path) -> None:
    done = capture(TRAINING, "--module", "model.blocks.1", "--steps", "7", "--out", "task")
    assert done.returncode == 0, done.stderr
    assert "the rebuilt module gives the recorded result" in done.stdout
    found = manifest(tmp_path / "task")
    assert found["module"] == "Net.blocks.1"
    assert [shape["calls"] for shape in found["shapes"]] == [3, 4]
    assert {s["task"] for s in found["shapes"]} == {"task.py", "shape_2.py"}
    assert found["compiled"] == ["Net"]
    assert 0 < found["share"] < 1
    reference = opened(tmp_path / "task")
    assert [tuple(x.shape) for x in reference.inputs(1)] == [(4, 12, 16)]
    model = reference.model(0)
    assert sorted(model.state_dict()) == [
        "down.bias", "down.weight", "norm.bias", "norm.weight", "up.bias", "up.weight",
    ]  # fmt: skip
    text = (tmp_path / "task" / "task.py").read_text()
    assert "GAIN = 1.5" in text
    assert "parse_args" not in text
    assert "scale=0.5" in text


def test_the_other_shape_is_a_task_of_its_own(capture: Run, tmp_path: Path) -> None:
    from cuagent.task import load_task, open_reference

    assert capture(TRAINING, "--module", "blocks.0", "--out", "task").returncode == 0
    reference = open_reference(load_task(tmp_path / "task" / "shape_2.py", device="cpu"))
    assert [tuple(x.shape) for x in reference.inputs(0)] == [(4, 8, 16)]
    assert reference.model(0)(*reference.inputs(0)).shape == (4, 8, 16)


def test_tied_weights_stay_tied_and_integers_keep_their_values(
    capture: Run, tmp_path: Path
) -> None:
    done = capture(TRAINING, "--module", "Net", "--out", "task")
    assert done.returncode == 0, done.stderr
    assert "tied weights stay tied: head.weight = embed.weight" in done.stdout
    reference = opened(tmp_path / "task")
    model = reference.model(0)
    assert model.head.weight is model.embed.weight
    assert int(reference.inputs(3)[0].max()) < 50


def test_a_recurrent_decoder_whose_first_call_differs(capture: Run, tmp_path: Path) -> None:
    done = capture(DECODER, "--module", "net", "--out", "task")
    assert done.returncode == 0, done.stderr
    assert "the rebuilt module gives the recorded result" in done.stdout
    assert "calls with other arguments, which keep the original module: 1" in done.stdout
    reference = opened(tmp_path / "task")
    scores, state = reference.model(0)(*reference.inputs(0))
    assert (scores.shape, state.shape) == ((4, 1, 60), (2, 4, 32))


def test_the_task_changes_with_its_recorded_tensors(capture: Run, tmp_path: Path) -> None:
    from cuagent.task import TaskError, load_task, open_reference

    assert capture(DECODER, "--module", "net", "--out", "task").returncode == 0
    file = tmp_path / "task" / "parameters.pt"
    file.write_bytes(file.read_bytes() + b"x")
    reference = open_reference(load_task(tmp_path / "task", device="cpu"))
    with pytest.raises(TaskError, match="changed since the capture"):
        reference.model(0)


def test_autocast_strides_flags_and_files_of_a_project(capture: Run, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "__init__.py").touch()
    (project / "config.py").write_text(
        "from dataclasses import dataclass\nfrom enum import Enum\n"
        "class Act(Enum):\n    SILU = 'silu'\n"
        "@dataclass\nclass Config:\n    channels: int = 8\n    act: Act = Act.SILU\n"
    )
    (project / "ops.py").write_text(
        "import torch.nn.functional as F\nfrom project.config import Act\n"
        "def make(act):\n    return F.silu if act is Act.SILU else F.gelu\n"
    )
    (project / "layers.py").write_text(
        "from __future__ import annotations\nimport torch\nfrom torch import nn\n"
        "from .config import Config\nfrom . import ops\n"
        "class Res(nn.Module):\n"
        "    def __init__(self, config: Config):\n"
        "        super().__init__()\n"
        "        self.config, self.skip = config, None\n"
        "        self.conv = nn.Conv2d(config.channels, config.channels, 3, padding=1)\n"
        "        self.act = ops.make(config.act)\n"
        "    def forward(self, x: torch.Tensor, *, t: torch.Tensor) -> torch.Tensor:\n"
        "        return x + self.conv(ops.make(self.config.act)(x)) + self.act(t)\n"
    )
    script = """
        import torch
        from project.config import Config
        from project.layers import Res
        torch.set_float32_matmul_precision("high")
        net = Res(Config()).eval()
        x = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            for _ in range(3):
                net(x, t=torch.rand(2, 8, 1, 1).expand(2, 8, 6, 6))
        """
    done = capture(script, "--module", "net", "--out", "task")
    assert done.returncode == 0, done.stderr
    assert "the rebuilt module gives the recorded result" in done.stdout
    for name in ("project", "script.py"):
        (tmp_path / name).rename(tmp_path / f"{name}.moved")
    reference = opened(tmp_path / "task")
    x, t = reference.inputs(0)
    assert x.stride() == (288, 1, 48, 8)
    assert t.stride()[2:] == (0, 0)
    shape = manifest(tmp_path / "task")["shapes"][0]
    assert shape["autocast"] == "bfloat16"
    text = (tmp_path / "task" / "task.py").read_text()
    assert "torch.set_float32_matmul_precision('high')" in text.replace('"', "'")
    assert 'torch.autocast("cpu", torch.bfloat16)' in text


def test_masks_keep_values_floats_keep_their_range(capture: Run, tmp_path: Path) -> None:
    script = """
        import torch
        from torch import nn
        class Attend(nn.Module):
            def forward(self, x, mask, bias):
                return torch.softmax((x @ x.mT + bias).masked_fill(mask, -1e9), -1)
        net = Attend().eval()
        mask = torch.ones(6, 6, dtype=torch.bool).triu(1)
        bias = torch.zeros(6, 6).masked_fill(mask, float("-inf")).fill_diagonal_(0)
        for _ in range(4):
            net(torch.rand(2, 6, 8) + 3, mask=mask, bias=bias)
        """
    assert capture(script, "--module", "net", "--out", "task").returncode == 0
    first, second = opened(tmp_path / "task").inputs(0), opened(tmp_path / "task").inputs(1)
    assert not first[0].equal(second[0])
    assert 3 <= float(first[0].min()) <= float(first[0].max()) <= 4
    assert first[1].equal(second[1])
    assert first[1].sum() == 15
    assert first[2].equal(second[2])


def test_one_tensor_given_twice_is_one_input(capture: Run, tmp_path: Path) -> None:
    script = """
        import torch
        from torch import nn
        net = nn.MultiheadAttention(8, 2, batch_first=True).eval()
        for _ in range(2):
            x = torch.randn(2, 5, 8)
            net(x, x, x, need_weights=False)
        """
    done = capture(script, "--module", "net", "--out", "task")
    assert done.returncode == 0, done.stderr
    assert len(opened(tmp_path / "task").inputs(0)) == 1


def test_workers_of_a_data_loader_do_not_record(capture: Run, tmp_path: Path) -> None:
    script = (
        SMALL
        + """
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, k):
        with torch.no_grad():
            return net.part(torch.full((8,), float(k)))
if __name__ == "__main__":
    for batch in DataLoader(Data(), batch_size=4, num_workers=1):
        net(batch)
"""
    )
    done = capture(script, "--module", "net.part", "--out", "task")
    assert done.returncode == 0, done.stderr
    assert manifest(tmp_path / "task")["calls"] == 2


def test_the_script_sees_what_python_gives_it(capture: Run, tmp_path: Path) -> None:
    (tmp_path / "sibling.py").write_text("VALUE = 3\n")
    script = """
        import sys, os, pickle
        import sibling
        class Mine: pass
        pickle.loads(pickle.dumps(Mine()))
        print(__name__, sys.argv, os.path.basename(__file__), os.getcwd())
        import torch
        torch.nn.Linear(2, 2)(torch.ones(1, 2))
        """
    done = capture(script, "--list", "--verbose", "-x", "--", "--module")
    shown = f"__main__ ['script.py', '--verbose', '-x', '--module'] script.py {tmp_path}"
    assert shown in done.stderr


def test_the_list_shows_shapes_calls_and_shares(capture: Run) -> None:
    done = capture(SMALL + "for n in (2, 2, 3):\n    net(torch.ones(n, 8))\n", "--list", "--json")
    answer = json.loads(done.stdout)
    rows = {row["name"]: row for row in answer["modules"]}
    assert set(rows) == {"net", "net.part", "net.part.fc"}
    assert rows["net.part"]["calls"] == 3
    assert rows["net.part"]["shapes"] == [["float32[2,8]", 2], ["float32[3,8]", 1]]
    assert 0 < rows["net.part"]["share"] <= rows["net"]["share"] <= 1
    text = capture(SMALL + "net(torch.ones(2, 8))\n", "--list").stdout
    assert "net.part.fc" in text
    assert "of its only step, warm-up included" in text


def test_stop_ends_the_script_after_the_calls(capture: Run, tmp_path: Path) -> None:
    script = SMALL + "while True:\n    net(torch.ones(2, 8))\n"
    done = capture(script, "--module", "net.part", "--calls", "3", "--stop", "--out", "task")
    assert done.returncode == 0, done.stderr
    assert manifest(tmp_path / "task")["calls"] == 3


# -- bad input


def test_a_script_that_crashes_midway_keeps_what_was_recorded(capture: Run, tmp_path: Path) -> None:
    script = (
        SMALL + "for n in range(4):\n    net(torch.ones(2, 8))\nraise ValueError('disk full')\n"
    )
    done = capture(script, "--module", "net.part", "--out", "task")
    assert done.returncode == 1
    assert "ValueError: disk full); the 4 calls until then are kept" in done.stdout
    assert "cuagent optimize task" in done.stdout
    assert manifest(tmp_path / "task")["calls"] == 4
    opened(tmp_path / "task")


def test_a_script_that_crashes_before_the_module_is_called(capture: Run, tmp_path: Path) -> None:
    done = capture(SMALL + "1 / 0\n", "--module", "net.part", "--out", "task")
    line = refused(done, 1)
    assert "failed before net.part was called: script.py:26: ZeroDivisionError" in line
    assert not (tmp_path / "task").exists()


def test_a_process_that_is_killed_says_so(capture: Run) -> None:
    script = SMALL + "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    assert "SIGKILL" in refused(capture(script, "--module", "net.part"))


def test_a_name_that_is_not_there_gets_close_names(capture: Run) -> None:
    done = capture(SMALL + "net(torch.ones(2, 8))\n", "--module", "net.prat")
    assert "net.prat was never called in script.py; did you mean net.part" in refused(done)


def test_a_module_that_is_never_called(capture: Run) -> None:
    done = capture(SMALL + "net(torch.ones(2, 8))\n", "--module", "net.unused")
    assert "net.unused exists, but was never called" in refused(done)


def test_inputs_beyond_the_quota(capture: Run) -> None:
    script = SMALL + "net(torch.ones(200_000, 8))\n"
    line = refused(capture(script, "--module", "net.part", "--quota", "5"))
    assert "over the quota of 5 MiB; name a smaller module, or give --quota" in line


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("lambda y: y", "an argument is '<lambda>'"),
        ("open(__file__)", "an argument is a TextIOWrapper, which cannot be pickled"),
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
    line = refused(capture(script, "--module", "net"))
    assert named.replace("'", "") in line.replace("'", "")


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
    line = refused(capture(script, "--module", "Net"))
    assert "defined inside a function: move it to the file's top level" in line


def test_hooks_are_named_and_a_result_they_change_is_refused(capture: Run, tmp_path: Path) -> None:
    watched = SMALL + "net.part.register_forward_hook(lambda m, i, o: None)\n"
    done = capture(watched + "net(torch.ones(2, 8))\n", "--module", "net.part", "--out", "a")
    assert done.returncode == 0, done.stderr
    assert "hooks are not part of the task: the module (1)" in done.stdout
    changed = SMALL + "net.part.register_forward_hook(lambda m, i, o: o + 1)\n"
    done = capture(changed + "net(torch.ones(2, 8))\n", "--module", "net.part", "--out", "b")
    assert done.returncode == 1
    assert "b: the rebuilt module does not give the recorded result; do not use it" in done.stderr


def test_weight_norm_is_refused(capture: Run) -> None:
    script = SMALL + "nn.utils.parametrizations.weight_norm(net.part.fc)\nnet(torch.ones(2, 8))\n"
    assert "remove_parametrizations" in refused(capture(script, "--module", "net.part"))


def test_a_folder_that_cannot_be_written_is_refused_before_the_script_runs(
    capture: Run, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    script = SMALL + "open('ran', 'w')\nnet(torch.ones(2, 8))\n"
    line = refused(capture(script, "--module", "net.part", "--out", "file/task"))
    assert "file/task: cannot be written: Not a directory" in line
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    assert "already exists" in refused(capture(script, "--module", "net.part", "--out", "full"))
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder(capture: Run, tmp_path: Path) -> None:
    (tmp_path / "shut").mkdir(mode=0o500)
    line = refused(capture(SMALL, "--module", "net.part", "--out", "shut/task"))
    assert "Permission denied" in line


def test_neither_list_nor_module(capture: Run) -> None:
    assert "give --module NAME, or --list" in refused(capture(SMALL))


def test_an_interrupt_keeps_what_was_recorded(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        SMALL + "net(torch.ones(2, 8))\nopen('ready', 'w').close()\nimport time\ntime.sleep(300)\n"
    )
    command = [sys.executable, "-m", "cuagent", "capture", "script.py", "--module", "net.part"]
    process = subprocess.Popen(
        [*command, "--out", "task"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 200
    while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.terminate()
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 1
    assert "the script failed (interrupted); the 1 calls until then are kept" in output
    assert manifest(tmp_path / "task")["calls"] == 1
