extern "C" void linear(float* y, const float* x, const float* w, const float* b, long rows, long width,
                       long out) {
#pragma omp parallel for
  for (long i = 0; i < rows; ++i)
    for (long j = 0; j < out; ++j) {
      float sum = b[j];
      for (long k = 0; k < width; ++k) sum += x[i * width + k] * w[j * width + k];
      y[i * out + j] = sum > 0 ? sum : 0;
    }
}
