// RMSNorm with one block per row, and silu(gate) * up.
#include <cuda_runtime.h>

constexpr int kThreads = 256;

__global__ void rmsnorm_rows(float* y, const float* x, const float* weight, float eps, int width) {
  __shared__ float partial[kThreads / 32];
  x += blockIdx.x * (long)width;
  y += blockIdx.x * (long)width;
  float sum = 0;
  for (int c = threadIdx.x; c < width; c += kThreads) sum += x[c] * x[c];
  for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (int k = 0; k < kThreads / 32; ++k) sum += partial[k];
  float factor = rsqrtf(sum / width + eps);
  for (int c = threadIdx.x; c < width; c += kThreads) y[c] = x[c] * factor * weight[c];
}

__global__ void gated(float* gate, const float* up, long n) {
  long i = blockIdx.x * (long)kThreads + threadIdx.x;
  if (i < n) gate[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
}

extern "C" void rmsnorm(float* y, const float* x, const float* weight, float eps, int rows,
                        int width, cudaStream_t stream) {
  rmsnorm_rows<<<rows, kThreads, 0, stream>>>(y, x, weight, eps, width);
}

extern "C" void silu_times(float* gate, const float* up, long n, cudaStream_t stream) {
  gated<<<(n + kThreads - 1) / kThreads, kThreads, 0, stream>>>(gate, up, n);
}
