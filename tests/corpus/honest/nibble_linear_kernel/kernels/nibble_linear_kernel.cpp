#include <cstdint>

extern "C" void multiply(float* y, const float* x, const uint8_t* codes, const float* scale,
                         const uint8_t* zero, long many, long rows, long width, long group) {
  for (long i = 0; i < many; ++i) {
    for (long o = 0; o < rows; ++o) {
      float total = 0;
      for (long g = 0; g < width / group; ++g) {
        float part = 0;
        for (long k = g * group; k < (g + 1) * group; ++k) {
          const int code = codes[(o * width + k) / 2];
          const int digit = k % 2 ? code >> 4 : code & 15;
          part += x[i * width + k] * (digit - zero[o * (width / group) + g]);
        }
        total += part * scale[o * (width / group) + g];
      }
      y[i * rows + o] = total;
    }
  }
}
