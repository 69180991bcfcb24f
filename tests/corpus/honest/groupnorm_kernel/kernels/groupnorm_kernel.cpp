#include <cmath>

extern "C" void groupnorm(float* y, const float* x, const float* weight, const float* bias, float eps,
                          long count, long channels, long area, long groups) {
  const long per = channels / groups, size = per * area;
#pragma omp parallel for collapse(2)
  for (long n = 0; n < count; ++n)
    for (long g = 0; g < groups; ++g) {
      const long base = (n * channels + g * per) * area;
      double sum = 0, squares = 0;
      for (long i = 0; i < size; ++i) sum += x[base + i];
      const double mean = sum / size;
      for (long i = 0; i < size; ++i) squares += (x[base + i] - mean) * (x[base + i] - mean);
      const double scale = 1 / std::sqrt(squares / size + eps);
      for (long i = 0; i < size; ++i) {
        const long c = g * per + i / area;
        const float value = (x[base + i] - mean) * scale * weight[c] + bias[c];
        y[base + i] = value / (1 + std::exp(-value));
      }
    }
}
