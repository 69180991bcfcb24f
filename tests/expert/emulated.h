// CUDA on the CPU for tests: each thread of a block is a fiber, and blocks run one after another.
// The blocks of a cluster run together and have one shared memory: it models arrays of which every
// block writes the same elements to all blocks.
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
#define __launch_bounds__(threads)
#define __cluster_dims__(x, y, z)
#ifndef CLUSTER_SIZE
#define CLUSTER_SIZE 1
#endif
#define __shared__ static
#define threadIdx thread_index
#define blockIdx thread_block
#define blockDim block_size
typedef void* cudaStream_t;
inline float reciprocal_root(float x) { return 1.f / std::sqrt(x); }
#define rsqrt reciprocal_root
#define __expf expf
#define __fdividef(a, b) ((a) / (b))
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
static Barrier block;
static dim3 block_index, block_size, thread_index, thread_block;
static ucontext_t scheduler;
static void (*thread_body)(const void*);
static const void* thread_arguments;
static int running;
static bool reversed;  // Threads and blocks run in descending order.
extern "C" void set_order(int descending) { reversed = descending != 0; }
static const void* const of_emulation[] = {
    &fibers, &warps, &slots, &block, &block_index, &block_size, &thread_index, &thread_block,
    &scheduler, &thread_body, &thread_arguments, &running, &reversed, nullptr};

static void continue_thread(int thread) {
  running = thread;
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
static void __syncthreads() { wait_at(block); }
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

// The barrier of all threads that run together is that of the cluster.
static void store_remote(float* to, int, float value) { *to = value; }
static void cluster_arrive() {}
static void cluster_wait() { wait_at(block); }

static void run_thread() {
  thread_body(thread_arguments);
  fibers[running].done = true;
  for (Barrier* barrier : {&block, &warps[running / 32]}) {
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
  const int each = block_size.x * block_size.y, threads = each * CLUSTER_SIZE;
  fibers.resize(threads);
  slots.assign(threads + 32, 0.f);
  warps.assign(threads / 32 + 1, Barrier());
  block = Barrier();
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
    ++block.members;
    ++warps[t / 32].members;
  }
  own[1] = range_of(fibers), own[2] = range_of(slots), own[3] = range_of(warps);
  // Values of earlier blocks must not be read.
  fill_variables(of_emulation, 0xff);
  while (block.members > 0 && fault[0] == 0) {
    for (int k = 0; k < threads && fault[0] == 0; ++k) {
      const int t = reversed ? threads - 1 - k : k;
      if (!fibers[t].done) continue_thread(t);
    }
  }
}
template <class Body>
static void launch(dim3 grid, dim3 size, const Body& body) {
  thread_body = [](const void* arguments) { (*static_cast<const Body*>(arguments))(); };
  thread_arguments = &body;
  const auto begin = reinterpret_cast<uintptr_t>(&body);
  own[4] = {begin, begin + sizeof(Body), false};
  own_count = 5;
  block_size = size;
  const unsigned columns = grid.x / CLUSTER_SIZE, blocks = columns * grid.y;
  for (unsigned k = 0; k < blocks && fault[0] == 0; ++k) {
    const unsigned b = reversed ? blocks - 1 - k : k;
    block_index = dim3(b % columns * CLUSTER_SIZE, b / columns, 0);
    run_blocks();
  }
}
