"""The emulation of CUDA C++ finds invalid accesses to memory (`emulated_bounds.cpp`)."""

from __future__ import annotations

import pytest
import torch
from emulation import InvalidAccess, emulated  # type: ignore[import-not-found]

pytestmark = pytest.mark.slow

TEXT = """
template <int N>
struct alignas(4 * N) Vector {{ float at[N]; }};
static __global__ void kernel_device(float* out, const float* x) {{
  __shared__ float parts[32];
  float own[4] = {{}};
  const int k = blockIdx.x * 32 + threadIdx.x;
  {body}
}}

extern "C" void kernel(float* out, const float* x, cudaStream_t stream) {{
  kernel_device<<<2, 32, 0, stream>>>(out, x);
}}
"""
INVALID = {
    "a write behind the output": ("if (k <= 50) out[k] = 1.f;", "writes 4 bytes at byte 200 of"),
    "a write before the output": ("out[k - 1] = 1.f;", "writes 4 bytes at byte -4 of tensor 0"),
    "a read far behind the input": ("own[0] = x[5000 + k]; out[0] = own[0];", "reads 4 bytes at"),
    "a write to an input": ("const_cast<float*>(x)[0] = 1.f;", "writes to the constant tensor 1"),
    "a part of a vector outside": (
        "*reinterpret_cast<Vector<4>*>(out + 48) = {};",
        "writes 16 bytes at byte 192 of tensor 0, which has 200",
    ),
    "a vector without alignment": (
        "*reinterpret_cast<Vector<2>*>(out + 1) = {};", "not a multiple of its size"
    ),
    "an index outside of registers": ("own[k] = 1.f; out[0] = own[3];", "outside of an array"),
    "a pointer outside of shared memory": (
        "float* const p = parts; p[k] = 1.f;", "of parts, which has 128"
    ),
}  # fmt: skip


def run(tmp_path, body, descending=False):
    (tmp_path / "kernel.cu").write_text(TEXT.format(body=body))
    kernel = emulated(str(tmp_path / "kernel.cu"), descending).kernel
    out, x = torch.zeros(50), torch.arange(50.0)
    kernel(out, x)
    return out


@pytest.mark.parametrize("name", INVALID)
def test_invalid_access_is_found(tmp_path, name):
    body, message = INVALID[name]
    with pytest.raises(InvalidAccess, match=message):
        run(tmp_path, body)


def test_valid_accesses_run_to_the_end(tmp_path):
    body = "parts[threadIdx.x] = 1.f; if (k < 50) out[k] = x[k] + parts[threadIdx.x];"
    assert torch.equal(run(tmp_path, body), torch.arange(50.0) + 1)


def test_shared_memory_of_an_earlier_block_is_not_read(tmp_path):
    body = "if (blockIdx.x == 0) parts[threadIdx.x] = 1.f; if (k < 50) out[k] = parts[threadIdx.x];"
    assert bool(run(tmp_path, body)[32:].isnan().all())


def test_missing_barrier_shows_in_one_order(tmp_path):
    body = "parts[threadIdx.x] = x[k % 50]; if (k < 50) out[k] = parts[threadIdx.x ^ 1];"
    results = [run(tmp_path, body, descending) for descending in (False, True)]
    assert all(bool(r.isnan().any()) for r in results)
