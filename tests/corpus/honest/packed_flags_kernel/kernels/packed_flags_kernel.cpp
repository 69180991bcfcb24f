#include <cstdint>

extern "C" void pack(uint8_t* y, const float* x, long rows, long length) {
  const long bytes = (length + 7) / 8;
  for (long i = 0; i < rows; ++i) {
    for (long b = 0; b < bytes; ++b) {
      int byte = 0;
      for (long k = 0; k < 8; ++k) {
        const long at = b * 8 + k;
        if (at < length && x[i * length + at] > 0) byte |= 1 << k;
      }
      y[i * bytes + b] = byte;
    }
  }
}
