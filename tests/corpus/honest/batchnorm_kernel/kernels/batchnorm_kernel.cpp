#include <cmath>

extern "C" void batchnorm(float* y, const float* x, const float* mean, const float* var,
                          const float* weight, const float* bias, float eps, long count, long channels,
                          long area) {
#pragma omp parallel for collapse(2)
  for (long n = 0; n < count; ++n)
    for (long c = 0; c < channels; ++c) {
      const float scale = weight[c] / std::sqrt(var[c] + eps);
      const long base = (n * channels + c) * area;
      for (long i = base; i < base + area; ++i) {
        const float value = (x[i] - mean[c]) * scale + bias[c];
        y[i] = value > 0 ? value : 0;
      }
    }
}
