// Check each access of an emulated kernel (`emulated_bounds.cpp`).
#pragma once
#include <cstddef>
#include <cstdint>

struct Range {
  uintptr_t begin, end;
  bool writable;
};
extern Range own[6];     // Memory of the running thread and of the emulation.
extern int own_count;
extern char fault[400];  // Text of the first invalid access, or empty.
extern bool checks;      // A kernel's text runs.
void stop_launch();
// Fill each variable of the library with a byte, apart from constants and from `kept`.
void fill_variables(const void* const* kept, int byte);
// Copy these variables to `image` or from it; return their bytes. No image: count alone.
size_t copy_variables(const void* const* kept, char* image, bool to_image);
// The place in an image of an address in these variables.
char* in_image(const void* const* kept, char* image, const void* address);
