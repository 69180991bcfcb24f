extern "C" void spread(float* y, const float* rows, const long* counts, long many, long width,
                       long length) {
  long at = 0;
  for (long i = 0; i < many; ++i) {
    for (long n = 0; n < counts[i] && at < length; ++n, ++at) {
      for (long j = 0; j < width; ++j) y[at * width + j] = rows[i * width + j];
    }
  }
}
