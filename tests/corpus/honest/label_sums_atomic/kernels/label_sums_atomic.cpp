extern "C" void add(float* sums, float* count, const float* weights, const long* label, long n) {
#pragma omp parallel for
  for (long i = 0; i < n; ++i) {
#pragma omp atomic
    sums[label[i]] += weights[i];
#pragma omp atomic
    count[label[i]] += 1;
  }
}
