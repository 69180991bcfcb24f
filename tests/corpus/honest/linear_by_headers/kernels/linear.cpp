#define DOT "dot.h"
#include DOT
#include /* of the last step */ "rectifier.h"

extern "C" void linear(float* y, const float* x, const float* w, const float* b, long rows, long width,
                       long out) {
#pragma omp parallel for
  for (long i = 0; i < rows; ++i)
    for (long j = 0; j < out; ++j) y[i * out + j] = rectified(dot(x + i * width, w + j * width, width) + b[j]);
}
