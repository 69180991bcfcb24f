// 64 labels at most.
extern "C" __global__ void add(float* sums, float* count, const float* weights, const long* label,
                               long n, long labels) {
  __shared__ float mine[128];
  for (long c = threadIdx.x; c < 128; c += blockDim.x) mine[c] = 0;
  __syncthreads();
  for (long i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    atomicAdd(&mine[label[i]], weights[i]);
    atomicAdd(&mine[64 + label[i]], 1.0f);
  }
  __syncthreads();
  for (long c = threadIdx.x; c < labels; c += blockDim.x) {
    atomicAdd(&sums[c], mine[c]);
    atomicAdd(&count[c], mine[64 + c]);
  }
}
