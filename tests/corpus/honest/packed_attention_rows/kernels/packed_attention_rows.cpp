#include <algorithm>
#include <cmath>
#include <vector>

extern "C" void attend(float* y, const float* q, const float* k, const float* v,
                       const long* bounds, long count, long heads, long width, long numbers) {
  const float scale = 1 / std::sqrt(static_cast<float>(width));
#pragma omp parallel for
  for (long i = 0; i < count; ++i) {
    long begin = 0, end = count;
    for (long b = 1; b < numbers; ++b)
      if (bounds[b] <= i)
        begin = std::max(begin, bounds[b]);
      else
        end = std::min(end, bounds[b]);
    std::vector<float> score(end - begin);
    for (long h = 0; h < heads; ++h) {
      const float* query = q + (i * heads + h) * width;
      float largest = -INFINITY, sum = 0;
      for (long j = begin; j < end; ++j) {
        float dot = 0;
        for (long d = 0; d < width; ++d) dot += query[d] * k[(j * heads + h) * width + d];
        score[j - begin] = dot * scale;
        largest = std::max(largest, dot * scale);
      }
      for (float& s : score) sum += s = std::exp(s - largest);
      for (long d = 0; d < width; ++d) {
        float total = 0;
        for (long j = begin; j < end; ++j)
          total += score[j - begin] * v[(j * heads + h) * width + d];
        y[(i * heads + h) * width + d] = total / sum;
      }
    }
  }
}
