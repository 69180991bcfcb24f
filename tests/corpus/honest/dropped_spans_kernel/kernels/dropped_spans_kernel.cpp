extern "C" void drop(float* y, const float* x, const long* start, const long* width,
                     const long* low, const long* high, long many, long bands, long times) {
  for (long i = 0; i < many; ++i) {
    const float* image = x + i * bands * times;
    double total = 0;
    for (long k = 0; k < bands * times; ++k) total += image[k];
    const float mean = total / (bands * times);
    for (long f = 0; f < bands; ++f) {
      for (long t = 0; t < times; ++t) {
        const bool hidden = (t >= start[i] && t < start[i] + width[i]) || (f >= low[i] && f < high[i]);
        y[(i * bands + f) * times + t] = hidden ? mean : image[f * times + t];
      }
    }
  }
}
