#include <algorithm>
#include <cmath>

static float length(const float* x, long width) {
  float sum = 0;
  for (long d = 0; d < width; ++d) sum += x[d] * x[d];
  return std::max(std::sqrt(sum), 1e-12f);
}

extern "C" void cosines(float* y, const float* a, const float* b, const float* logit_scale,
                        long rows, long columns, long width) {
  const float scale = std::exp(std::min(logit_scale[0], 4.6052f));
#pragma omp parallel for
  for (long i = 0; i < rows; ++i) {
    const float mine = length(a + i * width, width);
    for (long j = 0; j < columns; ++j) {
      const float theirs = length(b + j * width, width);
      float dot = 0;
      for (long d = 0; d < width; ++d) dot += a[i * width + d] / mine * (b[j * width + d] / theirs);
      y[i * columns + j] = scale * dot;
    }
  }
}
