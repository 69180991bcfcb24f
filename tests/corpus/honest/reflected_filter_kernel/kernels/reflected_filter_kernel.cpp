extern "C" void filter(float* y, const float* x, const float* taps, long rows, long n, long count) {
  const long half = count / 2;
#pragma omp parallel for
  for (long r = 0; r < rows; ++r) {
    for (long i = 0; i < n; ++i) {
      float sum = 0;
      for (long t = 0; t < count; ++t) {
        long at = i + t - half;
        if (at < 0) at = -at;
        if (at >= n) at = 2 * (n - 1) - at;
        sum += x[r * n + at] * taps[t];
      }
      y[r * n + i] = sum;
    }
  }
}
