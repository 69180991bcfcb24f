"""fp64 convolutions of the oracle: which implementation computes them, and the memory it takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cuagent.task import Device, load_task, open_reference
from cuagent.verify.memory_plan import MemoryPlan
from cuagent.verify.oracle import convolutions, describe
from cuagent.verify.oracle.convolutions import (
    LEAST_LIMIT,
    MARGIN,
    MOST_ELEMENTS,
    Convolutions,
    columns_bytes,
)
from cuagent.verify.trace.hooks import intercept_operators

MEASURED = Path(__file__).parents[2] / "docs/measurements/fp64-convolutions-h200.json"
GIB = 1 << 30


def columns_of(layer: nn.Module, shape: list[int]) -> int:
    """Return `columns_bytes` of a layer's convolution in fp64, without computing it."""
    found: list[int] = []

    def call(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if function.overloadpacket.__name__ == "convolution":
            found.append(columns_bytes(args))
        return function(*args, **kwargs)

    with torch.no_grad(), intercept_operators(call):
        layer.double().to("meta")(torch.empty(shape, dtype=torch.float64, device="meta"))
    (only,) = found
    return only


@pytest.mark.parametrize("row", json.loads(MEASURED.read_text())["rows"], ids=lambda r: r["layer"])
def test_columns_cover_the_measured_memory(row: dict[str, Any]) -> None:
    """The script holds two outputs; what exceeds cuDNN's peak are the columns, the vector of ones
    that a bias takes, and cuBLAS's workspace of 32 MiB in the first row."""
    stated = columns_of(eval(row["layer"], {"nn": nn}), row["input"])
    taken = row["native"]["peak_bytes"] - row["cudnn"]["peak_bytes"]
    assert taken <= stated
    assert stated <= 2.0 * taken, "no more than MARGIN and rounding above"
    assert stated or row["native"]["seconds"] > 0.99 * row["cudnn"]["seconds"], "groups"


def test_batch_of_small_samples_and_columns_beyond_32_bits_are_for_cudnn() -> None:
    """Each sample takes three launches, so a batch of small ones is slower."""
    small = nn.Conv2d(3, 6, 5)
    assert columns_of(small, [4096, 3, 32, 32]) == 0
    assert columns_of(small, [4, 3, 1024, 1024]) > 0
    assert columns_of(nn.ConvTranspose2d(64, 64, 3), [512, 64, 32, 32]) > 0, "slower with cuDNN"
    wide = nn.Conv2d(64, 64, 11, bias=False)
    side = int((MOST_ELEMENTS / (64 * 121)) ** 0.5) + 20
    assert columns_of(wide, [1, 64, side, side]) == 0


class Flags:
    """torch's cuDNN flags while each convolution runs: (dtype, enabled, benchmark)."""

    def __init__(self) -> None:
        self.seen: list[tuple[torch.dtype, bool, bool]] = []

    def __call__(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if function.overloadpacket.__name__ == "convolution":
            enabled, benchmark = torch._C._get_cudnn_enabled(), torch._C._get_cudnn_benchmark()
            self.seen.append((args[0].dtype, enabled, benchmark))
        return function(*args, **kwargs)


@pytest.fixture
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolutions, "LEAST_FLOPS", {False: 0, True: 0})


@pytest.mark.usefixtures("every_size")
@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("benchmark", [True, False])
def test_flags_of_the_process_decide_nothing_and_are_kept(enabled: bool, benchmark: bool) -> None:
    layer, x = nn.Conv2d(2, 2, 3), torch.randn(1, 2, 8, 8)
    flags, chosen = Flags(), Convolutions(1 << 20)
    before = torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark
    try:
        torch._C._set_cudnn_enabled(enabled)
        torch._C._set_cudnn_benchmark(benchmark)
        with torch.no_grad(), intercept_operators(flags), chosen.native():
            layer(x)
            layer.double()(x.double())
            chosen.limit = LEAST_LIMIT
            layer(x.double())
        after = torch._C._get_cudnn_enabled(), torch._C._get_cudnn_benchmark()
    finally:
        torch._C._set_cudnn_enabled(before[0])
        torch._C._set_cudnn_benchmark(before[1])
    assert after == (enabled, benchmark)
    assert flags.seen == [
        (torch.float32, enabled, benchmark),  # not the oracle's precision: left alone
        (torch.float64, False, False),
        (torch.float64, True, False),  # too large: cuDNN, but the same algorithm always
    ]
    assert chosen.memory == int(MARGIN * 2 * 9 * 36 * 8)


@pytest.mark.usefixtures("every_size")
def test_convolution_that_does_not_fit_is_left_to_cudnn() -> None:
    tried: list[bool] = []

    def call(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if function.overloadpacket.__name__ == "convolution":
            tried.append(torch._C._get_cudnn_enabled())
            if not tried[-1]:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return function(*args, **kwargs)

    layer, x = nn.Conv2d(2, 2, 3).double(), torch.randn(1, 2, 8, 8, dtype=torch.float64)
    chosen = Convolutions(1 << 20)
    with torch.no_grad():
        right = layer(x)
        with intercept_operators(call), chosen.native():
            assert torch.equal(layer(x), right)
            layer(x)
    assert tried == [False, True, True], "not tried a second time"


def test_reference_without_convolutions_is_not_intercepted() -> None:
    chosen = Convolutions(1 << 20)
    with torch.no_grad(), chosen.native():
        nn.Linear(2, 2).double()(torch.ones(1, 2, dtype=torch.float64))
    chosen.end_search()
    assert chosen.limit == 0
    with torch.no_grad(), chosen.native():
        assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


SOURCE = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.ConvTranspose2d(2, 3, 3)
    def forward(self, x):
        return self.layer(x)
def get_inputs():
    return [torch.randn(2, 2, 6, 6)]
def get_init_inputs():
    return []
"""


@pytest.mark.usefixtures("every_size")
@pytest.mark.parametrize("scarce", [False, True])
def test_plan_knows_the_columns_unless_memory_is_scarce(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scarce: bool
) -> None:
    """The oracle of a CPU task, made to choose as on a GPU."""
    (tmp_path / "task.py").write_text(SOURCE)
    task = load_task(tmp_path / "task.py", device="cpu")
    made: list[Convolutions] = []

    def on_gpu(limit: int = 0, **settings: bool) -> Convolutions:
        made.append(Convolutions(1 << 20))
        return made[-1]

    monkeypatch.setattr(describe, "Convolutions", on_gpu)
    if scarce:
        monkeypatch.setattr(describe, "MOST_PLANNED", 0.0)
    with torch.no_grad():
        described = describe.describe(open_reference(task))
    columns = int(MARGIN * 3 * 9 * 36 * 8)
    assert described.facts.columns == (0 if scarce else columns)
    assert made[-1].limit == (LEAST_LIMIT if scarce else 1 << 20)
    plan = MemoryPlan.of(described.facts, Device.CPU)
    without = MemoryPlan(**{**vars(plan), "columns": 0})
    assert plan.verdict - without.verdict == described.facts.columns


def test_every_stage_with_an_fp64_run_counts_the_columns() -> None:
    def stages(columns: int, slices: int) -> dict[str, int]:
        sizes = {"inputs": GIB, "outputs": GIB, "precise": 2 * GIB}
        return MemoryPlan(**sizes, columns=columns, slices=slices, large=True).stages

    for slices in (0, 8):
        more, less = stages(GIB, slices), stages(0, slices)
        grown = {name for name in more if more[name] - less[name] == GIB}
        assert grown == {"describing", "judging"}


@pytest.mark.gpu
def test_native_results_equal_cudnns_on_the_gpu() -> None:
    torch.manual_seed(0)
    layer = nn.ConvTranspose3d(32, 16, 3, stride=2).cuda().double()
    x = torch.randn(2, 32, 16, 16, 16, device="cuda", dtype=torch.float64)
    chosen = Convolutions(GIB)
    with torch.no_grad():
        right = layer(x)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        with chosen.native():
            found: Tensor = layer(x)
        taken = torch.cuda.max_memory_allocated() - held - found.nbytes
    assert chosen.memory > 0
    assert taken <= chosen.memory + (32 << 20), "cuBLAS's workspace"
    assert (found - right).abs().max() <= 1e-14 * right.abs().max()
    assert torch.backends.cudnn.enabled


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(6, 6, 3, padding=2, dilation=2, groups=6), (2, 6, 11)),
        (
            nn.Conv2d(5, 5, (3, 5), stride=(2, 1), padding=(1, 0), groups=5, bias=False),
            (3, 5, 9, 8),
        ),
        (nn.Conv2d(4, 4, 3, stride=3, groups=4), (4, 10, 10)),
        (nn.Conv3d(3, 3, 2, stride=2, padding=1, groups=3), (2, 3, 5, 6, 7)),
    ],
    ids=str,
)
def test_depthwise_convolution_on_a_cpu_is_a_sum_of_shifted_inputs(
    layer: nn.Module, shape: tuple[int, ...]
) -> None:
    layer, x = layer.double(), torch.randn(shape, dtype=torch.float64)
    chosen = Convolutions(LEAST_LIMIT, only_depthwise=True)
    with torch.no_grad():
        right = layer(x)
        with chosen.native():
            found = layer(x)
            x.view(-1)[0] = torch.nan
            spoilt = layer(x)
        torch.testing.assert_close(found, right, rtol=1e-13, atol=1e-13)
        assert torch.equal(spoilt.isnan(), layer(x).isnan())
    chosen.end_search()
    assert chosen.count == 2
    assert chosen.limit


def test_depthwise_convolution_is_one_operator_for_perturbations() -> None:
    layer, x = nn.Conv2d(4, 4, 3, groups=4).double(), torch.ones(1, 4, 5, 5).double()
    seen: list[str] = []
    chosen = Convolutions(LEAST_LIMIT, only_depthwise=True)

    def see(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        seen.append(function.overloadpacket.__name__)
        return function(*args, **kwargs)

    with torch.no_grad(), intercept_operators(see), chosen.native():
        layer(x)
    assert seen == ["depthwise"]


@pytest.mark.parametrize(
    "layer",
    [nn.Conv2d(4, 4, 3), nn.Conv2d(4, 8, 3, groups=4), nn.ConvTranspose2d(4, 4, 3, groups=4)],
)
def test_other_convolutions_on_a_cpu_are_torchs(layer: nn.Module) -> None:
    chosen = Convolutions(LEAST_LIMIT, only_depthwise=True)
    with torch.no_grad(), chosen.native():
        layer.double()(torch.ones(1, 4, 5, 5, dtype=torch.float64))
    chosen.end_search()
    assert chosen.limit == 0, "no operator is intercepted any more"
