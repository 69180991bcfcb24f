#include <cmath>

extern "C" void divergence(float* y, const float* logq, const float* p, long rows, long width) {
  for (long i = 0; i < rows; ++i) {
    float sum = 0;
    for (long k = i * width; k < (i + 1) * width; ++k) {
      const float own = p[k] == 0 ? 0.0f : p[k] * std::log(p[k]);
      sum += own - p[k] * logq[k];
    }
    y[i] = sum;
  }
}
