"""Figures of kernels that are compiled for sm_90 without a GPU (`benchmarks/sm90_code.py`)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sm90_code  # type: ignore[import-not-found]
from sm90_compilers import Compiled, Source  # type: ignore[import-not-found]
from sm90_figures import occupancy, read_code, width  # type: ignore[import-not-found]

USAGE = """
Resource usage:
 Common:
  GLOBAL:0
 Function _Z10foo_devicePf:
  REG:40 STACK:16 SHARED:1152 LOCAL:0 CONSTANT[0]:544 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function bar:
  REG:12 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:544 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
PTX = """
.visible .entry _Z10foo_devicePf(
        .param .u64 _Z10foo_devicePf_param_0
)
{
        .local .align 16 .b8    __local_depot0[12];
        ld.global.nc.v4.f32     {%f1, %f2, %f3, %f4}, [%rd7];
        @%p1 ld.global.f32      %f5, [%rd8];
        @%p2 ld.global.L1::evict_last.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
        ld.shared.v4.f32        {%f1, %f2, %f3, %f4}, [%r1];
        cp.async.cg.shared.global [ %r9 + 0 ], [ %rd3 + 0 ], 0x10, %r10;
        cp.async.ca.shared.global [ %r9 + 0 ], [ %rd3 + 0 ], 0x4, %r10;
        st.global.v2.b16        [%rd9], {%rs1, %rs2};
}
.visible .entry bar(
        .param .u64 bar_param_0
)
{
        cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1];
        wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%f1}, %rd2, %rd3, %p1, 1, 1, 0, 0;
        fma.rn.f32      %f1, %f2, %f3, %f4;
        mul.f32         %f1, %f2, %f3;
}
"""


def test_code_is_read_by_kernel():
    foo, bar = read_code(USAGE, PTX)
    assert (foo.name, foo.registers) == ("_Z10foo_devicePf", 40)
    assert (foo.stack, foo.arrays, foo.spilled) == (16, 12, 4)
    assert foo.static_shared == 128, "without the 1024 bytes that each block takes in addition"
    assert (foo.loads, foo.stores) == ({4: 2, 16: 3}, {4: 1})
    assert (bar.blocks_copied, bar.tensor_core, bar.multiplications) == (
        1, {"wgmma.mma_async": 1}, 2,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("suffixes", "size"), [(".f32", 4), (".nc.v4.f32", 16), (".u8", 1), (".v2.b64", 16)]
)
def test_width_of_an_access(suffixes, size):
    assert width(suffixes) == size


def test_occupancy_is_the_least_of_three_limits():
    assert occupancy(256, 32, 0) == (8, 1.0)
    assert occupancy(256, 255, 0) == (1, 0.125), "by registers"
    assert occupancy(128, 32, 100 << 10) == (2, 0.125), "by shared memory"
    assert occupancy(1024, 40, 0) == (1, 0.5), "whole blocks only"


def test_source_has_the_same_digest_under_another_name():
    first = Source("cuda", "sum_kernel", "void sum_kernel_device();", ("pointwise_cuda.h",))
    again = Source("cuda", "sum_kernel2", "void sum_kernel2_device();", ("pointwise_cuda.h",))
    other = Source("cuda", "sum_kernel", "void sum_kernel_device(int);", ("pointwise_cuda.h",))
    assert first.digest == again.digest
    assert first.digest != other.digest


def test_faults_of_a_line():
    source = Source("cuda", "foo", "void foo();")
    foo, bar = read_code(USAGE, PTX)
    made = [
        Compiled(replace(foo, arrays=16), 256), Compiled(foo, 256, 230 << 10),
        Compiled(error="no"), Compiled(replace(bar, blocks_copied=0), 256, seconds=30),
    ]  # fmt: skip
    found = [sm90_code.faults_of(line, "streaming") for line in sm90_code.lines_of(source, made)]
    assert found[0] == ["array in local memory"]
    assert found[1][:2] == ["too much shared memory", "spills"]
    assert "low occupancy" in found[1]
    assert found[2] == ["does not compile"]
    assert found[3] == ["only accesses of at most 4 bytes", "slow to compile"]
