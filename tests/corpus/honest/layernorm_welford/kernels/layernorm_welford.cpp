#include <cmath>

extern "C" void layernorm(float* y, const float* x, const float* weight, const float* bias, float eps,
                          long rows, long width) {
#pragma omp parallel for
  for (long i = 0; i < rows; ++i) {
    const float* row = x + i * width;
    float mean = 0, squares = 0;
    for (long k = 0; k < width; ++k) {
      const float delta = row[k] - mean;
      mean += delta / (k + 1);
      squares += delta * (row[k] - mean);
    }
    const float scale = 1 / std::sqrt(squares / width + eps);
    for (long k = 0; k < width; ++k) y[i * width + k] = (row[k] - mean) * scale * weight[k] + bias[k];
  }
}
