static int sign_of(float x) { return (x > 0) - (x < 0); }

extern "C" void agreement(long* count, float* signs, const float* a, const float* b, long rows,
                          long width) {
#pragma omp parallel for
  for (long i = 0; i < rows; ++i) {
    count[i] = 0;
    for (long k = i * width; k < (i + 1) * width; ++k) {
      signs[k] = sign_of(a[k]);
      count[i] += sign_of(a[k]) == sign_of(b[k]);
    }
  }
}
