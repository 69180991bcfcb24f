#include <algorithm>
#include <cmath>

extern "C" void thresholds(float* bins, long* places, long* above, float* shrunk, const float* x,
                           const float* ends, long rows, long width, long count) {
  std::fill(bins, bins + 16, 0.0f);
  for (long i = 0; i < rows; ++i) {
    above[i] = 0;
    for (long k = i * width; k < (i + 1) * width; ++k) {
      if (x[k] >= -3 && x[k] <= 3) bins[std::min(15L, static_cast<long>((x[k] + 3) * 16 / 6))] += 1;
      places[k] = std::lower_bound(ends, ends + count, x[k]) - ends;
      above[i] += x[k] > 0.5f;
      shrunk[k] = std::fabs(x[k]) > 0.5f ? x[k] : 0;
    }
  }
}
