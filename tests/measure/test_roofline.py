"""Compulsory bytes and operations against hand counts, and suspect times."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cuagent.measure.roofline.ceilings import Ceilings
from cuagent.measure.roofline.model import Roofline, Work
from cuagent.measure.roofline.work import count_calls, count_work, matrix_unit
from cuagent.task.load import load_task
from cuagent.task.reference import Reference, open_reference

CEILINGS = Ceilings("a device", copy=1e9, fp32=1e9, tf32=4e9, bf16=8e9, cache_bytes=1000)


def reference(folder: Path, forward: str, init: str, inputs: str, precision: str) -> Reference:
    source = f"""
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, {forward.partition(":")[0]}):
        return {forward.partition(":")[2]}
"""
    path = folder / "task.py"
    path.write_text(source)
    return open_reference(load_task(path, inputs=inputs, device="cpu", precision=precision))


def roofline(counted: Reference, ceilings: Ceilings) -> Roofline:
    work = count_work(counted)
    return Roofline(work, ceilings, matrix_unit(counted, work))


@pytest.mark.parametrize(
    ("forward", "init", "inputs", "read", "written", "flops"),
    [
        ("x: torch.relu(x) + 1", "pass", "f32[8,4]", 128, 128, 0),
        # a layer that is never called is not read
        (
            "x: self.used(x)",
            "self.used, self.unused = nn.Linear(4, 16), nn.Linear(9, 9)",
            "f32[8,4]",
            8 * 4 * 4 + 16 * 4 * 4 + 16 * 4,
            8 * 16 * 4,
            2 * 8 * 4 * 16,
        ),
        # both halves of a chunk are needed; a slice is not the whole tensor
        ("x: x.chunk(2, -1)[0] * x.chunk(2, -1)[1]", "pass", "f32[8,4]", 128, 64, 0),
        ("x: x[:, :1] * 2", "pass", "f32[8,4]", 32, 32, 0),
        # a gather reads only the requested rows
        (
            "i: self.rows(i)",
            "self.rows = nn.Embedding(1000, 8)",
            "i64[3] < 1000",
            3 * 8 + 3 * 8 * 4,
            3 * 8 * 4,
            0,
        ),
        # so do a bag and a loss; a repeated row is cached
        (
            "i: self.bags(i)",
            "self.bags = nn.EmbeddingBag(1000, 8)",
            "i64[2,4] < 1",
            2 * 4 * 8 + 8 * 4,
            2 * 8 * 4,
            0,
        ),
        ("x, i: x[i.view(-1)] * 2", "pass", "f32[9,4], i64[3,2] < 1", 6 * 8 + 16, 6 * 16, 0),
        ("x, i: x.gather(0, i)", "pass", "f32[9,4], i64[3,4] < 1", 12 * 8 + 16, 12 * 4, 0),
        # computed indices are unknown, so all may be the same row
        ("x, i: x[i + 1]", "pass", "f32[9,4], i64[6] < 1", 6 * 8, 6 * 16, 0),
        (
            "x, i: nn.functional.nll_loss(x, i)",
            "pass",
            "f32[8,100], i64[8] < 100",
            8 * 4 + 8 * 8,
            4,
            0,
        ),
        # a stride wider than the kernel skips elements
        (
            "x: self.conv(x)",
            "self.conv = nn.Conv2d(3, 8, 1, 2, bias=False)",
            "f32[2,3,10,10]",
            2 * 3 * 25 * 4 + 8 * 3 * 4,
            2 * 8 * 25 * 4,
            2 * 2 * 8 * 25 * 3,
        ),
        # unused results need no reads; changes of a buffer do
        (
            "x: ((self.w * 2).sum(), x + 1)[1]",
            "self.w = nn.Parameter(torch.ones(9))",
            "f32[8,4]",
            128,
            128,
            0,
        ),
        (
            "x: (self.n.add_(x.sum()), x[:1] * 2)[1]",
            "self.register_buffer('n', torch.ones(1))",
            "f32[8,4]",
            128 + 4,
            16,
            0,
        ),
        # an expanded output is written once, a returned weight not at all
        ("x: x.sum(1, keepdim=True).expand(8, 99)", "pass", "f32[8,4]", 128, 32, 0),
        ("x: (x + 1, self.w)", "self.w = nn.Parameter(torch.ones(9))", "f32[8,4]", 128, 128, 0),
        (
            "x: self.conv(x)",
            "self.conv = nn.Conv2d(3, 8, 3, bias=False)",
            "f32[2,3,10,10]",
            2 * 3 * 100 * 4 + 8 * 27 * 4,
            2 * 8 * 64 * 4,
            2 * 2 * 8 * 64 * 27,
        ),
        # a view of the input writes nothing
        ("x: x.t()", "pass", "f32[8,4]", 0, 0, 0),
    ],
)
def test_work_equals_a_hand_count(
    tmp_path: Path, forward: str, init: str, inputs: str, read: int, written: int, flops: int
) -> None:
    work = count_work(reference(tmp_path, forward, init, inputs, "match"))
    assert (work.bytes_in, work.bytes_out, work.matrix_flops) == (read, written, flops)


def test_module_that_reads_values_is_counted_on_real_tensors(tmp_path: Path) -> None:
    forward = "x: x * 2 if float(x.sum()) != 0.125 else x"
    work = count_work(reference(tmp_path, forward, "pass", "f32[8,4]", "match"))
    assert (work.bytes_in, work.bytes_out) == (128, 128)


@pytest.mark.parametrize(("precision", "seconds"), [("match", 1.024e-6), ("tf32", 0.256e-6)])
def test_compute_floor_uses_the_admitted_rate(
    tmp_path: Path, precision: str, seconds: float
) -> None:
    taken = reference(tmp_path, "x: x @ x", "pass", "f32[8,8]", precision)
    assert roofline(taken, CEILINGS).compute_seconds == pytest.approx(seconds)


def test_time_below_the_memory_floor_is_suspect_outside_caches(
    tmp_path: Path,
) -> None:
    big = roofline(reference(tmp_path, "x: x + 1", "pass", "f32[1000]", "match"), CEILINGS)
    assert big.bound == "memory"
    assert big.floor == pytest.approx(8e-6)
    assert big.suspect(5e-6)
    assert not big.suspect(8e-6)
    assert big.share(16e-6) == pytest.approx(0.5)
    small = roofline(reference(tmp_path, "x: x + 1", "pass", "f32[100]", "match"), CEILINGS)
    assert isinstance(small, Roofline)
    assert not small.suspect(1e-9)


GEMM_SUM = "x: (x @ self.w.T / 2).sum(1, keepdim=True) * 1.5"


def test_weights_that_a_kernel_may_prepare_once_make_no_time_suspect(tmp_path: Path) -> None:
    """A kernel that multiplies with the sum of the weight's rows never reads the weight itself."""
    init = "self.w = nn.Parameter(torch.ones(500, 100))"
    roof = roofline(reference(tmp_path, GEMM_SUM, init, "f32[10,100]", "match"), CEILINGS)
    inputs, outputs = 10 * 100 * 4, 10 * 4
    assert (roof.work.bytes_inputs, roof.work.bytes_out) == (inputs, outputs)
    assert roof.work.bytes == inputs + outputs + 500 * 100 * 4
    assert roof.least_seconds == pytest.approx((inputs + outputs) / 1e9)
    assert roof.memory_seconds > 50 * roof.least_seconds, "the roofline includes the weight"
    assert not roof.suspect(4e-6)
    assert roof.suspect(3e-6), "less than a read of the inputs takes"
    assert roof.timing_floor.memory == pytest.approx(0.9 * roof.least_seconds)


