static inline float dot(const float* a, const float* b, long n) {
  float sum = 0;
  for (long k = 0; k < n; ++k) sum += a[k] * b[k];
  return sum;
}
