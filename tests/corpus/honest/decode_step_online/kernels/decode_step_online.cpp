#include <algorithm>
#include <cmath>

extern "C" void decode(float* y, const float* q, const float* keys, const float* values,
                       const long* position, long heads, long length, long width) {
  const long filled = std::min(position[0] + 1, length);
  const float scale = 1 / std::sqrt(static_cast<float>(width));
#pragma omp parallel for
  for (long h = 0; h < heads; ++h) {
    float* out = y + h * width;
    for (long d = 0; d < width; ++d) out[d] = 0;
    float largest = -INFINITY, sum = 0;
    for (long t = 0; t < filled; ++t) {
      const float* key = keys + (h * length + t) * width;
      const float* value = values + (h * length + t) * width;
      float score = 0;
      for (long d = 0; d < width; ++d) score += q[h * width + d] * key[d];
      score *= scale;
      const float next = std::max(largest, score);
      const float old = std::exp(largest - next), weight = std::exp(score - next);
      sum = sum * old + weight;
      for (long d = 0; d < width; ++d) out[d] = out[d] * old + weight * value[d];
      largest = next;
    }
    for (long d = 0; d < width; ++d) out[d] /= sum;
  }
}
