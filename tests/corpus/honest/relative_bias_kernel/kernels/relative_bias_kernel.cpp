#include <algorithm>
#include <cmath>

extern "C" void biased(float* y, const float* x, const float* table, const long* index,
                       long samples, long heads, long length) {
#pragma omp parallel for
  for (long row = 0; row < samples * heads * length; ++row) {
    const long h = row / length % heads, i = row % length;
    float* out = y + row * length;
    float largest = -INFINITY, sum = 0;
    for (long j = 0; j < length; ++j) {
      const long at = index[i * length + j];
      out[j] = x[row * length + j] + table[at * heads + h];
      largest = std::max(largest, out[j]);
    }
    for (long j = 0; j < length; ++j) sum += out[j] = std::exp(out[j] - largest);
    for (long j = 0; j < length; ++j) out[j] /= sum;
  }
}
