// Compensated: what an addition loses is kept.
extern "C" void totals(float* y, const float* x, long rows, long width) {
#pragma omp parallel for
  for (long i = 0; i < rows; ++i) {
    float sum = 0, lost = 0;
    for (long d = 0; d < width; ++d) {
      const float term = x[i * width + d] - lost;
      const float next = sum + term;
      lost = (next - sum) - term;
      sum = next;
    }
    y[i] = sum;
  }
}
