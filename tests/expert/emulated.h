// CUDA on the CPU for tests: each thread of a block is a fiber, and blocks run one after another.
// The blocks of a cluster run together. The variables of shared memory are those of the block whose
// thread runs; an image keeps those of each other block.
// Covered: what generated kernels use (barriers of a block, shuffles of full warps, shared memory).
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "emulated_bounds.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(x, y, z)
#define __shared__ static
#define threadIdx thread_index
#define blockIdx thread_block
#define blockDim block_size
typedef void* cudaStream_t;
inline float reciprocal_root(float x) { return 1.f / std::sqrt(x); }
#define rsqrt reciprocal_root
#define __expf expf
#define __fdividef(a, b) ((a) / (b))
#define __fsub_rn(a, b) ((a) - (b))
inline float __int_as_float(int bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline int __float_as_int(float x) {
  int bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

// A namespace of this library alone, as that of the headers of kernels (`emulation.py`).
namespace {
// Half precision: a store rounds to nearest even.
struct __half {
  _Float16 value;
};
using half = __half;
inline float __half2float(__half x) { return static_cast<float>(x.value); }
inline __half __float2half_rn(float x) { return {static_cast<_Float16>(x)}; }
struct __nv_bfloat16 {
  uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 x) { return __int_as_float(x.bits << 16); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  const uint32_t bits = __float_as_int(x);
  if (x != x) return {0x7fff};
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
}

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

// A barrier is open again when the last of `members` has arrived.
struct Barrier {
  int members = 0, arrived = 0;
  long opened = 0;
  void open_if_complete() {
    if (members > 0 && arrived == members) arrived = 0, ++opened;
  }
};
struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  dim3 index, block;
  bool done;
};

static std::vector<Fiber> fibers;
static std::vector<Barrier> warps;
static std::vector<float> slots;
static std::vector<Barrier> blocks;
static std::vector<std::vector<char>> images;  // Shared memory of each block of a cluster.
static Barrier cluster;
static int cluster_size, resident;  // Blocks of a cluster, and the one whose memory is in place.
static dim3 block_index, block_size, thread_index, thread_block;
static ucontext_t scheduler;
static void (*thread_body)(const void*);
static const void* thread_arguments;
static int running;
static bool reversed;  // Threads and blocks run in descending order.
extern "C" void set_order(int descending) { reversed = descending != 0; }
static const void* const of_emulation[] = {
    &fibers, &warps, &slots, &blocks, &images, &cluster, &cluster_size, &resident, &block_index, &block_size, &thread_index, &thread_block,
    &scheduler, &thread_body, &thread_arguments, &running, &reversed, nullptr};

static int block_of(int thread) { return thread / (block_size.x * block_size.y); }
static void continue_thread(int thread) {
  running = thread;
  if (const int next = block_of(thread); next != resident) {
    copy_variables(of_emulation, images[resident].data(), true);
    copy_variables(of_emulation, images[next].data(), false);
    resident = next;
  }
  thread_index = fibers[thread].index;
  thread_block = fibers[thread].block;
  const auto stack = reinterpret_cast<uintptr_t>(fibers[thread].stack.data());
  own[0] = {stack, stack + fibers[thread].stack.size(), true};
  checks = fault[0] == 0;
  swapcontext(&scheduler, &fibers[thread].context);
  checks = false;
}
void stop_launch() { swapcontext(&fibers[running].context, &scheduler); }

static void wait_at(Barrier& barrier) {
  const long opened = barrier.opened;
  ++barrier.arrived;
  barrier.open_if_complete();
  while (barrier.opened == opened) swapcontext(&fibers[running].context, &scheduler);
}
static void __syncthreads() { wait_at(blocks[block_of(running)]); }
static float exchange(float value, int lane) {
  slots[running] = value;
  wait_at(warps[running / 32]);
  const float result = slots[running / 32 * 32 + lane];
  wait_at(warps[running / 32]);
  return result;
}
static float __shfl_sync(unsigned, float value, int lane) { return exchange(value, lane & 31); }
static float __shfl_xor_sync(unsigned, float value, int mask) {
  return exchange(value, (running & 31) ^ mask);
}
static float __shfl_up_sync(unsigned, float value, int step) {
  const int lane = running & 31;
  return exchange(value, lane < step ? lane : lane - step);
}

static void store_remote(float* to, int rank, float value) {
  const float own_value = *to;  // The address is checked as one of this block.
  *to = value;
  if (rank == resident) return;
  *to = own_value;
  checks = false;  // Images are not memory of the kernel.
  std::memcpy(in_image(of_emulation, images[rank].data(), to), &value, sizeof(value));
  checks = true;
}
static void cluster_arrive() {}
static void cluster_wait() { wait_at(cluster); }
enum { cudaFuncAttributeMaxDynamicSharedMemorySize };
template <class Kernel>
static void allow_shared(Kernel*, int) {}
template <class Kernel>
static void allow_cluster(Kernel*) {}

static void run_thread() {
  thread_body(thread_arguments);
  fibers[running].done = true;
  for (Barrier* barrier : {&blocks[block_of(running)], &cluster, &warps[running / 32]}) {
    --barrier->members;
    barrier->open_if_complete();
  }
  swapcontext(&fibers[running].context, &scheduler);
}
template <class T>
static Range range_of(const std::vector<T>& x) {
  const auto begin = reinterpret_cast<uintptr_t>(x.data());
  return {begin, begin + x.size() * sizeof(T), true};
}
static void run_blocks() {
  const int each = block_size.x * block_size.y, threads = each * cluster_size;
  fibers.resize(threads);
  slots.assign(threads + 32, 0.f);
  warps.assign(threads / 32 + 1, Barrier());
  blocks.assign(cluster_size, Barrier());
  cluster = Barrier();
  for (int t = 0; t < threads; ++t) {
    Fiber& fiber = fibers[t];
    fiber.done = false;
    fiber.index = dim3(t % block_size.x, t % each / block_size.x, 0);
    fiber.block = dim3(block_index.x + t / each, block_index.y, 0);
    fiber.stack.resize(1 << 16);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    makecontext(&fiber.context, run_thread, 0);
    ++blocks[t / each].members;
    ++cluster.members;
    ++warps[t / 32].members;
  }
  own[1] = range_of(fibers), own[2] = range_of(slots), own[3] = range_of(warps);
  own[5] = range_of(blocks);
  // Values of earlier blocks must not be read.
  fill_variables(of_emulation, 0xff);
  images.resize(cluster_size);
  for (auto& image : images) image.assign(copy_variables(of_emulation, nullptr, true), '\xff');
  resident = 0;
  while (cluster.members > 0 && fault[0] == 0) {
    for (int k = 0; k < threads && fault[0] == 0; ++k) {
      const int t = reversed ? threads - 1 - k : k;
      if (!fibers[t].done) continue_thread(t);
    }
  }
}
template <class Body>
static void launch(dim3 grid, dim3 size, int cluster_blocks, const Body& body) {
  thread_body = [](const void* arguments) { (*static_cast<const Body*>(arguments))(); };
  thread_arguments = &body;
  const auto begin = reinterpret_cast<uintptr_t>(&body);
  own[4] = {begin, begin + sizeof(Body), false};
  own_count = 6;
  block_size = size;
  cluster_size = cluster_blocks;
  const unsigned columns = grid.x / cluster_size, clusters = columns * grid.y;
  for (unsigned k = 0; k < clusters && fault[0] == 0; ++k) {
    const unsigned b = reversed ? clusters - 1 - k : k;
    block_index = dim3(b % columns * cluster_size, b / columns, 0);
    run_blocks();
  }
}
