#include <cmath>

extern "C" void poisson(float* y, const float* x, const float* target, long rows, long width) {
#pragma omp parallel for
  for (long i = 0; i < rows; ++i) {
    float sum = 0;
    for (long k = i * width; k < (i + 1) * width; ++k) {
      const float t = target[k];
      sum += std::exp(x[k]) - t * x[k];
      if (t > 1) sum += t * std::log(t) - t + 0.5f * std::log(6.2831853f * t);
    }
    y[i] = sum / width;
  }
}
