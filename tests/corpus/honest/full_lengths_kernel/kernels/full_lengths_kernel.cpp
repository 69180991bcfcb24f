#include <algorithm>

extern "C" void pool(float* y, const float* x, const long* lengths, long samples, long length,
                     long width) {
  for (long n = 0; n < samples; ++n) {
    const long steps = std::min(lengths[n], length);
    const float* sample = x + n * length * width;
    float* out = y + n * 2 * width;
    std::fill(out, out + width, 0.0f);
    for (long t = 0; t < steps; ++t)
      for (long d = 0; d < width; ++d) out[d] += sample[t * width + d];
    const float members = std::max(lengths[n], 1L);
    const long last = std::max(steps - 1, 0L);
    for (long d = 0; d < width; ++d) out[d] /= members;
    for (long d = 0; d < width; ++d) out[width + d] = sample[last * width + d];
  }
}
