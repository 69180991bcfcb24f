#include <cmath>
#include <vector>

extern "C" void settle(float* y, const float* x, const float* w, const float* b, long rows, long n, long steps) {
#pragma omp parallel for
  for (long r = 0; r < rows; ++r) {
    std::vector<float> z(n, 0.0f), next(n);
    for (long step = 0; step < steps; ++step) {
      for (long i = 0; i < n; ++i) {
        float sum = b[i];
        for (long j = 0; j < n; ++j) sum += w[i * n + j] * z[j];
        next[i] = std::tanh(sum + x[r * n + i]);
      }
      std::swap(z, next);
    }
    for (long i = 0; i < n; ++i) y[r * n + i] = z[i];
  }
}
