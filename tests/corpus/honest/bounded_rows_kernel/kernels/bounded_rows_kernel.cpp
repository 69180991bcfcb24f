#include <algorithm>
#include <cmath>

extern "C" void bound(float* y, const float* x, const float* limit, long rows, long n) {
#pragma omp parallel for
  for (long r = 0; r < rows; ++r) {
    double square = 0;
    for (long i = 0; i < n; ++i) square += static_cast<double>(x[r * n + i]) * x[r * n + i];
    const float norm = static_cast<float>(std::sqrt(square));
    const float share = limit[0] / (norm + 1e-6f);
    const float scale = share > 1 ? 1 : share;
    for (long i = 0; i < n; ++i) y[r * n + i] = x[r * n + i] * scale;
  }
}
