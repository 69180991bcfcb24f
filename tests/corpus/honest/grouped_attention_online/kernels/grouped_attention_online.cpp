#include <algorithm>
#include <cmath>

const int TILE = 16, WIDEST = 64;

extern "C" void attention(float* y, const float* q, const float* k, const float* v, int batch,
                          int heads, int queries, int width, int groups, int keys, float scale) {
  for (int h = 0; h < batch * heads; ++h) {
    const int group = h % heads / (heads / groups), at = (h / heads * groups + group) * keys;
    for (int i = 0; i < queries; ++i) {
      const float* query = q + (h * queries + i) * width;
      float sums[WIDEST] = {0}, most = -INFINITY, weight = 0;
      const int end = i + keys - queries + 1;
      for (int first = 0; first < end; first += TILE) {
        const int last = std::min(first + TILE, end);
        float scores[TILE], now = most;
        for (int t = first; t < last; ++t) {
          float score = 0;
          for (int c = 0; c < width; ++c) score += query[c] * k[(at + t) * width + c];
          scores[t - first] = score * scale;
          now = std::max(now, score * scale);
        }
        const float shrink = std::exp(most - now);
        weight *= shrink;
        for (int c = 0; c < width; ++c) sums[c] *= shrink;
        for (int t = first; t < last; ++t) {
          const float p = std::exp(scores[t - first] - now);
          weight += p;
          for (int c = 0; c < width; ++c) sums[c] += p * v[(at + t) * width + c];
        }
        most = now;
      }
      for (int c = 0; c < width; ++c) y[(h * queries + i) * width + c] = sums[c] / weight;
    }
  }
}
