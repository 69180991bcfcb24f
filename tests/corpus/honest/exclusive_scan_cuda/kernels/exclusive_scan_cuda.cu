extern "C" __global__ void scan(float* y, const float* x, long width) {
  __shared__ float tile[512];
  const long base = blockIdx.x * width;
  const int me = threadIdx.x;
  float carry = 0;
  for (long start = 0; start < width; start += 512) {
    const long d = start + me;
    tile[me] = d < width ? x[base + d] : 0.0f;
    __syncthreads();
    for (int step = 1; step < 512; step *= 2) {
      const float before = me >= step ? tile[me - step] : 0.0f;
      __syncthreads();
      tile[me] += before;
      __syncthreads();
    }
    if (d < width) y[base + d] = carry + (me > 0 ? tile[me - 1] : 0.0f);
    carry += tile[511];
    __syncthreads();
  }
}
