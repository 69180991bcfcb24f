#include <cmath>

extern "C" void whole(float* low, float* high, float* near, float* cut, float* left, const float* x,
                      long count) {
  for (long i = 0; i < count; ++i) {
    const float a = x[i] * 4;
    low[i] = std::floor(a);
    high[i] = std::ceil(a);
    near[i] = std::rint(a);
    cut[i] = std::trunc(a);
    left[i] = a - std::floor(a);
  }
}
