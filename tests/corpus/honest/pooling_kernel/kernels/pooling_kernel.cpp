#include <algorithm>

extern "C" void maxima(float* y, const float* x, long planes, long height, long width) {
  for (long p = 0; p < planes; ++p)
    for (long i = 0; i < height / 2; ++i)
      for (long j = 0; j < width / 2; ++j) {
        const float* at = x + (p * height + 2 * i) * width + 2 * j;
        y[(p * (height / 2) + i) * (width / 2) + j] =
            std::max(std::max(at[0], at[1]), std::max(at[width], at[width + 1]));
      }
}

extern "C" void averages(float* y, const float* x, long planes, long height, long width) {
  const long rows = (height + 1) / 2, columns = (width + 1) / 2;
  for (long p = 0; p < planes; ++p)
    for (long i = 0; i < rows; ++i)
      for (long j = 0; j < columns; ++j) {
        float sum = 0;
        for (long r = std::max(0L, 2 * i - 1); r < std::min(height, 2 * i + 2); ++r)
          for (long c = std::max(0L, 2 * j - 1); c < std::min(width, 2 * j + 2); ++c)
            sum += x[(p * height + r) * width + c];
        y[(p * rows + i) * columns + j] = sum / 9;
      }
}
