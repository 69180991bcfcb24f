#include <algorithm>

constexpr long TILE = 8;

extern "C" void product(float* y, const float* x, const float* w, const float* b, long size) {
#pragma omp parallel for collapse(2)
  for (long top = 0; top < size; top += TILE)
    for (long left = 0; left < size; left += TILE) {
      float sum[TILE][TILE] = {}, first[TILE][TILE], second[TILE][TILE];
      for (long begin = 0; begin < size; begin += TILE) {
        for (long i = 0; i < TILE; ++i)
          for (long j = 0; j < TILE; ++j) {
            const long k = begin + i;
            first[i][j] = k < size && top + j < size ? x[k * size + top + j] : 0;
            second[i][j] = k < size && left + j < size ? w[k * size + left + j] : 0;
          }
        for (long k = 0; k < TILE; ++k)
          for (long i = 0; i < TILE; ++i)
            for (long j = 0; j < TILE; ++j) sum[i][j] += first[k][i] * second[k][j];
      }
      for (long i = top; i < std::min(top + TILE, size); ++i)
        for (long j = left; j < std::min(left + TILE, size); ++j)
          y[i * size + j] = sum[i - top][j - left] + b[j];
    }
}
