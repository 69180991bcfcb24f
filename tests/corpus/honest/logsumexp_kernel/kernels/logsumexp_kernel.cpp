#include <cmath>

extern "C" void logsumexp(float* y, const float* x, long rows, long width) {
  for (long i = 0; i < rows; ++i) {
    float top = x[i * width], sum = 1;
    for (long k = 1; k < width; ++k) {
      const float value = x[i * width + k];
      if (value <= top) {
        sum += std::exp(value - top);
      } else {
        sum = sum * std::exp(top - value) + 1;
        top = value;
      }
    }
    y[i] = top + std::log(sum);
  }
}
