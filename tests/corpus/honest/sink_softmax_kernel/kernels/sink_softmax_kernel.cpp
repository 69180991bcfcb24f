#include <algorithm>
#include <cmath>

extern "C" void softmax(float* y, const float* x, const float* sink, long rows, long heads,
                        long length, long width) {
#pragma omp parallel for
  for (long i = 0; i < rows; ++i) {
    const float extra = sink[i / length % heads];
    float largest = extra;
    for (long d = 0; d < width; ++d) largest = std::max(largest, x[i * width + d]);
    float sum = std::exp(extra - largest);
    for (long d = 0; d < width; ++d) sum += y[i * width + d] = std::exp(x[i * width + d] - largest);
    for (long d = 0; d < width; ++d) y[i * width + d] /= sum;
  }
}
