// Runtime for g++ -fsanitize=thread that finds two unordered writes to the same memory.
//
// The compiler calls it before each access. Before some writes it waits for a moment: if the value
// changes meanwhile, another thread wrote without waiting for this one. Correct locks, barriers and
// atomics exclude that, so they need not be known here (unlike in ThreadSanitizer, which does not
// know those of libgomp). The wait also makes lost updates frequent. The method is that of KCSAN.
//
// Not seen: threads that reach the same memory more than some milliseconds apart. Threads that
// store an equal value, such as a flag, are not reported. Each place in the code is sampled often at
// first and then more rarely. There are no includes, whose names could conflict with the source's.

#define CUAGENT_OWN __attribute__((no_sanitize("thread"), visibility("hidden")))

extern "C" long syscall(long, ...) noexcept;

namespace cuagent_races {
#if defined(__x86_64__)
constexpr long WRITE = 1, YIELD = 24, SLEEP = 35;
#else
constexpr long WRITE = 64, YIELD = 124, SLEEP = 101;
#endif
constexpr unsigned SITES = 512, ALWAYS = 8, LARGEST_GAP = 4096, LARGEST = 16;
constexpr __SIZE_TYPE__ STACK = 1 << 16;
struct Thread {
  unsigned seen[SITES], next[SITES], random, generation;
  const volatile char* written;  // address of the last write if its value changed, else null
  __SIZE_TYPE__ size;
  char other[LARGEST];
};
static thread_local Thread own;
static int reported;
static unsigned generation = 1;  // number of threads so far; a new one makes all sample afresh

CUAGENT_OWN inline bool same(const volatile char* a, const volatile char* b, __SIZE_TYPE__ size) {
  for (__SIZE_TYPE__ i = 0; i < size; ++i)
    if (a[i] != b[i]) return false;
  return true;
}

// Report the last write if it stored another value than the other thread's.
CUAGENT_OWN inline void settle() {
  if (!own.written) return;
  const bool differs = !same(own.written, own.other, own.size);
  own.written = nullptr;
  if (!differs || __atomic_exchange_n(&reported, 1, __ATOMIC_RELAXED)) return;
  constexpr char text[] = "\ncuagent: data race in " __BASE_FILE__ "\n";
  syscall(WRITE, 2, text, sizeof text - 1);
}

// Wait for some microseconds; for a new place sometimes for milliseconds, until late threads come.
CUAGENT_OWN inline void wait(unsigned count) {
  own.random = own.random * 1664525u + 1013904223u;
  const unsigned choice = own.random >> 28;
  long time[2] = {0, 1000 + (own.random >> 12 & 0x7fff)};
  if (count <= ALWAYS && !choice) {
    time[1] = 16000L << (own.random >> 8) % 9;
  } else if (choice < 9) {
    for (unsigned i = choice % 4; i < 4; ++i) syscall(YIELD);
    return;
  }
  syscall(SLEEP, time, nullptr);
}

// Return how often this place was reached since the last new thread, or 0 to leave it out.
CUAGENT_OWN inline unsigned sampled(const void* site) {
  if (!own.random) {
    own.random = (unsigned)((__UINTPTR_TYPE__)&own >> 4) | 1;
    __atomic_fetch_add(&generation, 1, __ATOMIC_RELAXED);
  }
  const unsigned now = __atomic_load_n(&generation, __ATOMIC_RELAXED);
  if (own.generation != now) {
    own.generation = now;
    for (unsigned i = 0; i < SITES; ++i) own.seen[i] = own.next[i] = 0;
  }
  const unsigned slot = (__UINTPTR_TYPE__)site * 0x9E3779B97F4A7C15ull >> 55;
  const unsigned count = ++own.seen[slot];
  if (count < own.next[slot]) return 0;
  const unsigned gap = count / ALWAYS < LARGEST_GAP ? count / ALWAYS : LARGEST_GAP;
  own.next[slot] = count + 1 + (gap ? own.random % (2 * gap) : 0);
  return count;
}

CUAGENT_OWN inline bool on_own_stack(const volatile void* p) {
  const char* frame = (const char*)__builtin_frame_address(0);
  return (__SIZE_TYPE__)((const char*)p - frame + STACK) < 2 * STACK;
}

CUAGENT_OWN inline void reads(const void* p, const void* site) {
  settle();
  if (on_own_stack(p)) return;
  if (const unsigned count = sampled(site)) wait(count);
}

CUAGENT_OWN inline void writes(const void* p, __SIZE_TYPE__ size, const void* site) {
  settle();
  if (on_own_stack(p)) return;
  const unsigned count = sampled(site);
  if (!count) return;
  const volatile char* at = (const volatile char*)p;
  if (size > LARGEST) size = LARGEST;
  char before[LARGEST];
  for (__SIZE_TYPE__ i = 0; i < size; ++i) before[i] = at[i];
  wait(count);
  for (__SIZE_TYPE__ i = 0; i < size; ++i) own.other[i] = at[i];
  if (!same(before, own.other, size)) own.written = at, own.size = size;
}
}  // namespace cuagent_races

