// One warp for each row.
static __device__ float warp_sum(float x) {
  for (int apart = 16; apart > 0; apart /= 2) x += __shfl_xor_sync(0xffffffffu, x, apart);
  return x;
}

extern "C" __global__ void embed(float* y, const long* ids, const long* positions,
                                 const float* words, const float* places, const float* gain,
                                 const float* shift, float eps, long length, long width) {
  const long row = blockIdx.x;
  const float* word = words + ids[row] * width;
  const float* place = places + positions[row] * width;
  float sum = 0;
  for (long d = threadIdx.x; d < width; d += 32) sum += word[d] + place[d];
  const float mean = warp_sum(sum) / width;
  float square = 0;
  for (long d = threadIdx.x; d < width; d += 32) {
    const float z = word[d] + place[d] - mean;
    square += z * z;
  }
  const float scale = rsqrtf(warp_sum(square) / width + eps);
  for (long d = threadIdx.x; d < width; d += 32)
    y[row * width + d] = (word[d] + place[d] - mean) * scale * gain[d] + shift[d];
}
