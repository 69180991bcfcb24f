#include <cmath>

extern "C" void softmax(float* y, const float* x, long rows, long width) {
#pragma omp parallel for
  for (long i = 0; i < rows; ++i) {
    const float* row = x + i * width;
    float top = -INFINITY, sum = 0;
    for (long k = 0; k < width; ++k) {
      const float larger = row[k] > top ? row[k] : top;
      sum = sum * std::exp(top - larger) + std::exp(row[k] - larger);
      top = larger;
    }
    for (long k = 0; k < width; ++k) y[i * width + k] = std::exp(row[k] - top) / sum;
  }
}
