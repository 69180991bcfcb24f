#include <cmath>
#include <vector>

static float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

extern "C" void gru(float* y, const float* x, const float* wi, const float* wh, const float* bi,
                    const float* bh, long count, long steps, long width, long hidden) {
#pragma omp parallel for
  for (long n = 0; n < count; ++n) {
    std::vector<float> h(hidden, 0.0f), a(3 * hidden), b(3 * hidden);
    for (long t = 0; t < steps; ++t) {
      const float* in = x + (n * steps + t) * width;
      for (long g = 0; g < 3 * hidden; ++g) {
        a[g] = bi[g];
        b[g] = bh[g];
        for (long k = 0; k < width; ++k) a[g] += in[k] * wi[g * width + k];
        for (long k = 0; k < hidden; ++k) b[g] += h[k] * wh[g * hidden + k];
      }
      for (long j = 0; j < hidden; ++j) {
        const float r = sigmoid(a[j] + b[j]), z = sigmoid(a[hidden + j] + b[hidden + j]);
        const float candidate = std::tanh(a[2 * hidden + j] + r * b[2 * hidden + j]);
        h[j] = (1 - z) * candidate + z * h[j];
        y[(n * steps + t) * hidden + j] = h[j];
      }
    }
  }
}
