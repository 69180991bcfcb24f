#include <algorithm>
#include <cmath>

extern "C" void polar(float* length, float* angle, const float* x, const float* y,
                      const float* shift, long rows, long n) {
  const float turn = 6.283185307179586f;
#pragma omp parallel for
  for (long r = 0; r < rows; ++r) {
    for (long i = r * n; i < (r + 1) * n; ++i) {
      length[i] = std::hypot(x[i], y[i]);
      const float sum = std::atan2(y[i], x[i]) + shift[r];
      float rest = std::fmod(sum, turn);
      if (rest < 0) rest += turn;
      angle[i] = rest;
    }
  }
}
