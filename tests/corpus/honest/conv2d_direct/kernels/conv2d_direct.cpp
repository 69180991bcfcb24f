extern "C" void conv(float* y, const float* x, const float* w, const float* b, long count, long inside,
                     long height, long width, long out) {
#pragma omp parallel for collapse(2)
  for (long n = 0; n < count; ++n)
    for (long o = 0; o < out; ++o)
      for (long i = 0; i < height; ++i)
        for (long j = 0; j < width; ++j) {
          float sum = b[o];
          for (long c = 0; c < inside; ++c)
            for (long u = 0; u < 3; ++u)
              for (long v = 0; v < 3; ++v) {
                const long row = i + u - 1, col = j + v - 1;
                if (row < 0 || row >= height || col < 0 || col >= width) continue;
                sum += x[((n * inside + c) * height + row) * width + col] *
                       w[((o * inside + c) * 3 + u) * 3 + v];
              }
          y[((n * out + o) * height + i) * width + j] = sum;
        }
}
