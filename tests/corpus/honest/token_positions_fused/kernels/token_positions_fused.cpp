#include <cmath>

extern "C" void embed(float* y, const long* ids, const long* positions, const float* words,
                      const float* places, const float* gain, const float* shift, float eps,
                      long samples, long length, long width) {
#pragma omp parallel for
  for (long row = 0; row < samples * length; ++row) {
    const float* word = words + ids[row] * width;
    const float* place = places + positions[row] * width;
    float* out = y + row * width;
    float mean = 0, square = 0;
    for (long d = 0; d < width; ++d) mean += out[d] = word[d] + place[d];
    mean /= width;
    for (long d = 0; d < width; ++d) square += (out[d] - mean) * (out[d] - mean);
    const float scale = 1 / std::sqrt(square / width + eps);
    for (long d = 0; d < width; ++d) out[d] = (out[d] - mean) * scale * gain[d] + shift[d];
  }
}
