extern "C" void average(float* y, const float* x, const float* keep, long samples, long length,
                        long channels) {
#pragma omp parallel for collapse(2)
  for (long n = 0; n < samples; ++n)
    for (long c = 0; c < channels; ++c) {
      float state = 0;
      const float share = 1 - keep[c];
      for (long t = 0; t < length; ++t) {
        const long at = (n * length + t) * channels + c;
        state = keep[c] * state + share * x[at];
        y[at] = state;
      }
    }
}