def test_a_constant_tensor_is_no_input(tmp_path: Path) -> None:
    init = "self.table = torch.ones(1000)"
    work = count_work(reference(tmp_path, "x: x + self.table.sum()", init, "f32[8]", "match"))
    assert (work.bytes_in, work.bytes_inputs) == (8 * 4 + 4000, 8 * 4)


def test_inputs_that_fit_the_cache_count_half_where_the_cache_is_overwritten(
    tmp_path: Path,
) -> None:
    """As on a GPU, where a timed call follows a write of more than the caches."""
    counted = reference(tmp_path, "x: x.sum()", "pass", "f32[400]", "match")
    roof = roofline(counted, CEILINGS)
    assert roof.work.bytes < 2 * CEILINGS.cache_bytes
    assert roof.least_seconds == 0, "on the CPU the inputs may still be in the cache"
    assert replace(roof, evicts=True).least_seconds == pytest.approx(0.8e-6)
    written = roofline(reference(tmp_path, "x: x + 1", "pass", "f32[100]", "match"), CEILINGS)
    assert replace(written, evicts=True).least_seconds == pytest.approx(0.2e-6), (
        "the output may stay in the cache"
    )


@pytest.mark.parametrize(
    ("init", "forward", "inputs", "flops"),
    [
        (  # both layers of an LSTM: four gates, of inputs and of states, at 4 x 16 positions
            "self.rnn = nn.LSTM(64, 128, 2, batch_first=True)",
            "x: self.rnn(x)[0]",
            "f32[4,16,64]",
            2 * 4 * 128 * ((64 + 128) + (128 + 128)) * 4 * 16,
        ),
        ("self.rnn = nn.GRU(8, 4)", "x: self.rnn(x)[0]", "f32[5,3,8]", 2 * 3 * 4 * (8 + 4) * 5 * 3),
        (
            "pass",
            "x: nn.functional.scaled_dot_product_attention(x, x, x)",
            "f32[2,3,16,8]",
            2 * (2 * 3 * 16) * 16 * (8 + 8),
        ),
    ],
)
def test_recurrent_layers_and_attention_are_counted(
    tmp_path: Path, init: str, forward: str, inputs: str, flops: int
) -> None:
    work = count_work(reference(tmp_path, forward, init, inputs, "match"))
    assert work.matrix_flops == flops
    assert work.uncounted == ()


