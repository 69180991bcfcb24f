extern "C" void sums(float* y, const float* x, const long* buckets, long rows, long width) {
#pragma omp parallel for
  for (long i = 0; i < rows; ++i)
    for (long d = 0; d < width; ++d)
#pragma omp atomic
      y[buckets[i] * width + d] += x[i * width + d];
}
