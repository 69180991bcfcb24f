#include <algorithm>
#include <cmath>

extern "C" void loss(float* y, const float* logits, const long* target, long rows, long classes) {
  float total = 0;
  for (long i = 0; i < rows; ++i) {
    const float* row = logits + i * classes;
    const float top = *std::max_element(row, row + classes);
    float sum = 0;
    for (long c = 0; c < classes; ++c) sum += std::exp(row[c] - top);
    total += std::log(sum) + top - row[target[i]];
  }
  y[0] = total / rows;
}
