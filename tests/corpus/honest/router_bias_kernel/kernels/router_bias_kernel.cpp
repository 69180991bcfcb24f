#include <cmath>
#include <vector>

extern "C" void route(float* y, const float* logits, const float* bias, long rows, long experts,
                      long chosen) {
  for (long i = 0; i < rows; ++i) {
    std::vector<float> score(experts), biased(experts);
    for (long e = 0; e < experts; ++e) {
      score[e] = 1 / (1 + std::exp(-logits[i * experts + e]));
      biased[e] = score[e] + bias[e];
      y[i * experts + e] = 0;
    }
    float sum = 1e-20f;
    for (long k = 0; k < chosen; ++k) {
      float best = -INFINITY;
      long at = 0;
      for (long e = 0; e < experts; ++e)
        if (biased[e] > best) best = biased[e], at = e;
      biased[at] = -INFINITY;
      y[i * experts + at] = score[at];
      sum += score[at];
    }
    for (long e = 0; e < experts; ++e) y[i * experts + e] /= sum;
  }
}
