extern "C" void bags(float* y, const float* table, const long* index, long bags, long size, long width) {
#pragma omp parallel for
  for (long i = 0; i < bags; ++i)
    for (long d = 0; d < width; ++d) {
      float sum = 0;
      for (long j = 0; j < size; ++j) sum += table[index[i * size + j] * width + d];
      y[i * width + d] = sum / size;
    }
}
