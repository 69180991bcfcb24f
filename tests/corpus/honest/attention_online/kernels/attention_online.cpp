#include <algorithm>
#include <cmath>
#include <vector>

extern "C" void attention(float* y, const float* q, const float* k, const float* v, long heads,
                          long length, long width, float scale) {
#pragma omp parallel for collapse(2)
  for (long h = 0; h < heads; ++h)
    for (long i = 0; i < length; ++i) {
      const float* query = q + (h * length + i) * width;
      std::vector<float> sum(width, 0.0f);
      float top = -INFINITY, total = 0;
      for (long j = 0; j <= i; ++j) {
        const float* key = k + (h * length + j) * width;
        float score = 0;
        for (long d = 0; d < width; ++d) score += query[d] * key[d];
        score *= scale;
        const float larger = std::max(top, score);
        const float old = std::exp(top - larger), now = std::exp(score - larger);
        total = total * old + now;
        for (long d = 0; d < width; ++d) sum[d] = sum[d] * old + now * v[(h * length + j) * width + d];
        top = larger;
      }
      for (long d = 0; d < width; ++d) y[(h * length + i) * width + d] = sum[d] / total;
    }
}
