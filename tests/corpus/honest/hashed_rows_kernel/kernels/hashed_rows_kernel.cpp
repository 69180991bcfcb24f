#include <cstdint>
#include <cstring>

extern "C" void hashed(float* y, const int64_t* ids, const float* table, long count, long buckets,
                       long width) {
#pragma omp parallel for
  for (long i = 0; i < count; ++i) {
    const int64_t id = ids[i];
    const auto product = static_cast<int64_t>(static_cast<uint64_t>(id) * 2654435761u);
    int64_t bucket = ((id >> 7) ^ product) % buckets;
    if (bucket < 0) bucket += buckets;
    std::memcpy(y + i * width, table + bucket * width, width * sizeof(float));
  }
}
