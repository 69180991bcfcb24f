extern "C" void turn(float* y, const float* x, const long* positions, const float* cosine,
                     const float* sine, long heads, long length, long width) {
  const long half = width / 2;
#pragma omp parallel for collapse(2)
  for (long h = 0; h < heads; ++h)
    for (long t = 0; t < length; ++t) {
      const long at = positions[t];
      const float* row = x + (h * length + t) * width;
      float* out = y + (h * length + t) * width;
      for (long d = 0; d < half; ++d) {
        const float c = cosine[at * half + d], s = sine[at * half + d];
        out[2 * d] = row[2 * d] * c - row[2 * d + 1] * s;
        out[2 * d + 1] = row[2 * d + 1] * c + row[2 * d] * s;
      }
    }
}
