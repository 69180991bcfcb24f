#include <cmath>

extern "C" void rows(double* y, const double* x, long rows, long n) {
#pragma omp parallel for
  for (long r = 0; r < rows; ++r) {
    double sum = 0, square = 0;
    for (long i = 0; i < n; ++i) sum += x[r * n + i];
    const double mean = sum / n;
    for (long i = 0; i < n; ++i) {
      const double d = x[r * n + i] - mean;
      square += d * d;
    }
    const double scale = 1 / std::sqrt(square / n + 1e-12);
    for (long i = 0; i < n; ++i) y[r * n + i] = (x[r * n + i] - mean) * scale;
  }
}
