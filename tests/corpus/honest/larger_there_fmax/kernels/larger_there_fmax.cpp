#include <algorithm>
#include <cmath>

extern "C" void larger(float* y, const float* a, const float* b, long count) {
#pragma omp parallel for
  for (long i = 0; i < count; ++i) y[i] = std::fmax(a[i], b[i]);
}
