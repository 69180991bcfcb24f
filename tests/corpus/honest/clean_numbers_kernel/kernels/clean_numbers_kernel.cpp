#include <cmath>

extern "C" void clean(float* y, const float* x, const float* scale, const float* shift, long rows,
                      long width) {
  for (long i = 0; i < rows; ++i)
    for (long d = 0; d < width; ++d) {
      float a = x[i * width + d];
      if (std::isnan(a)) a = 0;
      if (std::isinf(a)) a = a > 0 ? 100 : -100;
      y[i * width + d] = a * scale[d] + shift[d];
    }
}
