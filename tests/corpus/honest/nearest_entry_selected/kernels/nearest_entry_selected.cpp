#include <algorithm>
#include <cmath>

extern "C" void entries(float* y, const float* x, const float* table, long n, long width) {
  for (long i = 0; i < n; ++i) {
    const float place = std::nearbyint(x[i]);
    const long at = place > 31 ? 31 : place > 0 ? static_cast<long>(place) : 0;
    std::copy(table + at * width, table + (at + 1) * width, y + i * width);
  }
}
