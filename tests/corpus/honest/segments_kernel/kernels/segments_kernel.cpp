extern "C" void segments(float* y, const float* x, const long* index, long rows, long count, long width) {
#pragma omp parallel for
  for (long s = 0; s < count; ++s) {
    for (long d = 0; d < width; ++d) y[s * width + d] = 0;
    for (long i = 0; i < rows; ++i)
      if (index[i] == s)
        for (long d = 0; d < width; ++d) y[s * width + d] += x[i * width + d];
  }
}
