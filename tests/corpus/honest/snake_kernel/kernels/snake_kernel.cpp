#include <cmath>

extern "C" void snake(float* y, const float* x, const float* rate, long samples, long channels,
                      long length) {
#pragma omp parallel for
  for (long line = 0; line < samples * channels; ++line) {
    const float a = rate[line % channels];
    for (long i = line * length; i < (line + 1) * length; ++i) {
      const float s = std::sin(a * x[i]);
      y[i] = x[i] + s * s / (a + 1e-9f);
    }
  }
}
