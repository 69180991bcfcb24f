extern "C" void masks(bool* mask, float* chosen, long* count, const float* x, const float* y, long rows,
                      long width) {
  for (long i = 0; i < rows; ++i) {
    long larger = 0;
    for (long k = i * width; k < (i + 1) * width; ++k) {
      mask[k] = x[k] > y[k];
      chosen[k] = mask[k] ? x[k] : y[k] * 2;
      larger += mask[k];
    }
    count[i] = larger;
  }
}
