extern "C" void add(float* y, const float* frames, const float* window, long rows, long many,
                    long size, long step) {
  const long length = (many - 1) * step + size;
#pragma omp parallel for collapse(2)
  for (long i = 0; i < rows; ++i) {
    for (long t = 0; t < length; ++t) {
      float total = 0, weight = 0;
      for (long k = 0; k < many; ++k) {
        const long at = t - k * step;
        if (at < 0 || at >= size) continue;
        total += frames[(i * many + k) * size + at] * window[at];
        weight += window[at] * window[at];
      }
      y[i * length + t] = total / weight;
    }
  }
}
