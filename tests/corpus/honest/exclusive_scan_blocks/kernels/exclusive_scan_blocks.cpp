#include <algorithm>

static const long BLOCK = 512;

extern "C" void scan(float* y, const float* x, long rows, long width) {
#pragma omp parallel for
  for (long i = 0; i < rows; ++i) {
    float carry = 0;
    for (long start = 0; start < width; start += BLOCK) {
      float sum = 0;
      for (long d = start; d < std::min(start + BLOCK, width); ++d) {
        y[i * width + d] = carry + sum;
        sum += x[i * width + d];
      }
      carry += sum;
    }
  }
}
