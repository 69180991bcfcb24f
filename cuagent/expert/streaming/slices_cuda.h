// Part of a slice in a reduction of its row that depends on the row's mean or maximum.
#pragma once

// The squares about `mean` from those about the mean of the slice, which has `length` elements.
static __device__ __forceinline__ float centred_part(float squares, float own, float mean,
                                                     int length) {
  const float gap = own - mean;
  return squares + length * (gap * gap);
}
// The powers below `top` from those below the slice's maximum. A slice of -INFINITY has none.
static __device__ __forceinline__ float powers_part(float powers, float own, float top) {
  if (own == top) return powers;
  return own == -INFINITY ? 0.f : powers * expf(own - top);
}