@pytest.mark.parametrize(
    ("init", "forward"),
    [
        ("self.rnn = nn.GRU(8, 4, 2, bidirectional=True)", "x: self.rnn(x)[0]"),
        ("self.rnn = nn.LSTM(8, 6, 2, batch_first=True)", "x: self.rnn(x)[1][1]"),
        ("self.rnn = nn.RNN(8, 6)", "x: torch.relu(self.rnn(x)[0])"),
    ],
)
def test_a_recurrent_module_is_counted_without_running_its_steps(
    tmp_path: Path, init: str, forward: str
) -> None:
    counted = reference(tmp_path, forward, init, "f32[5,3,8]", "match")
    work, real = count_work(counted), count_calls(counted.model(0), counted.inputs(0))
    assert sum(w.calls for w in work.operators.values()) <= 4
    for name in ("bytes_in", "bytes_inputs", "bytes_out", "matrix_flops"):
        assert getattr(work, name) == getattr(real, name), name


def test_a_packed_sequence_is_counted_by_its_run(tmp_path: Path) -> None:
    """torch's function for it has as many arguments as the one for a padded sequence."""
    init = "self.rnn = nn.GRU(8, 4)"
    sizes = "torch.tensor([3, 3, 2, 1])"
    forward = (
        f"x: torch._VF.gru(x, {sizes}, x.new_zeros(1, 3, 4), self.rnn._flat_weights,"
        " True, 1, 0.0, False, False)[0]"
    )
    counted = reference(tmp_path, forward, init, "f32[9,8]", "match")
    work = count_work(counted)
    assert work.matrix_flops == 2 * 3 * 4 * (8 + 4) * 9
    assert work.bytes_out == 9 * 4 * 4


def test_unread_data_is_neither_traffic_nor_arithmetic(
    tmp_path: Path,
) -> None:
    init = "self.bags = nn.EmbeddingBag(10000, 8, mode='sum')"
    roof = roofline(reference(tmp_path, "i: self.bags(i)", init, "i64[2,4]", "match"), CEILINGS)
    assert roof.floor < 1e-6
    view = roofline(reference(tmp_path, "x: x.t()", "pass", "f32[8,4]", "match"), CEILINGS)
    assert view.line(1e-6) == "no floor: nothing has to be moved or computed"
    assert not roof.suspect(1e-6)


def test_compute_floor_states_its_other_operations(tmp_path: Path) -> None:
    forward = "x: torch.tanh(torch.tanh(torch.tanh(torch.tanh(torch.tanh(x)))))"
    small = Ceilings("a device", copy=1e12, fp32=1e9, tf32=0.0, bf16=0.0)
    line = roofline(reference(tmp_path, forward, "pass", "f32[100]", "match"), small).line()
    assert "compute" in line
    assert "500 FLOP of other kinds" in line
    assert " 0 FLOP at" not in line, "it has no products"


def test_uncounted_arithmetic_is_reported(tmp_path: Path) -> None:
    work = count_work(reference(tmp_path, "x: torch.linalg.inv(x)", "pass", "f32[8,8]", "match"))
    assert work.uncounted
    line = Roofline(work, CEILINGS, "fp32").line()
    assert f"arithmetic of {work.uncounted[0]}" in line
    assert line.endswith("not counted")
    assert Work.from_json(json.loads(json.dumps(work.to_json()))) == work
