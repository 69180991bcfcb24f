extern "C" void count(long* counts, const float* x, const float* edges, long rows, long length,
                      long bins) {
  for (long i = 0; i < rows; ++i) {
    for (long k = 0; k < bins; ++k) counts[i * bins + k] = 0;
    for (long j = 0; j < length; ++j) {
      const float v = x[i * length + j];
      if (!(v >= edges[0]) || v > edges[bins]) continue;
      long k = 0;
      while (k + 1 < bins && v >= edges[k + 1]) ++k;
      ++counts[i * bins + k];
    }
  }
}
