#include <algorithm>
#include <cmath>

constexpr long EXPERTS = 8;

extern "C" void experts(float* loss, long* taken, const float* x, const float* w, long rows, long width) {
  float share[EXPERTS] = {};
  std::fill(taken, taken + EXPERTS, 0);
  for (long i = 0; i < rows; ++i) {
    float p[EXPERTS] = {}, sum = 0;
    for (long e = 0; e < EXPERTS; ++e)
      for (long k = 0; k < width; ++k) p[e] += x[i * width + k] * w[e * width + k];
    const float top = *std::max_element(p, p + EXPERTS);
    for (long e = 0; e < EXPERTS; ++e) sum += p[e] = std::exp(p[e] - top);
    for (long e = 0; e < EXPERTS; ++e) p[e] /= sum, share[e] += p[e];
    long first = 0, second = -1;
    for (long e = 1; e < EXPERTS; ++e)
      if (p[e] > p[first]) first = e;
    for (long e = 0; e < EXPERTS; ++e)
      if (e != first && (second < 0 || p[e] > p[second])) second = e;
    ++taken[first], ++taken[second];
  }
  float total = 0;
  for (long e = 0; e < EXPERTS; ++e) total += share[e] * taken[e];
  *loss = EXPERTS * total / (2.0f * rows * rows);
}
