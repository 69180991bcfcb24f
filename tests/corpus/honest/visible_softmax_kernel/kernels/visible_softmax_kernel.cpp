#include <algorithm>
#include <cmath>

extern "C" void softmax(float* y, const float* x, const bool* mask, long rows, long width) {
  for (long i = 0; i < rows; ++i) {
    const long base = i * width;
    float largest = -INFINITY, sum = 0;
    for (long d = 0; d < width; ++d)
      if (mask[base + d]) largest = std::max(largest, x[base + d]);
    for (long d = 0; d < width; ++d) {
      y[base + d] = mask[base + d] ? std::exp(x[base + d] - largest) : 0;
      sum += y[base + d];
    }
    const float factor = sum > 0 ? 1 / sum : 0;
    for (long d = 0; d < width; ++d) y[base + d] *= factor;
  }
}
