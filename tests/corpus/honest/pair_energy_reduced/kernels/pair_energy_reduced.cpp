#include <cmath>

extern "C" void energy(float* y, const float* points, long count) {
  double total = 0;
  float square;
#pragma omp parallel for schedule(static) private(square) reduction(+ : total)
  for (long i = 0; i < count; ++i)
    for (long j = i + 1; j < count; ++j) {
      square = 0;
      for (int a = 0; a < 3; ++a) {
        const float d = points[3 * i + a] - points[3 * j + a];
        square += d * d;
      }
      total += std::exp(-square);
    }
  y[0] = total;
}
