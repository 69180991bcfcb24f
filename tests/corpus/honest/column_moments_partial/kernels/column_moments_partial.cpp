#include <algorithm>
#include <cstdlib>
#include <cstring>

static const long STRETCH = 64;

extern "C" int moments(float* mean, float* var, const float* x, long rows, long width) {
  const long parts = (rows + STRETCH - 1) / STRETCH;
  const size_t bytes = parts * width * sizeof(double);
  double* part = static_cast<double*>(std::malloc(bytes));
  if (part == nullptr) return 1;
  for (int pass = 0; pass < 2; ++pass) {
    std::memset(part, 0, bytes);
#pragma omp parallel for
    for (long p = 0; p < parts; ++p)
      for (long i = p * STRETCH; i < std::min((p + 1) * STRETCH, rows); ++i)
        for (long d = 0; d < width; ++d) {
          const double z = pass ? x[i * width + d] - mean[d] : x[i * width + d];
          part[p * width + d] += pass ? z * z : z;
        }
    float* out = pass ? var : mean;
    for (long d = 0; d < width; ++d) {
      double total = 0;
      for (long p = 0; p < parts; ++p) total += part[p * width + d];
      out[d] = total / rows;
    }
  }
  std::free(part);
  return 0;
}
