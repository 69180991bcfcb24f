#include <cmath>

extern "C" void gelu(float* y, const float* x, long n) {
#pragma omp parallel for
  for (long i = 0; i < n; ++i) y[i] = 0.5f * x[i] * std::erfc(-x[i] * 0.70710678f);
}
