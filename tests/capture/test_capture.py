"""Capture of modules in users' scripts: the task, its inputs and weights, and the list."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from scripts import DECODER, SMALL, TRAINING, Run, opened

from cuagent.capture.listing import rows, table
from cuagent.capture.run import Order, run_script

pytestmark = pytest.mark.slow


def listed(text: str, python: list[str], *arguments: str) -> dict[str, Any]:
    Path("script.py").write_text(dedent(text))
    return run_script(Order(Path("script.py"), arguments, python=tuple(python)))


def test_a_module_of_a_training_script_becomes_a_task(capture: Run) -> None:
    done = capture(TRAINING, "model.blocks.1", "--steps", "7")
    assert done.checked == {"difference": 0.0, "note": ""}
    found = done.manifest
    assert found["module"] == "Net.blocks.1"
    assert [shape["calls"] for shape in found["shapes"]] == [3, 4]
    assert {s["task"] for s in found["shapes"]} == {"task.py", "shape_2.py"}
    assert found["compiled"] == ["Net"]
    assert 0 < found["share"] < 1
    assert (found["calls"], found["calls_of_class"]) == (7, 14), "blocks.0 and blocks.1"
    reference = opened(done.folder)
    assert [tuple(x.shape) for x in reference.inputs(1)] == [(4, 12, 16)]
    names = ["down.bias", "down.weight", "norm.bias", "norm.weight", "up.bias", "up.weight"]
    assert sorted(reference.model(0).state_dict()) == names
    text = (done.folder / "task.py").read_text()
    assert "GAIN = 1.5" in text
    assert "parse_args" not in text
    assert "scale=0.5" in text
    other = opened(done.folder, "shape_2.py")
    assert other.model(0)(*other.inputs(0)).shape == (4, 8, 16)


def test_calls_that_want_gradients_are_counted(capture: Run) -> None:
    done = capture(TRAINING, "model.blocks.1")
    assert "6 of 6 calls want gradients" in done.text
    assert "cuagent optimize task --backward" in done.text
    done = capture(DECODER, "net", out="other")
    assert "gradients" not in done.text
    assert done.text.endswith("cuagent optimize other")


def test_weights_keep_the_order_of_their_dimensions(capture: Run) -> None:
    text = """
        import torch
        from torch import nn
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv2d(4, 8, 3, padding=1)
                self.deep = nn.Conv2d(8, 8, 3, padding=1, groups=8)
            def forward(self, x):
                return torch.relu(self.deep(self.conv(x)))
        net = Block().eval().to(memory_format=torch.channels_last)
        with torch.no_grad():
            net(torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last))
        """
    done = capture(text, "net")
    assert done.checked == {"difference": 0.0, "note": ""}
    model = opened(done.folder).model(0)
    assert model.conv.weight.stride() == (36, 1, 12, 4)
    assert not model.conv.weight.is_contiguous()
    # Without the files of the folder, as a package constructs the original.
    (done.folder / "parameters.pt").unlink()
    (done.folder / "inputs.pt").rename(done.folder / "kept")
    namespace: dict[str, Any] = {"__file__": str(done.folder / "task.py"), "__name__": "task"}
    exec((done.folder / "task.py").read_text(), namespace)
    assert namespace["Model"]().conv.weight.stride() == (36, 1, 12, 4)


def test_tied_weights_stay_tied_and_integers_keep_their_values(capture: Run) -> None:
    done = capture(TRAINING, "Net")
    assert "tied weights stay tied: head.weight = embed.weight" in done.text
    reference = opened(done.folder)
    model = reference.model(0)
    assert model.head.weight is model.embed.weight
    assert int(reference.inputs(3)[0].max()) < 50


def test_a_recurrent_decoder_whose_first_call_differs(capture: Run) -> None:
    from cuagent.task import TaskError

    done = capture(DECODER, "net")
    assert done.checked["difference"] == 0.0
    assert "calls with other arguments, which keep the original module: 1" in done.text
    reference = opened(done.folder)
    scores, state = reference.model(0)(*reference.inputs(0))
    assert (scores.shape, state.shape) == ((4, 1, 60), (2, 4, 32))
    file = done.folder / "parameters.pt"
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(TaskError, match="changed since the capture"):
        opened(done.folder)


PROJECT = {
    "__init__.py": "",
    "config.py": """
        from dataclasses import dataclass
        from enum import Enum
        class Act(Enum):
            SILU = "silu"
        @dataclass
        class Config:
            channels: int = 8
            act: Act = Act.SILU
        """,
    "ops.py": """
        import torch.nn.functional as F
        from project.config import Act
        def make(act):
            return F.silu if act is Act.SILU else F.gelu
        """,
    "layers.py": """
        from __future__ import annotations
        import torch
        from torch import nn
        from .config import Config
        from . import ops
        class Res(nn.Module):
            def __init__(self, config: Config):
                super().__init__()
                self.config, self.skip = config, None
                self.conv = nn.Conv2d(config.channels, config.channels, 3, padding=1)
                self.act = ops.make(config.act)
            def forward(self, x: torch.Tensor, *, t: torch.Tensor) -> torch.Tensor:
                return x + self.conv(ops.make(self.config.act)(x)) + self.act(t)
        """,
}


def test_autocast_strides_flags_and_files_of_a_project(capture: Run, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    for name, text in PROJECT.items():
        (tmp_path / "project" / name).write_text(dedent(text))
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
    done = capture(script, "net")
    assert "error" not in done.checked
    for name in ("project", "script.py"):
        (tmp_path / name).rename(tmp_path / f"{name}.moved")
    text = (done.folder / "task.py").read_text()
    assert "torch.set_float32_matmul_precision('high')" in text
    assert 'torch.autocast("cpu", torch.bfloat16)' in text
    assert done.manifest["shapes"][0]["autocast"] == "bfloat16"
    shown = "import sys, torch\nfrom cuagent.task import load_task, open_reference\n"
    shown += "r = open_reference(load_task(sys.argv[1], device='cpu'))\nx = r.inputs(0)\n"
    shown += "print([t.stride() for t in x], r.model(0)(*x).shape)\n"
    command = [sys.executable, "-c", shown, str(done.folder)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    assert "[(288, 1, 48, 8), (8, 1, 0, 0)] torch.Size([2, 8, 6, 6])" in ran.stdout


def test_masks_keep_values_floats_keep_their_range(capture: Run) -> None:
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
    reference = opened(capture(script, "net").folder)
    first, second = reference.inputs(0), reference.inputs(1)
    assert not first[0].equal(second[0])
    assert 3 <= float(first[0].min()) <= float(first[0].max()) <= 4
    assert first[1].equal(second[1])
    assert first[1].sum() == 15
    assert first[2].equal(second[2])


def test_one_tensor_given_twice_is_one_input(capture: Run) -> None:
    script = """
        import torch
        from torch import nn
        net = nn.MultiheadAttention(8, 2, batch_first=True).eval()
        for _ in range(2):
            x = torch.randn(2, 5, 8)
            net(x, x, x, need_weights=False)
        """
    assert len(opened(capture(script, "net").folder).inputs(0)) == 1


CACHE = """
import torch
from torch import nn

