#include <omp.h>

#include <cstdlib>

extern "C" int add(float* sums, float* count, const float* weights, const long* label, long n,
                   long labels) {
  const int most = omp_get_max_threads();
  float* parts = static_cast<float*>(std::calloc(most * 2 * labels, sizeof(float)));
  if (parts == nullptr) return 1;
  int team = 1;
#pragma omp parallel
  {
#pragma omp single
    team = omp_get_num_threads();
    float* mine = parts + omp_get_thread_num() * 2 * labels;
#pragma omp for
    for (long i = 0; i < n; ++i) {
      mine[label[i]] += weights[i];
      mine[labels + label[i]] += 1;
    }
  }
  for (long c = 0; c < labels; ++c) {
    sums[c] = count[c] = 0;
    for (int t = 0; t < team; ++t) {
      sums[c] += parts[t * 2 * labels + c];
      count[c] += parts[t * 2 * labels + labels + c];
    }
  }
  std::free(parts);
  return 0;
}
