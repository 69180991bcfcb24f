#include <cstdint>

extern "C" void hash(float* y, const long* ids, const float* values, long rows, long length,
                     long buckets) {
  for (long i = 0; i < rows; ++i) {
    for (long j = 0; j < length; ++j) {
      const int64_t id = ids[i * length + j];
      const int64_t mixed = int64_t(uint64_t(id) * 2654435761u) ^ (id >> 7);
      const int64_t rest = mixed % buckets;
      const int64_t bucket = rest < 0 ? rest + buckets : rest;
      const float v = values[i * length + j];
      y[i * buckets + bucket] += (mixed >> 16) & 1 ? -v : v;
    }
  }
}
