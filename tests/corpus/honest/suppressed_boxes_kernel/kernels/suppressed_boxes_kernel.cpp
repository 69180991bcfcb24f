#include <algorithm>

static float side(float low, float high) { return std::max(high - low, 0.0f); }

static float area(const float* b) { return side(b[0], b[2]) * side(b[1], b[3]); }

extern "C" void keep(bool* kept, const float* boxes, long many, float share) {
  for (long i = 0; i < many; ++i) {
    const float* a = boxes + 4 * i;
    kept[i] = true;
    for (long k = 0; k < i && kept[i]; ++k) {
      if (!kept[k]) continue;
      const float* b = boxes + 4 * k;
      const float both = side(std::max(a[0], b[0]), std::min(a[2], b[2])) *
                         side(std::max(a[1], b[1]), std::min(a[3], b[3]));
      if (both > share * (area(a) + area(b) - both)) kept[i] = false;
    }
  }
}
