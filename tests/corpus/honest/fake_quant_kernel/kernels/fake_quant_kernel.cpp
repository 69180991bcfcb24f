#include <algorithm>
#include <cmath>

extern "C" void quantise(float* y, const float* x, const float* scale, const float* zero, long rows,
                         long width) {
  for (long i = 0; i < rows; ++i)
    for (long d = 0; d < width; ++d) {
      float level = std::nearbyint(x[i * width + d] / scale[d]) + zero[d];
      level = std::min(std::max(level, -128.0f), 127.0f);
      y[i * width + d] = (level - zero[d]) * scale[d];
    }
}
