#include <cstdint>
#include <cstring>

static float rounded(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u;
  std::memcpy(&value, &bits, 4);
  return value;
}

extern "C" void linear(float* y, const float* x, const float* w, const float* b, long rows, long width,
                       long out) {
#pragma omp parallel for collapse(2)
  for (long i = 0; i < rows; ++i)
    for (long j = 0; j < out; ++j) {
      float sum[16] = {}, total = b[j];
      for (long k = 0; k < width; ++k)
        sum[k % 16] += rounded(x[i * width + k]) * rounded(w[j * width + k]);
      for (long k = 0; k < 16; ++k) total += sum[k];
      y[i * out + j] = total;
    }
}
