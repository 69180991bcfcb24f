#include <cmath>

extern "C" void sample(float* y, const float* x, const float* places, int batch, int channels,
                       int height, int width, int count) {
  for (int n = 0; n < batch; ++n)
    for (int i = 0; i < count; ++i) {
      const float* at = places + (n * count + i) * 2;
      const float h = ((std::tanh(at[0]) * 1.2f + 1) * width - 1) / 2;
      const float v = ((std::tanh(at[1]) * 1.2f + 1) * height - 1) / 2;
      const int left = static_cast<int>(std::floor(h)), top = static_cast<int>(std::floor(v));
      const float right = h - left, below = v - top;
      for (int c = 0; c < channels; ++c) {
        const float* image = x + (n * channels + c) * height * width;
        float sum = 0;
        for (int corner = 0; corner < 4; ++corner) {
          const int row = top + corner / 2, column = left + corner % 2;
          if (row < 0 || row >= height || column < 0 || column >= width) continue;
          sum += image[row * width + column] * (corner / 2 ? below : 1 - below) *
                 (corner % 2 ? right : 1 - right);
        }
        y[(n * channels + c) * count + i] = sum;
      }
    }
}
