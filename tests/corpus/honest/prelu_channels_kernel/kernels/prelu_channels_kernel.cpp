extern "C" void prelu(float* y, const float* x, const float* slope, long samples, long channels,
                      long area) {
#pragma omp parallel for
  for (long plane = 0; plane < samples * channels; ++plane) {
    const float a = slope[plane % channels];
    for (long i = plane * area; i < (plane + 1) * area; ++i) y[i] = x[i] > 0 ? x[i] : a * x[i];
  }
}
