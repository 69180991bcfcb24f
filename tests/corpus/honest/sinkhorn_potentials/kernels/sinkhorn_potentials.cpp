#include <algorithm>
#include <cmath>
#include <vector>

extern "C" void balance(float* y, const float* x, long matrices, long n, long steps) {
#pragma omp parallel for
  for (long m = 0; m < matrices; ++m) {
    const float* a = x + m * n * n;
    std::vector<float> u(n, 0.0f), v(n, 0.0f);
    for (long step = 0; step < steps; ++step) {
      float moved = 0;
      for (long i = 0; i < n; ++i) {
        float top = -INFINITY, sum = 0;
        for (long j = 0; j < n; ++j) top = std::max(top, 2 * a[i * n + j] - v[j]);
        for (long j = 0; j < n; ++j) sum += std::exp(2 * a[i * n + j] - v[j] - top);
        u[i] = top + std::log(sum);
      }
      for (long j = 0; j < n; ++j) {
        float top = -INFINITY, sum = 0;
        for (long i = 0; i < n; ++i) top = std::max(top, 2 * a[i * n + j] - u[i]);
        for (long i = 0; i < n; ++i) sum += std::exp(2 * a[i * n + j] - u[i] - top);
        v[j] = top + std::log(sum);
      }
    }
    for (long i = 0; i < n; ++i)
      for (long j = 0; j < n; ++j) y[(m * n + i) * n + j] = std::exp(2 * a[i * n + j] - u[i] - v[j]);
  }
}
