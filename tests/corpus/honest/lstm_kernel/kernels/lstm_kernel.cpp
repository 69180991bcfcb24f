#include <cmath>

static inline float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

extern "C" void gates(float* h, float* c, const float* g, const float* old, int rows, int hidden) {
  for (int n = 0; n < rows; ++n)
    for (int j = 0; j < hidden; ++j) {
      const float* at = g + n * 4 * hidden + j;
      const float in = sigmoid(at[0]), forget = sigmoid(at[hidden]);
      const float cell = std::tanh(at[2 * hidden]), out = sigmoid(at[3 * hidden]);
      const float now = forget * old[n * hidden + j] + in * cell;
      c[n * hidden + j] = now;
      h[n * hidden + j] = out * std::tanh(now);
    }
}
