// One warp for each row.
extern "C" __global__ void nan_mean(float* y, const float* x, long width) {
  const long base = blockIdx.x * width;
  float sum = 0;
  int members = 0;
  for (long d = threadIdx.x; d < width; d += 32) {
    const float a = x[base + d];
    if (!isnan(a)) {
      sum += a;
      ++members;
    }
  }
  for (int apart = 16; apart > 0; apart /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, apart);
    members += __shfl_xor_sync(0xffffffffu, members, apart);
  }
  if (threadIdx.x == 0) y[blockIdx.x] = sum / members;
}
