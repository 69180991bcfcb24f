#include <algorithm>
#include <cmath>

extern "C" void pool(float* y, const float* x, long planes, long height, long width, long rows, long columns) {
  for (long p = 0; p < planes; ++p)
    for (long i = 0; i < rows; ++i)
      for (long j = 0; j < columns; ++j) {
        const long top = std::max(2 * i - 1, 0L), bottom = std::min(2 * i + 2, height);
        const long left = std::max(2 * j - 1, 0L), right = std::min(2 * j + 2, width);
        float most = -INFINITY;
        for (long r = top; r < bottom; ++r)
          for (long c = left; c < right; ++c) most = std::max(most, x[(p * height + r) * width + c]);
        y[(p * rows + i) * columns + j] = most;
      }
}
