extern "C" void masked_mean(float* y, const float* x, const bool* mask, long count, long length, long width) {
  for (long n = 0; n < count; ++n)
    for (long d = 0; d < width; ++d) {
      float sum = 0, seen = 0;
      for (long t = 0; t < length; ++t)
        if (mask[n * length + t]) {
          sum += x[(n * length + t) * width + d];
          seen += 1;
        }
      y[n * width + d] = seen > 0 ? sum / seen : 0;
    }
}
