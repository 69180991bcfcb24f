extern "C" void walk(float* y, const float* ring, const long* head, const float* fade, long rows,
                     long size) {
  for (long i = 0; i < rows; ++i) {
    long at = head[i] % size;
    for (long age = 0; age < size; ++age) {
      at = at == 0 ? size - 1 : at - 1;
      y[i * size + age] = ring[i * size + at] * fade[age];
    }
  }
}
