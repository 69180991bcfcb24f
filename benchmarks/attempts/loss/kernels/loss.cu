// Cross-entropy with a z-loss: one block per row, then one block for the mean over the rows.
#include <cuda_runtime.h>

constexpr int kThreads = 256;

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

__global__ void row_losses(float* losses, const float* logits, const long* labels, float weight,
                           int classes) {
  const float* x = logits + blockIdx.x * (long)classes;
  float top = -INFINITY, sum = 0;
  for (int c = threadIdx.x; c < classes; c += kThreads) top = fmaxf(top, x[c]);
  top = reduce(top, true);
  for (int c = threadIdx.x; c < classes; c += kThreads) sum += expf(x[c] - top);
  float z = top + logf(reduce(sum, false));
  if (threadIdx.x == 0) losses[blockIdx.x] = z - x[labels[blockIdx.x]] + weight * z * z;
}

__global__ void mean_of(float* out, const float* losses, int rows) {
  float sum = 0;
  for (int r = threadIdx.x; r < rows; r += kThreads) sum += losses[r];
  sum = reduce(sum, false);
  if (threadIdx.x == 0) *out = sum / rows;
}

extern "C" void loss(float* out, float* losses, const float* logits, const long* labels,
                     float weight, int rows, int classes, cudaStream_t stream) {
  row_losses<<<rows, kThreads, 0, stream>>>(losses, logits, labels, weight, classes);
  mean_of<<<1, kThreads, 0, stream>>>(out, losses, rows);
}
