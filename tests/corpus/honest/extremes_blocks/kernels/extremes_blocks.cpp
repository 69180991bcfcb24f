#include <algorithm>
#include <cmath>

constexpr long BLOCK = 256;

extern "C" void extremes(float* most, float* least, long* place, float* all, const float* x, long count,
                         long length, long width) {
  float top = -INFINITY;
  for (long n = 0; n < count; ++n)
    for (long j = 0; j < width; ++j) {
      const float* column = x + n * length * width + j;
      float high = -INFINITY, low = INFINITY;
      long where = 0;
      for (long begin = 0; begin < length; begin += BLOCK) {
        const long end = std::min(begin + BLOCK, length);
        for (long i = begin; i < end; ++i) {
          const float value = column[i * width];
          if (value > high) high = value, where = i;
          if (value < low) low = value;
        }
      }
      most[n * width + j] = high;
      least[n * width + j] = low;
      place[n * width + j] = where;
      top = std::max(top, high);
    }
  all[0] = top;
}
