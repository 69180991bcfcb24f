#include <algorithm>
#include <cmath>
#include <vector>

extern "C" void attend(float* y, const float* q, const float* k, const float* v, const bool* mask,
                       long heads, long length, long width) {
  const float scale = 1 / std::sqrt(static_cast<float>(width));
#pragma omp parallel for
  for (long h = 0; h < heads; ++h) {
    std::vector<float> score(length);
    const long base = h * length * width;
    for (long i = 0; i < length; ++i) {
      float largest = -INFINITY, sum = 0;
      for (long j = 0; j < length; ++j) {
        float dot = 0;
        for (long d = 0; d < width; ++d) dot += q[base + i * width + d] * k[base + j * width + d];
        score[j] = mask[i * length + j] ? dot * scale : -INFINITY;
        largest = std::max(largest, score[j]);
      }
      for (long j = 0; j < length; ++j) sum += score[j] = std::exp(score[j] - largest);
      float* out = y + base + i * width;
      for (long d = 0; d < width; ++d) out[d] = 0;
      for (long j = 0; j < length; ++j)
        for (long d = 0; d < width; ++d) out[d] += score[j] / sum * v[base + j * width + d];
    }
  }
}
