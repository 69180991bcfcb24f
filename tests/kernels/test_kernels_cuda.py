"""CUDA kernels on a device: both forms, streams, devices and failed launches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cuagent.kernels import Kernels, load

pytestmark = pytest.mark.gpu

LAUNCHERS = """
#include <cuda_fp16.h>
template <class T> __global__ void k(T* y, const T* x, float f, long n) {
  long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
  if (i < n) y[i] = (T)((float)x[i] * f);
}
extern "C" void scale(float* y, const float* x, float f, long n, cudaStream_t stream) {
  k<<<(n + 255) / 256, 256, 0, stream>>>(y, x, f, n);
}
extern "C" void scale_half(half* y, const half* x, float f, long n, cudaStream_t stream) {
  k<<<(n + 255) / 256, 256, 0, stream>>>(y, x, f, n);
}
extern "C" void too_much_shared(float* y, cudaStream_t stream) {
  k<<<1, 256, 1 << 20, stream>>>(y, y, 1.0f, 1L);
}
extern "C" cudaError_t status(int code) { return (cudaError_t)code; }
"""
KERNELS = """
#include <cstdint>
#include <cmath>
#include <cuda_bf16.h>
extern "C" __global__ void mixed(__nv_bfloat16* y, bool add, int64_t at,
                                 double value, const int* n) {
  if (threadIdx.x < *n) y[at + threadIdx.x] = (float)value + (add ? fmaxf(1.0f, -INFINITY) : 0.0f);
}
extern "C" __global__ void __launch_bounds__(256) scale(float* y, const float* x, float f, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * f;
}
extern "C" __global__ void shared(float* y, int n) {
  extern __shared__ float buffer[];
  buffer[n - 1 - threadIdx.x] = y[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = buffer[threadIdx.x];
}
"""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def launchers(cache: None, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    source = tmp_path_factory.mktemp("source") / "launchers.cu"
    source.write_text(LAUNCHERS)
    return load(source)


@pytest.fixture(scope="module")
def kernels(cache: None, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    source: Path = tmp_path_factory.mktemp("source") / "kernels.cu"
    source.write_text(KERNELS)
    return load(source)


def test_launchers_compute_in_fp32_and_fp16(launchers: Kernels):
    for dtype, scale in ((torch.float32, launchers.scale), (torch.half, launchers.scale_half)):
        x = torch.randn(1000, device="cuda", dtype=dtype)
        y = torch.empty_like(x)
        scale(y, x, 2.0, 1000)
        assert torch.equal(y, 2 * x)


def test_launcher_refuses_cpu_tensor_by_name(launchers: Kernels):
    x = torch.randn(8, device="cuda")
    with pytest.raises(ValueError, match=r"argument 2 .*x.* is on cpu"):
        launchers.scale(x, x.cpu(), 2.0, 8)


def test_failed_launch_raises_and_next_launch_works(launchers: Kernels):
    x = torch.ones(8, device="cuda")
    with pytest.raises(RuntimeError, match=r"too_much_shared: CUDA error .*cudaErrorInvalidValue"):
        launchers.too_much_shared(x)
    launchers.scale(x, x, 2.0, 8)
    assert x.tolist() == [2.0] * 8


def test_returned_status_raises_with_name_of_error(launchers: Kernels):
    launchers.status(0)
    with pytest.raises(RuntimeError, match="cudaErrorMemoryAllocation"):
        launchers.status(2)


def test_launcher_uses_current_stream_so_that_graphs_capture_it(launchers: Kernels):
    x, y = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launchers.scale(y, x, 2.0, 8)
    assert y.sum().item() == 0
    graph.replay()
    assert y.sum().item() == 16


def test_global_kernels_are_launched_from_python(kernels: Kernels):
    assert kernels.library.suffix == ".cubin"
    x = torch.randn(1000, device="cuda")
    y = torch.empty_like(x)
    kernels.scale[4, 256](y, x, 2.0, 1000)
    assert torch.equal(y, 2 * x)
    with pytest.raises(TypeError, match=r"argument 4 .*int n"):
        kernels.scale[4, 256](y, x, 2.0, 1000.0)
    with pytest.raises(TypeError, match=r"kernel\[grid, block\]"):
        kernels.scale(y, x, 2.0, 1000)


def test_global_kernels_accept_parameters_of_every_size(kernels: Kernels):
    y = torch.zeros(8, device="cuda", dtype=torch.bfloat16)
    kernels.mixed[1, 32](y, True, 3, 2.5, torch.tensor([4], dtype=torch.int32, device="cuda"))
    assert y.tolist() == [0, 0, 0, 3.5, 3.5, 3.5, 3.5, 0]


def test_global_kernels_get_large_shared_memory_or_raise(kernels: Kernels):
    y = torch.arange(256, device="cuda", dtype=torch.float32)
    kernels.shared[1, 256, 100 << 10](y, 256)
    assert torch.equal(y, torch.arange(255, -1, -1, device="cuda", dtype=torch.float32))
    with pytest.raises(RuntimeError, match="CUDA_ERROR"):
        kernels.shared[1, 256, 1 << 20](y, 256)


def test_global_kernels_are_captured_by_graphs(kernels: Kernels):
    x, y = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")
    kernels.scale[1, 256](y, x, 2.0, 8)
    y.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.scale[1, 256](y, x, 2.0, 8)
    assert y.sum().item() == 0
    graph.replay()
    assert y.sum().item() == 16


def test_launcher_refuses_tensors_on_two_devices(launchers: Kernels):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices")
    with pytest.raises(ValueError, match="earlier tensor is on cuda:0"):
        launchers.scale(torch.ones(8, device="cuda:0"), torch.ones(8, device="cuda:1"), 2.0, 8)