class Cache:
    def __init__(self):
        self.keys = []

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x, cache=None):
        cache.keys.append(self.fc(x))
        return torch.cat(cache.keys, 1).sum(1), cache

layer = Layer().eval()
cache = Cache()
with torch.inference_mode():
    for _ in range(3):
        layer(torch.randn(2, 1, 8), cache=cache)
        cache.keys = [torch.cat(cache.keys, 1)]
"""


def test_tensors_inside_objects_are_inputs(capture: Run) -> None:
    done = capture(CACHE, "layer")
    assert done.checked["difference"] == 0.0
    reference = opened(done.folder)
    assert [tuple(x.shape) for x in reference.inputs(0)] == [(2, 1, 8), (2, 1, 8)]
    total, added = reference.model(0)(*reference.inputs(0))
    assert total.shape == (2, 8)
    assert added.shape == (2, 1, 8)
    assert not done.manifest["objects"]


def test_workers_of_a_data_loader_do_not_record(capture: Run) -> None:
    script = """
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
    assert capture(SMALL + script, "net.part").manifest["calls"] == 2


def test_the_list_shows_shapes_calls_and_shares(
    python: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = listed(SMALL + "for n in (2, 2, 3):\n    net(torch.ones(n, 8))\n", python)
    found = {row["name"]: row for row in rows(answer)}
    assert set(found) == {"net", "net.part", "net.part.fc"}
    assert found["net.part"]["calls"] == 3
    assert found["net.part"]["shapes"] == [["float32[2,8]", 2], ["float32[3,8]", 1]]
    assert 0 < found["net.part"]["share"] <= found["net"]["share"] <= 1
    assert "net.part.fc" in "\n".join(table(answer))
    answer = listed(SMALL + "net(torch.ones(2, 8))\n", python)
    assert "of its only step, warm-up included" in "\n".join(table(answer))


def test_stop_ends_the_script_after_the_calls(capture: Run) -> None:
    script = SMALL + "while True:\n    net(torch.ones(2, 8))\n"
    assert capture(script, "net.part", calls=3, stop=True).manifest["calls"] == 3


WRAPPED = """
import torch
from torch import nn

class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.fc(x))

class Wrapper(nn.Module):
    def __init__(self):
        super().__init__()
        self.module = Part()

    def forward(self, x):
        return self.module(x) + 1

def main():
    local = Part()
    for _ in range(3):
        local(torch.ones(2, 8))

net, own = Part(), Wrapper()
model = nn.DataParallel(net)
inner = net.fc
for _ in range(4):
    model(torch.ones(2, 8))
own(torch.ones(2, 8))
main()
"""


@pytest.mark.parametrize(
    ("name", "kind", "calls"),
    [
        ("model", "Part", 4),
        ("net", "Part", 4),
        ("net.fc", "Linear", 4),
        ("inner", "Linear", 4),
        ("own", "Wrapper", 1),
        ("own.module", "Part", 1),
        ("local", "Part", 3),
        ("local.fc", "Linear", 3),
    ],
)
def test_a_variable_names_the_module_that_it_holds(
    name: str, kind: str, calls: int, capture: Run
) -> None:
    done = capture(WRAPPED, name)
    assert done.manifest["class"].rpartition(".")[2] == kind
    assert done.manifest["calls"] == calls


def test_a_wrapper_is_not_listed(tmp_path: Path, python: list[str], monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    counts = {row["name"]: row["calls"] for row in rows(listed(WRAPPED, python))}
    assert counts == {"model": 4, "model.fc": 4, "own": 1, "own.module": 1, "own.module.fc": 1} | {
        "Part": 3,
        "Part.fc": 3,
    }


REGISTRY = """
import torch
from torch import nn

FUNCTIONS = {}
LATER = {}
SEEN = set()

def register(function):
    FUNCTIONS[function.__name__] = function
    SEEN.add(function)
    return function

@register
def squared(x):
    return x * x

def halved(x):
    return x / 2

LATER["halved"] = halved

class Net(nn.Module):
    def forward(self, x):
        return LATER["halved"](FUNCTIONS["squared"](x)) + len(SEEN)

net = Net()
net(torch.ones(2, 8))
"""


def test_functions_in_a_registry_are_part_of_the_task(capture: Run) -> None:
    assert capture(REGISTRY, "net").checked["difference"] == 0.0
