// cuagent: flags -ffp-contract=off
#include <algorithm>
#include <cmath>

static float rounded(float x) {
  const float magic = 12582912.0f;
  return std::fabs(x) < 4194304.0f ? (x + magic) - magic : x;
}

extern "C" void grid(float* y, const float* x, const long* exponent, long rows, long width) {
  for (long i = 0; i < rows; ++i) {
    const float step = std::ldexp(1.0f, exponent[i]);
    for (long d = 0; d < width; ++d) {
      const float level = rounded(x[i * width + d] / step);
      y[i * width + d] = std::min(std::max(level, -8.0f), 7.0f) * step;
    }
  }
}
