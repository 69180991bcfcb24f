extern "C" void linear_kahan(float* y, const float* x, const float* w, const float* b, int rows,
                             int width, int out) {
#pragma omp parallel for
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < out; ++j) {
      float sum = 0, lost = 0;
      for (int k = 0; k < width; ++k) {
        const float term = x[i * width + k] * w[j * width + k] - lost;
        const float next = sum + term;
        lost = (next - sum) - term;
        sum = next;
      }
      sum += b[j];
      y[i * out + j] = sum < 0 ? 0 : sum;
    }
}
