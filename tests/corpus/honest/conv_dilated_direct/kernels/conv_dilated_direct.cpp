#include <algorithm>

constexpr long STRIDE = 2, PADDING = 2, DILATION = 2, GROUPS = 2, TAPS = 3;

extern "C" void conv(float* y, const float* x, const float* w, const float* b, long count, long inside,
                     long height, long width, long out, long rows, long columns) {
  const long from = inside / GROUPS, to = out / GROUPS;
#pragma omp parallel for collapse(2)
  for (long n = 0; n < count; ++n)
    for (long o = 0; o < out; ++o)
      for (long i = 0; i < rows; ++i)
        for (long j = 0; j < columns; ++j) {
          float sum = b[o];
          for (long c = 0; c < from; ++c)
            for (long u = 0; u < TAPS; ++u)
              for (long v = 0; v < TAPS; ++v) {
                const long r = i * STRIDE - PADDING + u * DILATION;
                const long s = j * STRIDE - PADDING + v * DILATION;
                if (r < 0 || r >= height || s < 0 || s >= width) continue;
                const long channel = o / to * from + c;
                sum += x[((n * inside + channel) * height + r) * width + s] *
                       w[((o * from + c) * TAPS + u) * TAPS + v];
              }
          y[((n * out + o) * rows + i) * columns + j] = std::min(std::max(sum, 0.0f), 6.0f);
        }
}
