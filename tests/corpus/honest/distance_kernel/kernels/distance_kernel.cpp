#include <cmath>

extern "C" void distance(float* y, const float* a, const float* b, long m, long n, long width) {
#pragma omp parallel for collapse(2)
  for (long i = 0; i < m; ++i)
    for (long j = 0; j < n; ++j) {
      float sum = 0;
      for (long d = 0; d < width; ++d) {
        const float gap = a[i * width + d] - b[j * width + d];
        sum += gap * gap;
      }
      y[i * n + j] = std::sqrt(sum);
    }
}
