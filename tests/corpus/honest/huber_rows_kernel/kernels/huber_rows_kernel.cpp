#include <cmath>

extern "C" void huber(float* y, const float* x, const float* target, float delta, long rows,
                      long width) {
#pragma omp parallel for
  for (long i = 0; i < rows; ++i) {
    float sum = 0;
    for (long k = i * width; k < (i + 1) * width; ++k) {
      const float d = std::fabs(x[k] - target[k]);
      sum += d <= delta ? 0.5f * d * d : delta * (d - 0.5f * delta);
    }
    y[i] = sum / width;
  }
}
