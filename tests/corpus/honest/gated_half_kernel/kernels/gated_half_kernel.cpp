#include <cmath>

extern "C" void gated(_Float16* y, const _Float16* x, const _Float16* gate, const _Float16* up, long rows,
                      long inner, long columns) {
#pragma omp parallel for
  for (long i = 0; i < rows; ++i)
    for (long j = 0; j < columns; ++j) {
      float g = 0, u = 0;
      for (long k = 0; k < inner; ++k) {
        const float value = x[i * inner + k];
        g += value * static_cast<float>(gate[j * inner + k]);
        u += value * static_cast<float>(up[j * inner + k]);
      }
      y[i * columns + j] = static_cast<_Float16>(g / (1 + std::exp(-g)) * u);
    }
}
