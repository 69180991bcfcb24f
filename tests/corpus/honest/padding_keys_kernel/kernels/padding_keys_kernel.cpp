#include <algorithm>
#include <cmath>
#include <vector>

extern "C" void pool(float* y, const float* x, const float* weight, const bool* keep, long samples,
                     long length, long width) {
#pragma omp parallel for
  for (long n = 0; n < samples; ++n) {
    std::vector<float> score(length);
    const float* sample = x + n * length * width;
    float largest = -INFINITY, sum = 0;
    for (long t = 0; t < length; ++t) {
      float dot = 0;
      for (long d = 0; d < width; ++d) dot += sample[t * width + d] * weight[d];
      score[t] = keep[n * length + t] ? dot : -INFINITY;
      largest = std::max(largest, score[t]);
    }
    for (long t = 0; t < length; ++t) sum += score[t] = std::exp(score[t] - largest);
    for (long d = 0; d < width; ++d) {
      float total = 0;
      for (long t = 0; t < length; ++t) total += score[t] / sum * sample[t * width + d];
      y[n * width + d] = total;
    }
  }
}
