#include <cmath>

extern "C" void normalise(float* y, const float* x, const float* mean, const float* var, long rows,
                          long width) {
  for (long i = 0; i < rows; ++i)
    for (long d = 0; d < width; ++d) {
      const float z = (x[i * width + d] - mean[d]) / std::sqrt(var[d] + 1e-8f);
      y[i * width + d] = z < -5 ? -5 : z > 5 ? 5 : z;
    }
}
