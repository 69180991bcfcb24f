// Check each access of an emulated kernel: the compiler calls the functions at the end before it
// (-fsanitize=kernel-address for memory, -fsanitize=bounds,alignment for arrays and vectors).
// An access is valid inside of an argument's tensor, of a shared array, and of the thread's own
// memory. The first other access is reported, and ends the launch.
#include "emulated_bounds.h"

#include <cstdio>
#include <cstring>

// What the compiler registers of a variable with static storage.
struct Variable {
  uintptr_t begin;
  size_t size, padded;
  const char *name, *module;
  uintptr_t initialized, location, indicator;
};

static constexpr int MOST_TENSORS = 256, MOST_VARIABLES = 1024;
static Range tensors[MOST_TENSORS];
static int tensor_count, variable_count;
static Variable variables[MOST_VARIABLES];
Range own[6];
int own_count;
char fault[400];
bool checks;
extern "C" char __ehdr_start[] __attribute__((visibility("hidden")));
extern "C" char __bss_start[] __attribute__((visibility("hidden")));
extern "C" char _end[] __attribute__((visibility("hidden")));

static bool holds(const Range& range, uintptr_t at, size_t bytes) {
  return range.begin <= at && at + bytes <= range.end;
}
static void report(const char* text) {
  if (fault[0] == 0) std::snprintf(fault, sizeof(fault), "%s", text);
  checks = false;
  stop_launch();
}
static void check(uintptr_t at, size_t bytes, bool writes) {
  if (!checks) return;
  const char* const verb = writes ? "writes" : "reads";
  char text[300];
  for (int k = 0; k < own_count; ++k) {
    if (holds(own[k], at, bytes)) return;
  }
  for (int k = 0; k < tensor_count; ++k) {
    if (!holds(tensors[k], at, bytes)) continue;
    if (!writes || tensors[k].writable) return;
    std::snprintf(text, sizeof(text), "writes to the constant tensor %d", k);
    return report(text);
  }
  for (int k = 0; k < variable_count; ++k) {
    const Variable& one = variables[k];
    if (at + bytes <= one.begin || one.begin + one.padded <= at) continue;
    if (one.begin <= at && at + bytes <= one.begin + one.size) return;
    std::snprintf(text, sizeof(text), "%s %zu bytes at byte %ld of %s, which has %zu", verb, bytes,
                  static_cast<long>(at - one.begin), one.name, one.size);
    return report(text);
  }
  const auto first = reinterpret_cast<uintptr_t>(__ehdr_start);
  if (first <= at && at + bytes <= reinterpret_cast<uintptr_t>(_end)) return;
  int nearest = 0;
  auto distance = [&](int k) {
    const long before = tensors[k].begin - at, behind = at + bytes - tensors[k].end;
    return before > behind ? before : behind;
  };
  for (int k = 1; k < tensor_count; ++k) {
    if (distance(k) < distance(nearest)) nearest = k;
  }
  std::snprintf(text, sizeof(text), "%s %zu bytes at byte %ld of tensor %d, which has %ld", verb,
                bytes, static_cast<long>(at - tensors[nearest].begin), nearest,
                static_cast<long>(tensors[nearest].end - tensors[nearest].begin));
  report(text);
}
// Call `visit` for each variable of the library apart from constants and from `kept`.
template <class Visit>
static void each_variable(const void* const* kept, const Visit& visit) {
  for (int k = 0; k < variable_count; ++k) {
    const Variable& one = variables[k];
    const void* const* found = kept;
    while (*found != nullptr && reinterpret_cast<uintptr_t>(*found) != one.begin) ++found;
    const bool is_constant = one.begin < reinterpret_cast<uintptr_t>(__bss_start);
    if (*found == nullptr && !is_constant) visit(one);
  }
}
void fill_variables(const void* const* kept, int byte) {
  each_variable(kept, [&](const Variable& one) {
    std::memset(reinterpret_cast<void*>(one.begin), byte, one.size);
  });
}
size_t copy_variables(const void* const* kept, char* image, bool to_image) {
  size_t bytes = 0;
  each_variable(kept, [&](const Variable& one) {
    void* const memory = reinterpret_cast<void*>(one.begin);
    if (image != nullptr && to_image) std::memcpy(image + bytes, memory, one.size);
    if (image != nullptr && !to_image) std::memcpy(memory, image + bytes, one.size);
    bytes += one.size;
  });
  return bytes;
}
char* in_image(const void* const* kept, char* image, const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  char* found = nullptr;
  each_variable(kept, [&](const Variable& one) {
    if (one.begin <= at && at < one.begin + one.size) found = image + (at - one.begin);
    image += one.size;
  });
  return found;
}

struct Location {
  const char* file;
  uint32_t line, column;
};
extern "C" {
void __asan_register_globals(Variable* given, intptr_t count) {
  for (int k = 0; k < count && variable_count < MOST_VARIABLES; ++k) {
    variables[variable_count++] = given[k];
  }
}
void __asan_unregister_globals(void*, intptr_t) {}
void __asan_before_dynamic_init(const char*) {}
void __asan_after_dynamic_init() {}
void __asan_handle_no_return() {}
#define CHECKED(bytes)                                                                        \
  void __asan_load##bytes##_noabort(uintptr_t at) { check(at, bytes, false); }               \
  void __asan_store##bytes##_noabort(uintptr_t at) { check(at, bytes, true); }
CHECKED(1)
CHECKED(2)
CHECKED(4)
CHECKED(8)
CHECKED(16)
void __asan_loadN_noabort(uintptr_t at, size_t bytes) { check(at, bytes, false); }
void __asan_storeN_noabort(uintptr_t at, size_t bytes) { check(at, bytes, true); }

static void report_line(const char* what, const Location* place) {
  char text[200];
  std::snprintf(text, sizeof(text), "%s in line %u", what, place->line);
  if (checks) report(text);
}
void __ubsan_handle_out_of_bounds(const Location* place, uintptr_t) {
  report_line("index outside of an array", place);
}
void __ubsan_handle_type_mismatch_v1(const Location* place, uintptr_t) {
  report_line("address of a vector is not a multiple of its size", place);
}

// For the caller: declare the tensors of the next launches, and read the first fault.
void set_tensor(int k, uintptr_t begin, uintptr_t end, int writable) {
  tensors[k] = {begin, end, writable != 0};
  tensor_count = k + 1;
}
const char* first_fault() { return fault; }
}
