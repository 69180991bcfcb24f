#include <vector>

extern "C" void ranking(float* values, long* places, const float* x, long rows, long width, long count) {
  for (long i = 0; i < rows; ++i) {
    std::vector<bool> taken(width, false);
    for (long n = 0; n < count; ++n) {
      long best = -1;
      for (long k = 0; k < width; ++k)
        if (!taken[k] && (best < 0 || x[i * width + k] > x[i * width + best])) best = k;
      taken[best] = true;
      values[i * count + n] = x[i * width + best];
      places[i * count + n] = best;
    }
  }
}
