#include <algorithm>
#include <cmath>
#include <vector>

extern "C" void quantile(float* y, const float* x, long rows, long n, double q) {
#pragma omp parallel for
  for (long r = 0; r < rows; ++r) {
    std::vector<float> a(x + r * n, x + (r + 1) * n);
    if (std::any_of(a.begin(), a.end(), [](float v) { return v != v; })) {
      y[r] = NAN;
      continue;
    }
    const double place = q * (n - 1);
    const long k = static_cast<long>(place);
    const float share = static_cast<float>(place - k);
    std::nth_element(a.begin(), a.begin() + k, a.end());
    const float low = a[k];
    const float high = k + 1 < n ? *std::min_element(a.begin() + k + 1, a.end()) : low;
    y[r] = share < 0.5f ? low + share * (high - low) : high - (1 - share) * (high - low);
  }
}
