extern "C" void balance(float* y, const float* x, long rows, long length) {
  for (long i = 0; i < rows; ++i) {
    const float* row = x + i * length;
    float carry = -row[0];
    for (long start = 0; start < length; start += 512) {
      const long end = start + 512 < length ? start + 512 : length;
      float total = 0;
      for (long j = start; j < end; ++j) {
        total += row[j];
        y[i * length + j] = carry + total;
      }
      carry += total;
    }
  }
}
