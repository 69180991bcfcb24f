"""torch's settings: read in one process, applied in another, restored around a call.

Each test runs in a separate process, because the settings belong to the process.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from cuagent.task import Device, Precision, TorchSettings, load_task
from cuagent.task.settings import candidate_settings
from cuagent.task.task import recorded_precision

HEAD = """
import json, sys, torch
from cuagent.task import TorchSettings, read_settings
from cuagent.task.flags import LEAVES, flags_set, read_flags, set_flags
b = torch.backends
"""
NEW = 'hasattr(torch.backends, "fp32_precision")'
WRITES = {
    "defaults": "pass",
    "old": 'torch.set_float32_matmul_precision("high")',
    "medium": 'torch.set_float32_matmul_precision("medium")',
    "switches": "b.cuda.matmul.allow_tf32 = True; b.cudnn.allow_tf32 = False",
    "new": 'b.cuda.matmul.fp32_precision = "tf32"',
    "convolution": 'b.cudnn.conv.fp32_precision = "ieee"',
    "generic": 'b.fp32_precision = "ieee"',
    "mixed": 'b.fp32_precision = "tf32"; b.cudnn.allow_tf32 = True; b.fp32_precision = "ieee"',
    "cpu": 'b.mkldnn.matmul.fp32_precision = "bf16"',
    "others": (
        "torch.set_default_dtype(torch.float64); b.cudnn.benchmark = True;"
        " b.cuda.matmul.allow_bf16_reduced_precision_reduction = False;"
        " torch.use_deterministic_algorithms(True, warn_only=True)"
    ),
}
"""Statements of a user's file. Some leave the old and the new interface in disagreement."""


@pytest.fixture
def output(python: list[str]):
    """Return a function that runs a program and returns the JSON that it prints."""

    def run(program: str) -> object:
        command = [*python, "-c", HEAD + program]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    return run


@pytest.mark.parametrize("statement", WRITES.values(), ids=WRITES)
def test_settings_read_in_one_process_are_equal_after_they_are_applied_in_another(
    statement: str, output
) -> None:
    read = output(f"{statement}\nprint(json.dumps(read_settings().to_json()))")
    applied = f"TorchSettings.from_json(json.loads({json.dumps(read)!r})).apply()"
    again = output(f"{applied}\nprint(json.dumps(read_settings().to_json()))")
    effect = {"none": "ieee"}
    for name, value in read.items():
        if name == "float32_matmul_precision" and value is None:
            continue  # torch refuses to read it in the user's process
        if name == "cudnn_allow_tf32" and value is None:
            continue
        got = again[name]
        assert effect.get(str(got), got) == effect.get(str(value), value), name


@pytest.mark.parametrize("statement", WRITES.values(), ids=WRITES)
def test_flags_are_the_users_after_a_block_that_raises(statement: str, output) -> None:
    program = f"""
{statement}
seen = [read_flags()]
for wanted in TorchSettings().with_ieee(), TorchSettings().with_tf32():
    try:
        with flags_set(wanted.flags):
            seen.append(read_flags())
            raise KeyError
    except KeyError:
        pass
    seen.append(read_flags())
print(json.dumps(seen))
"""
    before, ieee, between, tf32, after = output(program)
    assert {ieee[leaf] for leaf in ("matmul", "conv", "rnn")} <= {"ieee", "none"}
    assert {tf32[leaf] for leaf in ("matmul", "conv", "rnn")} == {"tf32"}
    assert before == between == after


@pytest.mark.parametrize(
    "statement",
    [
        'torch.set_float32_matmul_precision("medium"); b.cuda.matmul.allow_tf32 = True',
        'torch.set_float32_matmul_precision("medium"); b.cuda.matmul.allow_tf32 = False',
        'torch.set_float32_matmul_precision("high"); b.cuda.matmul.allow_tf32 = False',
        'b.cuda.matmul.allow_tf32 = False; b.fp32_precision = "tf32"',
    ],
)
def test_switch_that_was_readable_stays_readable(statement: str, output) -> None:
    """torch refuses to read the precision of products here, but not the older switch for them."""
    program = f"""
if not {NEW}:
    print(json.dumps([0])); sys.exit()
{statement}
seen = [b.cuda.matmul.allow_tf32]
for wanted in TorchSettings().with_ieee(), TorchSettings().with_tf32(), TorchSettings():
    with flags_set(wanted.flags):
        pass
    seen.append(b.cuda.matmul.allow_tf32)
print(json.dumps(seen))
"""
    assert len(set(output(program))) == 1


OLD_TORCH = "del torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter"
"""Leaves the interface of torch before 2.9."""


@pytest.mark.parametrize("name", ["defaults", "old", "medium", "switches"])
def test_flags_are_set_and_restored_by_the_old_switches_alone(name: str, output) -> None:
    program = f"""
{OLD_TORCH}
from cuagent.task.flags import flags_test
{WRITES[name]}
seen = [read_flags()]
for wanted in TorchSettings().with_ieee(), TorchSettings().with_tf32():
    with flags_set(wanted.flags):
        seen.append(read_flags() | {{"same": flags_test(wanted.flags)()}})
    seen.append(read_flags())
print(json.dumps(seen))
"""
    before, ieee, between, tf32, after = output(program)
    assert (ieee["matmul"], ieee["conv"], ieee["cpu_matmul"]) == ("ieee",) * 3
    assert (tf32["matmul"], tf32["conv"], tf32["cpu_matmul"]) == ("tf32", "tf32", "ieee")
    assert ieee["same"] is tf32["same"] is True
    assert before == between == after


