#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {
float read(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

uint16_t rounded(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (value != value) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
}  // namespace

extern "C" void add_norm(void* y, void* total, const void* x, const void* residual, const float* weight,
                         const float* bias, long rows, long n, float eps) {
  auto* out = static_cast<uint16_t*>(y);
  auto* sum = static_cast<uint16_t*>(total);
  auto* a = static_cast<const uint16_t*>(x);
  auto* b = static_cast<const uint16_t*>(residual);
#pragma omp parallel for
  for (long r = 0; r < rows; ++r) {
    std::vector<float> h(n);
    float mean = 0, square = 0;
    for (long i = 0; i < n; ++i) {
      sum[r * n + i] = rounded(read(a[r * n + i]) + read(b[r * n + i]));
      h[i] = read(sum[r * n + i]);
      mean += h[i];
    }
    mean /= n;
    for (long i = 0; i < n; ++i) square += (h[i] - mean) * (h[i] - mean);
    const float scale = 1 / std::sqrt(square / n + eps);
    for (long i = 0; i < n; ++i) out[r * n + i] = rounded((h[i] - mean) * scale * weight[i] + bias[i]);
  }
}
