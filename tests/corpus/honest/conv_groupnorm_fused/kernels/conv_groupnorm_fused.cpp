#include <cmath>
#include <vector>

extern "C" void forward(float* y, const float* x, const float* w, const float* b, const float* gain,
                        const float* shift, float eps, long count, long inside, long height, long width,
                        long out, long groups) {
  const long rows = height - 2, columns = width - 2, per = out / groups;
#pragma omp parallel for collapse(2)
  for (long n = 0; n < count; ++n)
    for (long g = 0; g < groups; ++g) {
      std::vector<float> kept(per * rows * columns);
      float mean = 0, squares = 0;
      long seen = 0;
      for (long o = g * per; o < (g + 1) * per; ++o)
        for (long i = 0; i < rows; ++i)
          for (long j = 0; j < columns; ++j) {
            float sum = b[o];
            for (long c = 0; c < inside; ++c)
              for (long t = 0; t < 9; ++t)
                sum += x[((n * inside + c) * height + i + t / 3) * width + j + t % 3] *
                       w[(o * inside + c) * 9 + t];
            const float delta = sum - mean;
            kept[seen++] = sum;
            mean += delta / seen;
            squares += delta * (sum - mean);
          }
      const float scale = 1 / std::sqrt(squares / seen + eps);
      for (long k = 0; k < seen; ++k) {
        const long o = g * per + k / (rows * columns);
        const float value = (kept[k] - mean) * scale * gain[o] + shift[o];
        y[(n * out + g * per) * rows * columns + k] = value > 0 ? value : 0;
      }
    }
}
