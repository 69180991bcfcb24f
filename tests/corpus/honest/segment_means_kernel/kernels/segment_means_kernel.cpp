#include <algorithm>
#include <vector>

extern "C" void means(float* y, const float* x, const long* ids, long rows, long segments,
                      long width) {
  std::vector<float> members(segments);
  std::fill(y, y + segments * width, 0.0f);
  for (long i = 0; i < rows; ++i) {
    const long s = ids[i];
    members[s] += 1;
    for (long d = 0; d < width; ++d) y[s * width + d] += x[i * width + d];
  }
  for (long s = 0; s < segments; ++s)
    for (long d = 0; d < width; ++d) y[s * width + d] /= std::max(members[s], 1.0f);
}