#define CUAGENT_ACCESS(name, size)                              \
  CUAGENT_OWN void __tsan_##name##read##size(void* p) {         \
    cuagent_races::reads(p, __builtin_return_address(0));       \
  }                                                             \
  CUAGENT_OWN void __tsan_##name##write##size(void* p) {        \
    cuagent_races::writes(p, size, __builtin_return_address(0)); \
  }
#define CUAGENT_FETCH(bits, T, name)                                           \
  CUAGENT_OWN T __tsan_atomic##bits##_fetch_##name(volatile T* p, T v, int) {  \
    cuagent_races::settle();                                                   \
    return __atomic_fetch_##name(p, v, __ATOMIC_SEQ_CST);                      \
  }
#define CUAGENT_COMPARE(bits, T, name)                                                          \
  CUAGENT_OWN int __tsan_atomic##bits##_compare_exchange_##name(volatile T* p, T* e, T v, int,  \
                                                                int) {                          \
    cuagent_races::settle();                                                                    \
    return __atomic_compare_exchange_n(p, e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);     \
  }
#define CUAGENT_ATOMICS(bits, T)                                                          \
  CUAGENT_OWN T __tsan_atomic##bits##_load(const volatile T* p, int) {                    \
    cuagent_races::settle();                                                              \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                          \
  }                                                                                       \
  CUAGENT_OWN void __tsan_atomic##bits##_store(volatile T* p, T v, int) {                 \
    cuagent_races::settle();                                                              \
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                             \
  }                                                                                       \
  CUAGENT_OWN T __tsan_atomic##bits##_exchange(volatile T* p, T v, int) {                 \
    cuagent_races::settle();                                                              \
    return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                   \
  }                                                                                       \
  CUAGENT_OWN T __tsan_atomic##bits##_compare_exchange_val(volatile T* p, T e, T v, int,  \
                                                           int) {                         \
    cuagent_races::settle();                                                              \
    __atomic_compare_exchange_n(p, &e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);     \
    return e;                                                                             \
  }                                                                                       \
  CUAGENT_FETCH(bits, T, add) CUAGENT_FETCH(bits, T, sub) CUAGENT_FETCH(bits, T, and)     \
  CUAGENT_FETCH(bits, T, or) CUAGENT_FETCH(bits, T, xor) CUAGENT_FETCH(bits, T, nand)     \
  CUAGENT_COMPARE(bits, T, strong) CUAGENT_COMPARE(bits, T, weak)

extern "C" {
CUAGENT_OWN void __tsan_init() {}
CUAGENT_OWN void __tsan_func_entry(void*) {}
CUAGENT_OWN void __tsan_func_exit() { cuagent_races::settle(); }
CUAGENT_OWN void __tsan_vptr_update(void**, void*) {}
CUAGENT_OWN void __tsan_vptr_read(void**) {}
CUAGENT_ACCESS(, 1)
CUAGENT_ACCESS(, 2)
CUAGENT_ACCESS(, 4)
CUAGENT_ACCESS(, 8)
CUAGENT_ACCESS(, 16)
CUAGENT_ACCESS(unaligned_, 2)
CUAGENT_ACCESS(unaligned_, 4)
CUAGENT_ACCESS(unaligned_, 8)
CUAGENT_ACCESS(unaligned_, 16)
CUAGENT_ACCESS(volatile_, 1)
CUAGENT_ACCESS(volatile_, 2)
CUAGENT_ACCESS(volatile_, 4)
CUAGENT_ACCESS(volatile_, 8)
CUAGENT_ACCESS(volatile_, 16)
CUAGENT_OWN void __tsan_read_range(void* p, __SIZE_TYPE__) {
  cuagent_races::reads(p, __builtin_return_address(0));
}
CUAGENT_OWN void __tsan_write_range(void* p, __SIZE_TYPE__ size) {
  cuagent_races::writes(p, size, __builtin_return_address(0));
}
CUAGENT_ATOMICS(8, unsigned char)
CUAGENT_ATOMICS(16, unsigned short)
CUAGENT_ATOMICS(32, unsigned int)
CUAGENT_ATOMICS(64, unsigned long)
CUAGENT_OWN void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
CUAGENT_OWN void __tsan_atomic_signal_fence(int) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
}
