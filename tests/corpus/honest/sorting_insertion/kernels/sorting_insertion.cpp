extern "C" void insertion(float* values, long* places, const float* x, long rows, long width) {
  for (long i = 0; i < rows; ++i) {
    float* row = values + i * width;
    long* place = places + i * width;
    for (long k = 0; k < width; ++k) {
      long at = k;
      for (; at > 0 && row[at - 1] > x[i * width + k]; --at) {
        row[at] = row[at - 1];
        place[at] = place[at - 1];
      }
      row[at] = x[i * width + k];
      place[at] = k;
    }
  }
}
