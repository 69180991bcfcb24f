extern "C" void bags(float* y, const float* table, const long* ids, const long* offsets,
                     long count, long bags, long width) {
#pragma omp parallel for
  for (long b = 0; b < bags; ++b) {
    const long begin = offsets[b];
    const long end = b + 1 < bags ? offsets[b + 1] : count;
    float* out = y + b * width;
    for (long d = 0; d < width; ++d) out[d] = 0;
    for (long i = begin; i < end; ++i)
      for (long d = 0; d < width; ++d) out[d] += table[ids[i] * width + d];
    const long members = end - begin;
    if (members > 0)
      for (long d = 0; d < width; ++d) out[d] /= members;
  }
}
