extern "C" void rotary(float* y, const float* x, const float* cosine, const float* sine, long heads,
                       long length, long width) {
  const long half = width / 2;
  for (long h = 0; h < heads; ++h)
    for (long t = 0; t < length; ++t) {
      const float* row = x + (h * length + t) * width;
      float* out = y + (h * length + t) * width;
      for (long d = 0; d < half; ++d) {
        const float c = cosine[t * half + d], s = sine[t * half + d];
        out[d] = row[d] * c - row[d + half] * s;
        out[d + half] = row[d + half] * c + row[d] * s;
      }
    }
}
