extern "C" void product(_Float16* y, const _Float16* a, const _Float16* b, long rows, long inner, long columns) {
#pragma omp parallel for
  for (long i = 0; i < rows; ++i)
    for (long j = 0; j < columns; ++j) {
      float sum = 0;
      for (long k = 0; k < inner; ++k)
        sum += static_cast<float>(a[i * inner + k]) * static_cast<float>(b[k * columns + j]);
      y[i * columns + j] = static_cast<_Float16>(sum);
    }
}
