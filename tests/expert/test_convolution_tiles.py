"""Tiles of convolution kernels that a search tries (`convolutions.tiles`)."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from modules import LAYER_TASK  # type: ignore[import-not-found]

from cuagent.expert.candidate import make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.expert.convolutions.convolution import Convolution, Pool, Volume
from cuagent.expert.convolutions.phases import Axis
from cuagent.expert.convolutions.tiles import pointwise_tiles, tiles
from cuagent.expert.convolutions.together import stores_together
from cuagent.expert.graph.graph import Kind, Node
from cuagent.expert.options import Options
from cuagent.expert.products.tiles import Tile, with_registers
from cuagent.task import load_task

OP = "own F.conv2d({0}, {1}, stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1)"


def convolution(channels_in: int, channels_out: int, stride: int = 1, kernel: int = 3):
    """Return a float32 convolution with channels-last operands; transposed if it has a stride."""
    axis = Axis(64, 64 * stride, kernel, stride, 1, 1)
    node = Node("c", Kind.LIBRARY, OP, ("x", "w"), (8, channels_out, 64 * stride, 64 * stride))
    left = Volume("x", "float32", 64 * 64 * channels_in, 1, channels_in, 0)
    return Convolution(
        node, stride > 1, 8, channels_in, channels_out, (axis, axis), left, "w", None, (), {},
        ("c",), {"c": ()}, {"x": "float32", "w": "float32"},
    )  # fmt: skip


@pytest.mark.parametrize("channels", [16, 64, 128])
def test_no_tile_of_two_phases_is_too_small_for_wgmma(channels):
    conv = convolution(64, channels, stride=2)
    assert conv.pair == 1
    found = tiles(conv, 132)
    assert len(found) > 1
    assert all(tile.rows >= 64 for tile in found)


def test_exact_sum_of_128_columns_has_no_tile_that_spills_in_its_loop():
    conv = convolution(64, 128)
    found = tiles(conv, 132, "tf32x3")
    assert (128, 4) not in {(tile.rows, tile.warps) for tile in found}
    assert (found[0].rows, found[0].warps) == (128, 8)
    assert (tiles(conv, 132)[0].rows, tiles(conv, 132)[0].warps) == (128, 4), "in TF32"


def test_exact_sum_with_a_pool_has_small_tiles_first():
    pool = Pool(Node("p", Kind.POOL, "max", ("c",), (8, 128, 32, 32)), (2, 2), (32, 32), ())
    first = tiles(replace(convolution(64, 128), pool=pool), 132, "tf32x3")[0]
    assert (first.rows, first.warps) == (64, 4)


def test_merged_sum_of_128_columns_has_no_tile_that_spills():
    conv = convolution(3, 128)
    conv = replace(conv, left=replace(conv.left, channel=64 * 64, place=1))
    assert conv.merged
    found = tiles(conv, 132)
    assert [(tile.rows, tile.warps) for tile in found] == [(128, 8), (64, 4)]


@pytest.mark.parametrize(("reduces", "warps"), [(False, 4), (True, 8)])
def test_scaled_sum_of_128_columns_has_four_warps_unless_it_reduces(reduces, warps):
    conv = replace(convolution(64, 128), scale="s", reduces=reduces)
    first = tiles(conv, 132)[0]
    assert (first.rows, first.columns, first.depth) == (128, 128, 64)
    assert (first.warps, first.stages) == (warps, 3)


@pytest.mark.parametrize(("channels", "depth"), [(20, 32), (32, 32), (48, 64), (128, 64)])
def test_a_step_of_the_sum_is_no_deeper_than_the_channels(channels, depth):
    found = tiles(replace(convolution(channels, 64), scale="s"), 132)
    assert {tile.depth for tile in found} == {depth}


def test_a_step_of_a_pointwise_sum_is_no_deeper_than_the_channels():
    found = tiles(convolution(32, 128, kernel=1), 132)
    assert max(tile.depth for tile in found) == 32


@pytest.mark.parametrize(
    ("stride", "channels", "operand", "merged", "together"),
    [
        (5, 32, 2, False, True),
        (5, 1024, 2, False, False),
        (2, 8, 2, False, False),
        (1, 8, 2, False, False),
        (4, 24, 2, True, True),
        (4, 24, 4, True, False),
    ],
)
def test_all_outputs_of_a_line_are_stored_together_if_stores_take_longer_than_products(
    stride, channels, operand, merged, together
):
    axes = (Axis(64, 64 * stride, 3, stride, 1, 1),) * 2
    assert stores_together(axes, channels, 32, operand, 4, merged) is together


@pytest.mark.parametrize("rows", [64, 3136, 200704])
@pytest.mark.parametrize("columns", [16, 96, 320, 1280])
def test_threads_of_pointwise_convolutions_have_few_sums(rows, columns):
    found = pointwise_tiles(rows, columns, "float16", 132)
    assert found
    assert all(t.rows * t.columns <= 64 * 32 * t.warps for t in found)


@pytest.mark.parametrize(
    ("capability", "warps"), [((9, 0), 4), ((10, 0), 4), ((8, 0), 8), ((8, 9), 8), ((12, 0), 8)]
)
def test_threads_have_few_sums_where_tensor_cores_read_registers(
    tmp_path: Path, capability: tuple[int, int], warps: int
) -> None:
    """128 sums and the operands do not fit into the registers of a thread of four warps."""
    layer = "nn.Conv2d(64, 128, 3, padding=1)"
    text = LAYER_TASK.format(layer=layer, shape="8, 64, 64, 64", body="F.relu(self.c(x))")
    path = tmp_path / "task.py"
    path.write_text(text)
    target = Target("cuda", capability, 128, tf32_convolutions=True)
    subject = replace(open_subject(load_task(f"{path}:Model")), target=target)
    made = make_candidate(subject, Options())
    assert made is not None
    # Copies to channels-last layout have four warps everywhere.
    found = re.findall(r"num_warps=(\d+)", made.files["model_new.py"])
    assert max(map(int, found)) == warps


@pytest.mark.parametrize(("capability", "tile"), [((9, 0), None), ((8, 0), "128, 64, 32")])
def test_split_operands_leave_registers_for_few_sums(
    tmp_path: Path, capability: tuple[int, int], tile: str | None
) -> None:
    path = tmp_path / "task.py"
    layer = "nn.Linear(2048, 2048)"
    path.write_text(LAYER_TASK.format(layer=layer, shape="2048, 2048", body="F.relu(self.c(x))"))
    target = Target("cuda", capability, 108)
    made = make_candidate(
        replace(open_subject(load_task(f"{path}:Model")), target=target), Options()
    )
    assert made is not None
    text = made.files["model_new.py"]
    assert "linear_relu_kernel[" in text
    assert tile is None or f"{tile}, num_warps=8" in text


def test_tile_gets_at_most_sixteen_warps() -> None:
    tile = Tile(256, 64, 32, 8, 2, 1.0)
    assert with_registers(tile, 1, 64).warps == 8
    assert with_registers(tile, 2, 64).warps == 16
    assert with_registers(replace(tile, columns=256), 2, 64).warps == 16
