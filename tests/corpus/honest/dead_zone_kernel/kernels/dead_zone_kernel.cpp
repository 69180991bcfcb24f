#include <cmath>

extern "C" void dead_zone(float* y, const float* x, const float* theta, long rows, long width) {
  for (long i = 0; i < rows; ++i)
    for (long d = 0; d < width; ++d) {
      const float a = x[i * width + d];
      y[i * width + d] = std::fabs(a) > theta[d] ? a : 0;
    }
}
