// Check each access of an emulated kernel (`emulated_bounds.cpp`).
#pragma once
#include <cstdint>

struct Range {
  uintptr_t begin, end;
  bool writable;
};
extern Range own[5];     // Memory of the running thread and of the emulation.
extern int own_count;
extern char fault[400];  // Text of the first invalid access, or empty.
extern bool checks;      // A kernel's text runs.
void stop_launch();
// Fill each variable of the library with a byte, apart from constants and from `kept`.
void fill_variables(const void* const* kept, int byte);
