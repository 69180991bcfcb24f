#include <algorithm>
#include <cmath>

extern "C" void drawdown(float* below, float* least, const float* x, long rows, long n) {
#pragma omp parallel for
  for (long r = 0; r < rows; ++r) {
    float top = x[r * n], low = 0;
    for (long i = 0; i < n; ++i) {
      const float value = x[r * n + i];
      top = value != value || top != top ? NAN : std::max(top, value);
      const float depth = value - top;
      below[r * n + i] = depth;
      low = depth != depth || low != low ? NAN : std::min(low, depth);
    }
    least[r] = low;
  }
}
