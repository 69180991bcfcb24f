extern "C" void last(float* value, long* known, const float* x, long rows, long length) {
  for (long i = 0; i < rows; ++i) {
    value[i] = 0;
    known[i] = 0;
    for (long j = length - 1; j >= 0; --j) {
      const float v = x[i * length + j];
      if (v != v) continue;
      if (known[i] == 0) value[i] = v;
      ++known[i];
    }
  }
}
