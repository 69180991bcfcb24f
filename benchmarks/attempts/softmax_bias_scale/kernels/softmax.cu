// y[r] = 2 softmax(x[r] * scale + bias) for rows of at most 16 * 256 columns, one block per row.
#include <cuda_runtime.h>

constexpr int kThreads = 256, kMost = 16;

__device__ float reduce(float v, bool largest) {
  __shared__ float partial[kThreads / 32];
  for (int d = 16; d; d /= 2) {
    float o = __shfl_xor_sync(~0u, v, d);
    v = largest ? fmaxf(v, o) : v + o;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  v = partial[threadIdx.x % (kThreads / 32)];
  for (int d = kThreads / 64; d; d /= 2) {
    float o = __shfl_xor_sync(~0u, v, d);
    v = largest ? fmaxf(v, o) : v + o;
  }
  return v;
}

__global__ void softmax_rows(float* y, const float* x, const float* scale, const float* bias,
                             int columns) {
  x += blockIdx.x * (long)columns;
  y += blockIdx.x * (long)columns;
  float v[kMost];
  float top = -INFINITY, sum = 0;
#pragma unroll
  for (int k = 0; k < kMost; ++k) {
    int c = threadIdx.x + k * kThreads;
    v[k] = c < columns ? x[c] * scale[c] + bias[c] : -INFINITY;
    top = fmaxf(top, v[k]);
  }
  top = reduce(top, true);
#pragma unroll
  for (int k = 0; k < kMost; ++k) sum += v[k] = expf(v[k] - top);
  float factor = 2 / reduce(sum, false);
#pragma unroll
  for (int k = 0; k < kMost; ++k) {
    int c = threadIdx.x + k * kThreads;
    if (c < columns) y[c] = v[k] * factor;
  }
}

extern "C" void softmax(float* y, const float* x, const float* scale, const float* bias, long rows,
                        int columns, cudaStream_t stream) {
  softmax_rows<<<rows, kThreads, 0, stream>>>(y, x, scale, bias, columns);
}
