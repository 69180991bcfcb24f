#include <algorithm>
#include <cmath>

struct Sum {
  float total = 0, lost = 0;
  void add(float term) {
    const float mended = term - lost, next = total + mended;
    lost = (next - total) - mended;
    total = next;
  }
};

extern "C" void cosine(float* y, float* unit, const float* a, const float* b, long rows, long width) {
  for (long i = 0; i < rows; ++i) {
    const float *p = a + i * width, *q = b + i * width;
    Sum both, first, second;
    for (long k = 0; k < width; ++k) {
      both.add(p[k] * q[k]);
      first.add(p[k] * p[k]);
      second.add(q[k] * q[k]);
    }
    const float along = std::sqrt(first.total), across = std::sqrt(second.total);
    y[i] = both.total / (std::max(along, 1e-8f) * std::max(across, 1e-8f));
    for (long k = 0; k < width; ++k) unit[i * width + k] = p[k] / std::max(along, 1e-12f);
  }
}
