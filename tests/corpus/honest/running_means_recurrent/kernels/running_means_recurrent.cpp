extern "C" void means(float* y, const float* x, long rows, long width) {
  for (long i = 0; i < rows; ++i) {
    double mean = 0;
    for (long d = 0; d < width; ++d) {
      mean += (x[i * width + d] - mean) / (d + 1);
      y[i * width + d] = static_cast<float>(mean);
    }
  }
}
