#include <algorithm>

extern "C" void transpose(float* y, const float* x, long count, long rows, long columns) {
#pragma omp parallel for
  for (long n = 0; n < count; ++n)
    for (long i = 0; i < rows; i += 4)
      for (long j = 0; j < columns; j += 4)
        for (long u = i; u < std::min(i + 4, rows); ++u)
          for (long v = j; v < std::min(j + 4, columns); ++v)
            y[(n * columns + v) * rows + u] = 0.5f * x[(n * rows + u) * columns + v];
}
