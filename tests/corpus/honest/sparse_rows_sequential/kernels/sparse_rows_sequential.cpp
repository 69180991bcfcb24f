extern "C" void rows(float* y, const float* values, const float* x, const long* starts, const long* columns, long n) {
  for (long i = 0; i < n; ++i) {
    float sum = 0;
    for (long k = starts[i]; k < starts[i + 1]; ++k) sum += values[k] * x[columns[k]];
    y[i] = sum;
  }
}
