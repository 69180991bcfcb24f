#include <vector>

extern "C" void maxima(float* y, const float* values, const long* cells, long rows, long length,
                       long many) {
#pragma omp parallel for
  for (long i = 0; i < rows; ++i) {
    std::vector<char> hit(many, 0);
    for (long j = 0; j < length; ++j) {
      const float v = values[i * length + j];
      const long k = cells[i * length + j];
      if (!hit[k] || v > y[i * many + k] || v != v) y[i * many + k] = v;
      hit[k] = 1;
    }
  }
}
