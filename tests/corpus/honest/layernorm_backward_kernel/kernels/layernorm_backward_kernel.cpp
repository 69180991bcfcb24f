#include <cmath>

extern "C" void backward(float* dx, float* dw, const float* dy, const float* x, const float* w,
                         float* kept, int rows, int width) {
  for (int i = 0; i < rows; ++i) {
    const float *xi = x + i * width, *di = dy + i * width;
    float sum = 0, squares = 0, level = 0, slope = 0;
    for (int j = 0; j < width; ++j) sum += xi[j];
    const float mean = sum / width;
    for (int j = 0; j < width; ++j) squares += (xi[j] - mean) * (xi[j] - mean);
    const float scale = 1.0f / std::sqrt(squares / width + 1e-5f);
    for (int j = 0; j < width; ++j) {
      level += di[j] * w[j];
      slope += di[j] * w[j] * (xi[j] - mean) * scale;
    }
    level /= width;
    slope /= width;
    for (int j = 0; j < width; ++j)
      dx[i * width + j] = scale * (di[j] * w[j] - level - (xi[j] - mean) * scale * slope);
    kept[2 * i] = mean;
    kept[2 * i + 1] = scale;
  }
  for (int j = 0; j < width; ++j) {
    float sum = 0;
    for (int i = 0; i < rows; ++i)
      sum += dy[i * width + j] * (x[i * width + j] - kept[2 * i]) * kept[2 * i + 1];
    dw[j] = sum;
  }
}
