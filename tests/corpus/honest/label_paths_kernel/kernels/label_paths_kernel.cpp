#include <algorithm>
#include <cmath>
#include <vector>

namespace {
constexpr float kLow = -1e30f;

float add(float a, float b) {
  const float top = std::max(a, b);
  return top <= kLow / 2 ? top : top + std::log1p(std::exp(std::min(a, b) - top));
}
}  // namespace

extern "C" void paths(float* y, const float* x, const long* labels, long batch, long steps, long classes, long count) {
  const long width = 2 * count + 1;
#pragma omp parallel for
  for (long n = 0; n < batch; ++n) {
    const long* own = labels + n * count;
    std::vector<float> now(width, kLow), next(width), logp(classes);
    for (long t = 0; t < steps; ++t) {
      const float* row = x + (n * steps + t) * classes;
      const float top = *std::max_element(row, row + classes);
      float sum = 0;
      for (long c = 0; c < classes; ++c) sum += std::exp(row[c] - top);
      for (long c = 0; c < classes; ++c) logp[c] = row[c] - top - std::log(sum);
      for (long s = 0; s < width; ++s) {
        const long label = s % 2 ? own[s / 2] : 0;
        float all = t ? now[s] : (s < 2 ? 0.0f : kLow);
        if (t && s > 0) all = add(all, now[s - 1]);
        if (t && s > 2 && s % 2 && label != own[s / 2 - 1]) all = add(all, now[s - 2]);
        next[s] = all + logp[label];
      }
      std::swap(now, next);
    }
    y[n] = add(now[width - 1], now[width - 2]);
  }
}
