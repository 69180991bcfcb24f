// Clusters of blocks (sm_90 and later): stores to the shared memory of each block, and a barrier.
#pragma once

// Store a value at the place `to` of the shared memory of block `rank`.
static __device__ __forceinline__ void store_remote(float* to, int rank, float value) {
  const unsigned own = static_cast<unsigned>(__cvta_generic_to_shared(to));
  unsigned place;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place) : "r"(own), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(place), "f"(value) : "memory");
}
// The two halves of a barrier for all threads of a cluster; earlier stores are visible behind it.
static __device__ __forceinline__ void cluster_arrive() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
static __device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Let a kernel use this many bytes of dynamic shared memory, which may exceed 48 KB.
template <class Kernel>
static void allow_shared(Kernel* kernel, int bytes) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}
// Let a kernel run in clusters of more than 8 blocks.
template <class Kernel>
static void allow_cluster(Kernel* kernel) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
}
