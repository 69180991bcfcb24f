#include <algorithm>
#include <cmath>

extern "C" void lookup(float* y, const float* x, const float* edges, const float* table, long count,
                       long numbers, long width) {
#pragma omp parallel for
  for (long i = 0; i < count; ++i) {
    const long at = std::upper_bound(edges, edges + numbers, x[i]) - edges;
    for (long d = 0; d < width; ++d) y[i * width + d] = table[at * width + d];
  }
}
