static __device__ float block_sum(float x, float* part) {
  part[threadIdx.x] = x;
  __syncthreads();
  for (int step = 64; step > 0; step /= 2) {
    if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
    __syncthreads();
  }
  const float sum = part[0];
  __syncthreads();
  return sum;
}

extern "C" __global__ void moments(float* mean, float* var, const float* x, long rows, long width) {
  __shared__ float part[128];
  const long d = blockIdx.x;
  float sum = 0;
  for (long i = threadIdx.x; i < rows; i += 128) sum += x[i * width + d];
  const float middle = block_sum(sum, part) / rows;
  float square = 0;
  for (long i = threadIdx.x; i < rows; i += 128) {
    const float z = x[i * width + d] - middle;
    square += z * z;
  }
  const float spread = block_sum(square, part) / rows;
  if (threadIdx.x == 0) {
    mean[d] = middle;
    var[d] = spread;
  }
}
