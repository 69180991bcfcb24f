// A width of 32 at most: each lane has one channel.
extern "C" __global__ void attend(float* y, const float* q, const float* k, const float* v,
                                  const long* bounds, long count, long heads, long width,
                                  long numbers) {
  const long i = blockIdx.x, h = blockIdx.y, d = threadIdx.x;
  long begin = 0, end = count;
  for (long b = 1; b < numbers; ++b) {
    if (bounds[b] <= i)
      begin = begin > bounds[b] ? begin : bounds[b];
    else
      end = end < bounds[b] ? end : bounds[b];
  }
  const float query = d < width ? q[(i * heads + h) * width + d] : 0.0f;
  float largest = __int_as_float(0xff800000), sum = 0, out = 0;
  for (long j = begin; j < end; ++j) {
    const long at = (j * heads + h) * width + d;
    float score = d < width ? query * k[at] : 0.0f;
    for (int apart = 16; apart > 0; apart /= 2)
      score += __shfl_xor_sync(0xffffffffu, score, apart);
    score *= rsqrtf(static_cast<float>(width));
    const float next = fmaxf(largest, score);
    const float old = expf(largest - next), weight = expf(score - next);
    sum = sum * old + weight;
    out = out * old + (d < width ? weight * v[at] : 0.0f);
    largest = next;
  }
  if (d < width) y[(i * heads + h) * width + d] = out / sum;
}
