#include <algorithm>
#include <cmath>

extern "C" void weighted_bce(float* y, const float* x, const float* target, const float* weight,
                             long rows, long width) {
  double total = 0;
  for (long i = 0; i < rows; ++i)
    for (long c = 0; c < width; ++c) {
      const float a = x[i * width + c], t = target[i * width + c];
      const float tail = std::log1p(std::exp(-std::fabs(a)));
      const float positive = tail + std::max(-a, 0.0f);
      const float negative = tail + std::max(a, 0.0f);
      total += weight[c] * t * positive + (1 - t) * negative;
    }
  y[0] = total / (rows * width);
}
