"""An exported kernel runs under the flags that it was verified under, and leaves the user's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from shares import slow_except

from cuagent.attempt import Attempt
from cuagent.package.folder import write_files
from cuagent.package.guarded import guarded_files
from cuagent.task import TorchSettings
from cuagent.task.task import Precision, Task
from cuagent.verify.domain import Domain, TensorForm

REFERENCE = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(64, 64, 3)
    def forward(self, x):
        return self.conv(x).relu()
"""
KERNEL = """
import torch
{imported}
seen = []
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(64, 64, 3)
        {constructed}
    def forward(self, x):
        b = torch.backends
        seen.append((b.cudnn.allow_tf32, b.cuda.matmul.allow_tf32, b.cudnn.benchmark))
        {called}
        return torch.nn.functional.conv2d(x, self.conv.weight, self.conv.bias).relu()
"""
NOTHING = '{"kind": "list", "items": []}'
PROGRAM = """
import sys, torch
sys.path.insert(0, {folder!r})
from fast import model_new
from fast.model_new_verified.flags import read_flags
b = torch.backends
b.cudnn.allow_tf32 = {users}
torch.set_float32_matmul_precision("high")
before = read_flags()
for _ in range(2):
    model = model_new.ModelNew().eval().to({device!r})
    assert read_flags() == before, (before, read_flags())
    for _ in range(2):
        try:
            with torch.no_grad():
                result = model(torch.ones(1, 64, 32, 32, device={device!r}))
        except KeyError:
            pass
        assert read_flags() == before, (before, read_flags())
inner = sys.modules["fast.model_new_verified.model_new"]
print(inner.seen)
"""
TF32 = "torch.backends.cudnn.allow_tf32 = True"


def exported(
    folder: Path, settings: TorchSettings | None, device: str = "cuda", **statements: str
) -> None:
    names = ("imported", "constructed", "called")
    text = KERNEL.format(**{name: statements.get(name, "pass") for name in names})
    init = f'{{"kind": "list", "items": [{NOTHING}, {{"kind": "dict", "keys": [], "items": []}}]}}'
    domain = Domain(
        device,
        ("x",),
        '{"kind": "list", "items": [{"kind": "tensor"}]}',
        (TensorForm("float32", (1, 64, 32, 32), (65536, 1024, 32, 1)),),
        init,
        settings,
    )
    task = Task(Path("net.py"), "Model", REFERENCE, precision=Precision.FP32)
    files = guarded_files(Attempt((("model_new.py", text),)), task, domain, "reference.py")
    # The flags of CUDA are read and set on a CPU too; only the device of the call is another.
    verified = files["model_new_verified/verified.json"].replace('"cuda"', '"cpu"')
    here = files | ({"model_new_verified/verified.json": verified} if device == "cuda" else {})
    write_files(here, folder / "fast")
    (folder / "fast" / "__init__.py").write_text("")


def seen_by(folder: Path, python: list[str], users: bool) -> str:
    program = PROGRAM.format(folder=str(folder), users=users, device="cpu")
    done = subprocess.run(
        [*python, "-c", program], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "RuntimeWarning" not in done.stderr, done.stderr
    return done.stdout.strip()


CASES = {
    "TF32 convolutions": (TorchSettings(), {}, False, (True, False, False)),
    "IEEE": (TorchSettings().with_ieee(), {}, True, (False, False, False)),
    "an earlier record": (None, {}, True, (False, False, False)),
    "set by its import": (TorchSettings().with_ieee(), {"imported": TF32}, False, None),
    "set by its constructor": (TorchSettings().with_ieee(), {"constructed": TF32}, False, None),
    "benchmark": (
        TorchSettings(),
        {"imported": "torch.backends.cudnn.benchmark = True"},
        False,
        (True, False, True),
    ),
    "left set by its call": (
        TorchSettings().with_ieee(),
        {"called": "torch.backends.cudnn.allow_tf32 = not torch.backends.cudnn.allow_tf32"},
        True,
        (False, False, False),
    ),
    "left set by its call, under equal flags": (
        TorchSettings("high", False, "tf32", "ieee", "ieee"),
        {"called": "torch.backends.cudnn.allow_tf32 = not torch.backends.cudnn.allow_tf32"},
        False,
        (False, True, False),
    ),
    "equal flags": (
        TorchSettings("high", False, "tf32", "ieee", "ieee"),
        {},
        False,
        (False, True, False),
    ),
    "raises": (TorchSettings(), {"called": "raise KeyError"}, False, (True, False, False)),
}


@pytest.mark.parametrize(
    "name",
    slow_except(CASES, "IEEE", "set by its import", "left set by its call", "raises"),
)
def test_kernel_runs_under_its_flags_and_the_users_are_left(
    name: str, tmp_path: Path, python: list[str]
) -> None:
    settings, statements, users, seen = CASES[name]
    exported(tmp_path, settings, **statements)
    wanted = seen or (True, False, False)
    assert seen_by(tmp_path, python, users) == str([wanted] * 4)


@pytest.mark.gpu
def test_exported_convolution_has_the_same_bits_under_the_opposite_flags(
    tmp_path: Path, python: list[str]
) -> None:
    exported(tmp_path, TorchSettings(), device="cuda")
    (tmp_path / "fast/model_new_verified/verified.json").write_text(
        (tmp_path / "fast/model_new_verified/verified.json").read_text().replace('"cpu"', '"cuda"')
    )
    program = PROGRAM.format(folder=str(tmp_path), users=False, device="cuda") + (
        "torch.manual_seed(0)\n"
        "x = torch.randn(1, 64, 32, 32, device='cuda')\n"
        "with torch.no_grad():\n"
        "    off = model(x); b.cudnn.allow_tf32 = True; on = model(x)\n"
        "    b.cudnn.allow_tf32 = False\n"
        "    ieee = torch.conv2d(x, model.conv.weight, model.conv.bias).relu()\n"
        "assert torch.equal(off, on), (off - on).abs().max()\n"
        "assert not torch.equal(off, ieee)\n"
    )
    done = subprocess.run([*python, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
