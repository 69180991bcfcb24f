extern "C" void moments(float* mean, float* variance, float* top, const float* x, long rows, long width) {
  for (long i = 0; i < rows; ++i) {
    const float* row = x + i * width;
    float m = 0, s = 0, t = row[0];
    for (long k = 0; k < width; ++k) {
      const float delta = row[k] - m;
      m += delta / (k + 1);
      s += delta * (row[k] - m);
      if (row[k] > t) t = row[k];
    }
    mean[i] = m;
    variance[i] = s / width;
    top[i] = t;
  }
}
