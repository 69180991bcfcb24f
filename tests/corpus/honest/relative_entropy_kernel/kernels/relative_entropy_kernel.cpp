#include <cmath>

extern "C" void entropy(float* y, const float* counts, const float* rates, long rows, long n) {
#pragma omp parallel for
  for (long r = 0; r < rows; ++r) {
    float total = 0, sum = 0;
    for (long i = 0; i < n; ++i) total += counts[r * n + i];
    const float least = total < 1 ? 1.0f : total;
    for (long i = 0; i < n; ++i) {
      const float share = counts[r * n + i] / least;
      const float own = share == 0 ? 0.0f : share * std::log(share);
      sum += own - share * rates[i];
    }
    y[r] = sum;
  }
}
