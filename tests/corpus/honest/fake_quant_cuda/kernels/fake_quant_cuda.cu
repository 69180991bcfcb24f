extern "C" __global__ void quantise(float* y, const float* x, const float* scale, const float* zero,
                                    long count, long width) {
  const long i = blockIdx.x * 128L + threadIdx.x;
  if (i >= count) return;
  const long d = i % width;
  const float level = rintf(x[i] / scale[d]) + zero[d];
  const float held = level < -128 ? -128 : level > 127 ? 127 : level;
  y[i] = (held - zero[d]) * scale[d];
}
