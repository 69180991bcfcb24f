#include <algorithm>
#include <cmath>
#include <vector>

static float middle(std::vector<float>& a) {
  const long k = (static_cast<long>(a.size()) - 1) / 2;
  for (float v : a)
    if (v != v) return v;
  std::nth_element(a.begin(), a.begin() + k, a.end());
  return a[k];
}

extern "C" void deviations(float* y, const float* x, long rows, long n) {
#pragma omp parallel for
  for (long r = 0; r < rows; ++r) {
    std::vector<float> a(x + r * n, x + (r + 1) * n);
    const float median = middle(a);
    for (long i = 0; i < n; ++i) a[i] = std::fabs(x[r * n + i] - median);
    const float spread = middle(a) + 1e-3f;
    for (long i = 0; i < n; ++i) y[r * n + i] = (x[r * n + i] - median) / spread;
  }
}
