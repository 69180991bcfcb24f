extern "C" __global__ void bags(float* y, const float* table, const long* ids, const long* offsets,
                                long count, long bags, long width) {
  const long b = blockIdx.x;
  const long begin = offsets[b];
  const long end = b + 1 < bags ? offsets[b + 1] : count;
  for (long d = threadIdx.x; d < width; d += blockDim.x) {
    float sum = 0;
    for (long i = begin; i < end; ++i) sum += table[ids[i] * width + d];
    y[b * width + d] = end > begin ? sum / (end - begin) : 0.0f;
  }
}
