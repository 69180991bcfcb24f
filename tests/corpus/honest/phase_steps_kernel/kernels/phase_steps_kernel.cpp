#include <cmath>

extern "C" void unwrap(float* y, const float* x, long rows, long length, float turn) {
  for (long i = 0; i < rows; ++i) {
    const float* row = x + i * length;
    float turns = 0;
    y[i * length] = row[0];
    for (long j = 1; j < length; ++j) {
      turns += std::floor((row[j] - row[j - 1] + turn / 2) / turn);
      y[i * length + j] = row[j] - turns * turn;
    }
  }
}
