#include <algorithm>
#include <vector>

extern "C" void order(long* order, float* sorted, const long* keys, const float* values, long rows,
                      long length, long least, long most) {
  std::vector<long> start(most - least + 2);
  for (long i = 0; i < rows; ++i) {
    std::fill(start.begin(), start.end(), 0);
    for (long j = 0; j < length; ++j) ++start[keys[i * length + j] - least + 1];
    for (long k = 1; k < long(start.size()); ++k) start[k] += start[k - 1];
    for (long j = 0; j < length; ++j) {
      const long at = start[keys[i * length + j] - least]++;
      order[i * length + at] = j;
      sorted[i * length + at] = values[i * length + j];
    }
  }
}