def test_old_switches_are_readable_where_tf32_is_set_because_autotuning_reads_them(output) -> None:
    program = """
with flags_set(TorchSettings().with_tf32().flags):
    print(json.dumps([torch.get_float32_matmul_precision(), b.cuda.matmul.allow_tf32]))
"""
    assert output(program) == ["high", True]


def test_a_leaf_that_followed_the_level_above_follows_it_again(output) -> None:
    program = f"""
if not {NEW}:
    print(json.dumps(["tf32"] * 2)); sys.exit()
b.fp32_precision = "ieee"
with flags_set(TorchSettings().with_tf32().flags):
    pass
b.fp32_precision = "tf32"
print(json.dumps([b.cuda.matmul.fp32_precision, b.cudnn.conv.fp32_precision]))
"""
    assert output(program) == ["tf32", "tf32"]


def test_nothing_is_written_where_the_settings_have_the_same_effect(output) -> None:
    program = f"""
with flags_set(TorchSettings().flags):
    pass
if {NEW}:
    b.fp32_precision = "ieee"  # a convolution that was never set still follows
    print(json.dumps(b.cudnn.conv.fp32_precision))
else:
    print(json.dumps("ieee"))
"""
    assert output(program) == "ieee"


def test_default_settings_are_those_of_a_fresh_process(output) -> None:
    read = TorchSettings.from_json(output("print(json.dumps(read_settings().to_json()))"))
    assert replace(read, fp16_reduction=(), bf16_reduction=()) == replace(
        TorchSettings(), fp16_reduction=(), bf16_reduction=()
    )
    assert all(read.fp16_reduction + read.bf16_reduction)


def test_line_names_the_arithmetic_on_the_device() -> None:
    own = TorchSettings()
    assert own.line(Device.CUDA) == "fp32 products, TF32 convolutions and RNNs"
    assert own.line(Device.CPU) == "fp32 products, convolutions and RNNs"
    assert own.with_tf32().line(Device.CUDA) == "TF32 products, convolutions and RNNs"
    assert own.with_ieee().line(Device.CUDA) == "fp32 products, convolutions and RNNs"
    off = replace(own, environment=(("NVIDIA_TF32_OVERRIDE", "0"),), cudnn_benchmark=True)
    assert off.line(Device.CUDA) == (
        "fp32 products, convolutions and RNNs, cudnn.benchmark on, NVIDIA_TF32_OVERRIDE=0"
    )
    assert off.unit("conv", Device.CUDA) == 2.0**-24


def test_cpu_settings_count_only_where_the_processor_follows_them(output) -> None:
    read = TorchSettings.from_json(
        output("""
torch.set_float32_matmul_precision("medium")
a, b = torch.randn(2, 256, 256)
y = a.double() @ b.double()
coarse = bool(((a @ b).double() - y).norm() > 1e-4 * y.norm())
print(json.dumps(read_settings().to_json() | {"cpu_coarse": [read_settings().cpu_coarse, coarse]}))
""")
    )
    measured, here = read.cpu_coarse  # type: ignore[misc]
    assert measured is here
    unit = 2.0**-8 if here else 2.0**-24
    assert replace(read, cpu_coarse=here).unit("matmul", Device.CPU) == unit
    assert replace(read, cpu_coarse=True).unit("matmul", Device.CPU) == 2.0**-8


def test_candidate_gets_tf32_only_where_it_is_admitted() -> None:
    own = TorchSettings()
    assert candidate_settings(own, Precision.MATCH) == own
    assert candidate_settings(own, Precision.FP32).conv == "ieee"
    assert candidate_settings(own, Precision.TF32).matmul == "tf32"


def test_settings_are_a_part_of_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "task.py"
    path.write_text("class Model: ...\ndef get_inputs(): return []\n")
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    digests = {load_task(path, device="cpu", precision=precision).digest for precision in Precision}
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    digests |= {load_task(path, device="cpu", precision=p).digest for p in Precision}
    assert len(digests) == 2 * len(Precision)


def test_match_of_an_earlier_record_is_fp32_with_the_same_digest(tmp_path: Path) -> None:
    path = tmp_path / "task.py"
    path.write_text("class Model: ...\ndef get_inputs(): return []\n")
    earlier = replace(load_task(path, device="cpu", precision="match"), settings="")
    assert recorded_precision({"precision": "match"}) is Precision.FP32
    assert recorded_precision({"precision": "match", "settings": "2"}) is Precision.MATCH
    assert recorded_precision({"precision": "tf32"}) is Precision.TF32
    now = load_task(path, device="cpu", precision="fp32")
    assert now.digest == earlier.digest != load_task(path, device="cpu").digest
