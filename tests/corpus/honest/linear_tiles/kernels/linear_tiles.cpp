#include <algorithm>

constexpr long TILE = 8, BLOCK = 16;

extern "C" void linear_tiles(float* y, const float* x, const float* w, const float* b, long rows,
                             long width, long out) {
#pragma omp parallel for collapse(2)
  for (long top = 0; top < rows; top += TILE)
    for (long left = 0; left < out; left += TILE) {
      float total[TILE][TILE] = {};
      const long bottom = std::min(top + TILE, rows), right = std::min(left + TILE, out);
      for (long start = 0; start < width; start += BLOCK) {
        const long end = std::min(start + BLOCK, width);
        for (long i = top; i < bottom; ++i)
          for (long j = left; j < right; ++j) {
            float part = 0;
            for (long k = start; k < end; ++k) part += x[i * width + k] * w[j * width + k];
            total[i - top][j - left] += part;
          }
      }
      for (long i = top; i < bottom; ++i)
        for (long j = left; j < right; ++j)
          y[i * out + j] = std::max(total[i - top][j - left] + b[j], 0.0f);
    }
}
