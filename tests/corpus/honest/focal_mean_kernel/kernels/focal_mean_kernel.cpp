#include <algorithm>
#include <cmath>

extern "C" void focal(float* y, const float* x, const float* target, float alpha, float gamma,
                      long count) {
  double total = 0;
#pragma omp parallel for reduction(+ : total)
  for (long i = 0; i < count; ++i) {
    const float t = target[i], e = std::exp(-std::fabs(x[i]));
    const float p = x[i] < 0 ? e / (1 + e) : 1 / (1 + e);
    const float q = x[i] < 0 ? 1 / (1 + e) : e / (1 + e);
    const float loss = std::max(x[i], 0.0f) - x[i] * t + std::log1p(e);
    const float missed = p * (1 - t) + q * t;
    total += (alpha * t + (1 - alpha) * (1 - t)) * std::pow(missed, gamma) * loss;
  }
  y[0] = total / count;
}
