extern "C" void moments(float* mean, float* var, const float* x, long rows, long width) {
  for (long d = 0; d < width; ++d) mean[d] = var[d] = 0;
#pragma omp parallel for reduction(+ : mean[ : width])
  for (long i = 0; i < rows; ++i)
    for (long d = 0; d < width; ++d) mean[d] += x[i * width + d];
  for (long d = 0; d < width; ++d) mean[d] /= rows;
#pragma omp parallel for reduction(+ : var[ : width])
  for (long i = 0; i < rows; ++i)
    for (long d = 0; d < width; ++d) {
      const float z = x[i * width + d] - mean[d];
      var[d] += z * z;
    }
  for (long d = 0; d < width; ++d) var[d] /= rows;
}
