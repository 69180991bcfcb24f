#include <algorithm>
#include <cmath>
#include <cstdint>

extern "C" void blend(uint8_t* y, const uint8_t* a, const uint8_t* b, const float* share,
                      long channels, long pixels) {
#pragma omp parallel for
  for (long c = 0; c < channels; ++c) {
    for (long p = 0; p < pixels; ++p) {
      const float from = a[c * pixels + p], to = b[c * pixels + p];
      const float move = share[p] * (to - from);
      const float mixed = from + move;
      const float whole = std::nearbyint(mixed);
      y[c * pixels + p] = static_cast<uint8_t>(std::min(255.0f, std::max(0.0f, whole)));
    }
  }
}
