#include <algorithm>

extern "C" void pairs(float* y, const float* scores, const long* relevance, long lists, long n) {
#pragma omp parallel for
  for (long l = 0; l < lists; ++l) {
    const float* s = scores + l * n;
    const long* r = relevance + l * n;
    float sum = 0;
    long count = 0;
    for (long i = 0; i < n; ++i) {
      float part = 0;
      for (long j = 0; j < n; ++j)
        if (r[i] > r[j]) {
          part += std::max(0.0f, 1 - (s[i] - s[j]));
          ++count;
        }
      sum += part;
    }
    y[l] = sum / std::max(count, 1l);
  }
}
