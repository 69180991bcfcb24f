#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

static inline float fast_exp(float x) {
  x = std::max(x, -87.0f);
  const float n = std::nearbyint(x * 1.44269504f);
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const std::int32_t bits = (static_cast<std::int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, 4);
  return p * power;
}

extern "C" void softmax(float* y, const float* x, long rows, long width) {
  for (long i = 0; i < rows; ++i) {
    const float* row = x + i * width;
    const float top = *std::max_element(row, row + width);
    float sum = 0;
    for (long k = 0; k < width; ++k) sum += y[i * width + k] = fast_exp(row[k] - top);
    const float scale = 1 / sum;
    for (long k = 0; k < width; ++k) y[i * width + k] *= scale;
  }
}
