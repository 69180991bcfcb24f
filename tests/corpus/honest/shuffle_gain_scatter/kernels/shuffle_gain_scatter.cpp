extern "C" void shuffle(float* y, const float* x, const float* gain, long n, long channels, long h, long w) {
#pragma omp parallel for
  for (long s = 0; s < n * channels; ++s) {
    const long c = s % channels;
    for (long q = 0; q < 4; ++q)
      for (long i = 0; i < h; ++i)
        for (long j = 0; j < w; ++j) {
          const long row = 2 * i + q / 2, column = 2 * j + q % 2;
          y[(s * 2 * h + row) * 2 * w + column] = x[((s * 4 + q) * h + i) * w + j] * gain[c];
        }
  }
}
