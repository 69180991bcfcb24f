#include <cmath>

extern "C" void nan_mean(float* y, const float* x, long rows, long width) {
#pragma omp parallel for
  for (long i = 0; i < rows; ++i) {
    float sum = 0;
    long members = 0;
    for (long k = i * width; k < (i + 1) * width; ++k)
      if (!std::isnan(x[k])) {
        sum += x[k];
        ++members;
      }
    y[i] = sum / members;
  }
}
