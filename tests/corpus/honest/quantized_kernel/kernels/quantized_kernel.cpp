#include <algorithm>
#include <cmath>
#include <cstdint>

extern "C" void quantize(int8_t* q, float* scale, float* back, const float* x, int rows, int width) {
  for (int i = 0; i < rows; ++i) {
    float most = 0;
    for (int j = 0; j < width; ++j) most = std::max(most, std::fabs(x[i * width + j]));
    scale[i] = std::max(most, 1e-5f) / 127;
    for (int j = 0; j < width; ++j) {
      const float whole = std::nearbyint(x[i * width + j] / scale[i]);
      const float held = std::min(127.0f, std::max(-128.0f, whole));
      q[i * width + j] = static_cast<int8_t>(held);
      back[i * width + j] = held * scale[i];
    }
  }
}
