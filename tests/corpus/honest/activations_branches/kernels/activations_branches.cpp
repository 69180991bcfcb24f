#include <algorithm>
#include <cmath>

extern "C" void activations(float* plus, float* log, float* swish, const float* x, long count) {
  for (long i = 0; i < count; ++i) {
    const float rest = std::log1p(std::exp(-std::fabs(x[i])));
    plus[i] = x[i] > 20 ? x[i] : std::max(x[i], 0.0f) + rest;
    log[i] = std::min(x[i], 0.0f) - rest;
    swish[i] = x[i] <= -3 ? 0 : x[i] >= 3 ? x[i] : x[i] * (x[i] + 3) / 6;
  }
}
