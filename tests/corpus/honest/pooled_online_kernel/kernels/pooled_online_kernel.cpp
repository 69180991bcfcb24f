#include <algorithm>
#include <cmath>

static const long BLOCK = 64;

extern "C" void pool(float* y, const float* scores, const float* values, long samples, long length,
                     long width) {
#pragma omp parallel for
  for (long n = 0; n < samples; ++n) {
    float* out = y + n * width;
    std::fill(out, out + width, 0.0f);
    float largest = -INFINITY, sum = 0;
    for (long begin = 0; begin < length; begin += BLOCK) {
      const long end = std::min(begin + BLOCK, length);
      const float* score = scores + n * length;
      float next = largest;
      for (long t = begin; t < end; ++t) next = std::max(next, score[t]);
      const float fade = std::exp(largest - next);
      sum *= fade;
      for (long d = 0; d < width; ++d) out[d] *= fade;
      for (long t = begin; t < end; ++t) {
        const float weight = std::exp(score[t] - next);
        sum += weight;
        for (long d = 0; d < width; ++d) out[d] += weight * values[(n * length + t) * width + d];
      }
      largest = next;
    }
    for (long d = 0; d < width; ++d) out[d] /= sum;
  }
}
