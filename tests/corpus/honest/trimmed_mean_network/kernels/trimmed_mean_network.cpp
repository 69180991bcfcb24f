#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

extern "C" int trimmed(float* y, const float* x, long rows, long width) {
  const long cut = width / 4;
  long wide = 1;
  while (wide < width) wide *= 2;
  int failed = 0;
#pragma omp parallel for
  for (long i = 0; i < rows; ++i) {
    float* s = static_cast<float*>(std::malloc(wide * sizeof(float)));
    if (s == nullptr) {
#pragma omp atomic write
      failed = 1;
      continue;
    }
    std::memcpy(s, x + i * width, width * sizeof(float));
    for (long d = width; d < wide; ++d) s[d] = INFINITY;
    for (long size = 2; size <= wide; size *= 2)
      for (long step = size / 2; step > 0; step /= 2)
        for (long a = 0; a < wide; ++a) {
          const long b = a ^ step;
          if (b > a && (s[a] > s[b]) == ((a & size) == 0)) std::swap(s[a], s[b]);
        }
    float sum = 0;
    for (long d = cut; d < width - cut; ++d) sum += s[d];
    y[i] = sum / (width - 2 * cut);
    std::free(s);
  }
  return failed;
}
