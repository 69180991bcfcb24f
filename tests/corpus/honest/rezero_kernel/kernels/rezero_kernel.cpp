#include <cmath>

extern "C" void block(float* y, const float* x, const float* w, const float* b, const float* alpha,
                      long rows, long width) {
#pragma omp parallel for
  for (long i = 0; i < rows; ++i)
    for (long j = 0; j < width; ++j) {
      float z = b[j];
      for (long d = 0; d < width; ++d) z += w[j * width + d] * x[i * width + d];
      y[i * width + j] = x[i * width + j] + alpha[0] * z / (1 + std::exp(-z));
    }
}
