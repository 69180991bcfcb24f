// Pointwise functions for CUDA, with the names in generated kernels; libdevice computes them.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#define POINTWISE static __device__ __forceinline__

// N adjacent elements, aligned to their bytes, up to the 16 bytes of one access.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Elements { T at[N]; };

template <class T>
__device__ __forceinline__ void assign(T& to, T from) { to = from; }

// Load N adjacent elements as values in registers.
template <class T, class Value, int N>
__device__ __forceinline__ void load_vector(const T* from, Value (&to)[N]) {
  const Elements<T, N> elements = *reinterpret_cast<const Elements<T, N>*>(from);
#pragma unroll
  for (int k = 0; k < N; ++k) assign(to[k], elements.at[k]);
}

// Convert kept pairs of elements of type T to values. The compiler would keep the values of an
// earlier pass, which need twice as many registers, if it knew that the pairs are the same.
template <class T, class Value, int PAIRS, int N>
__device__ __forceinline__ void unpack(uint32_t (&pairs)[PAIRS], Value (&to)[N]) {
  static_assert(sizeof(T) == 2 && 2 * PAIRS == N, "two elements for each register");
#pragma unroll
  for (int k = 0; k < PAIRS; ++k) {
#ifdef __CUDA_ARCH__
    asm volatile("" : "+r"(pairs[k]));
#endif
    Elements<T, 2> pair;
    memcpy(&pair, &pairs[k], 4);
    assign(to[2 * k], pair.at[0]);
    assign(to[2 * k + 1], pair.at[1]);
  }
}

// Store N values as adjacent elements of shared memory.
template <class T, class Value, int N>
__device__ __forceinline__ void store_shared(T* to, const Value (&from)[N]) {
  Elements<T, N> elements;
#pragma unroll
  for (int k = 0; k < N; ++k) assign(elements.at[k], from[k]);
  *reinterpret_cast<Elements<T, N>*>(to) = elements;
}

// Store N values as adjacent elements of global memory, up to 16 bytes at a time. The compiler
// stores the elements of a structure one by one if a conditional block computes them.
template <class T, class Value, int N>
__device__ __forceinline__ void store_vector(T* to, const Value (&from)[N]) {
  Elements<T, N> elements;
#pragma unroll
  for (int k = 0; k < N; ++k) assign(elements.at[k], from[k]);
#ifdef __CUDA_ARCH__
  constexpr int BYTES = alignof(Elements<T, N>), WORDS = sizeof(elements) / 4;
  if constexpr (BYTES >= 4) {
    uint32_t w[WORDS];
    memcpy(w, &elements, sizeof(elements));
    const size_t begin = __cvta_generic_to_global(to);
#pragma unroll
    for (int k = 0; k < WORDS; k += BYTES / 4) {
      if constexpr (BYTES == 16)
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(begin + 4 * k), "r"(w[k]),
                     "r"(w[k + 1]), "r"(w[k + 2]), "r"(w[k + 3]) : "memory");
      else if constexpr (BYTES == 8)
        asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(begin + 4 * k), "r"(w[k]),
                     "r"(w[k + 1]) : "memory");
      else
        asm volatile("st.global.b32 [%0], %1;" ::"l"(begin + 4 * k), "r"(w[k]) : "memory");
    }
  } else
#endif
    *reinterpret_cast<Elements<T, N>*>(to) = elements;
}

// NaN in either argument gives NaN, as in torch.
POINTWISE float maximum(float a, float b) { return a != a ? a : (b > a || b != b ? b : a); }
POINTWISE float minimum(float a, float b) { return a != a ? a : (b < a || b != b ? b : a); }
// The same as maximum, in one instruction; of zeros it returns either.
POINTWISE float largest(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float value;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(value) : "f"(a), "f"(b));
  return value;
#else
  return maximum(a, b);
#endif
}
// a - b, where a product is rounded first: with one rounding, the largest of some products less
// their maximum is not 0, and its exponential may be infinite.
POINTWISE float difference(float a, float b) { return __fsub_rn(a, b); }
POINTWISE float relu(float x) { return x < 0.f ? 0.f : x; }
POINTWISE float absolute(float x) { return fabsf(x); }
POINTWISE float sign(float x) { return (x > 0.f) - (x < 0.f); }
POINTWISE float reciprocal(float x) { return 1.f / x; }
POINTWISE float square_root(float x) { return sqrtf(x); }
POINTWISE float round_down(float x) { return floorf(x); }
POINTWISE float round_to_even(float x) { return rintf(x); }
POINTWISE float round_to_zero(float x) { return truncf(x); }
POINTWISE float round_up(float x) { return ceilf(x); }
POINTWISE float sine(float x) { return sinf(x); }
POINTWISE float cosine(float x) { return cosf(x); }
POINTWISE float arc_sine(float x) { return asinf(x); }
POINTWISE float arc_cosine(float x) { return acosf(x); }
POINTWISE float arc_tangent(float x) { return atanf(x); }
POINTWISE float arc_tangent_of_point(float y, float x) { return atan2f(y, x); }
POINTWISE float power(float x, float y) { return powf(x, y); }
POINTWISE float exponential_of_two(float x) { return exp2f(x); }
POINTWISE float exponential(float x) { return expf(x); }
POINTWISE float exponential_of_nonpositive(float x) { return expf(x); }
POINTWISE float exponential_minus_one(float x) { return expm1f(x); }
POINTWISE float logarithm(float x) { return logf(x); }
POINTWISE float logarithm_one_plus(float x) { return log1pf(x); }
POINTWISE float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
POINTWISE float silu(float x) { return x / (1.f + expf(-x)); }
POINTWISE float hyperbolic_tangent(float x) { return tanhf(x); }
POINTWISE float error_function(float x) { return erff(x); }
// x Phi(x) with Phi(-t sqrt 2) = erfc(t) / 2 = exp(-t Q(t)) / 2. Q was fitted up to 4.25 and is
// constant from there on, where Phi is 0 or 1 for float. Within 2 ulp of |x|.
POINTWISE float gelu(float x) {
  const float t = fabsf(x) * 0.707106781f;
  const float c = fminf(t, 4.25f);
  float q = -7.23278917e-06f;
  q = fmaf(q, c, 9.82887773e-05f);
  q = fmaf(q, c, -0.000558194027f);
  q = fmaf(q, c, 0.00151726979f);
  q = fmaf(q, c, 7.74439856e-06f);
  q = fmaf(q, c, -0.0192588227f);
  q = fmaf(q, c, 0.102813061f);
  q = fmaf(q, c, 0.636613978f);
  q = fmaf(q, c, 1.12837944f);
  const float tail = 0.5f * expf(-t * q);
  return x * (x < 0.f ? tail : 1.f - tail);
}
// The same within 4e-5 of the value, for results in half precision; erff takes twice as many
// instructions, which bound a kernel.
POINTWISE float gelu_half(float x) {
  const float t = fabsf(x) * 0.707106781f;
  const float c = fminf(t, 4.f);
  float q = -0.000141628972f;
  q = fmaf(q, c, 0.00255983806f);
  q = fmaf(q, c, -0.0206622532f);
  q = fmaf(q, c, 0.101788842f);
  q = fmaf(q, c, 0.638110143f);
  q = fmaf(q, c, 1.12796812f);
  const float tail = 0.5f * __expf(-t * q);
  return x * (x < 0.f ? tail : 1.f - tail);
}
// (1 + tanh u) / 2 is the sigmoid of 2u.
POINTWISE float gelu_tanh(float x) {
  const float u = 0.797884561f * (x + 0.044715f * x * x * x);
  return x / (1.f + expf(-2.f * u));
}
POINTWISE float softplus(float x) { return x > 20.f ? x : log1pf(expf(x)); }
POINTWISE float log_sigmoid(float x) { return fminf(x, 0.f) - log1pf(expf(-fabsf(x))); }
// tanh(log(1 + e)) = n / (n + 2) with n = e (e + 2). Above 20 it is 1; NaN stays NaN.
POINTWISE float mish(float x) {
  const float e = expf(x > 20.f ? 20.f : x);
  const float n = e * (e + 2.f);
  return x * __fdividef(n, n + 2.f);
}
POINTWISE float elu(float x, float alpha) { return x > 0.f ? x : alpha * expm1f(x); }
POINTWISE float selu(float x) { return 1.05070098f * elu(x, 1.67326324f); }
POINTWISE float leaky_relu(float x, float slope) { return x > 0.f ? x : x * slope; }
POINTWISE float relu6(float x) { return minimum(maximum(x, 0.f), 6.f); }
POINTWISE float hardsigmoid(float x) { return relu6(x + 3.f) * 0.166666667f; }
POINTWISE float hardswish(float x) { return x * hardsigmoid(x); }
POINTWISE float softsign(float x) { return x / (1.f + fabsf(x)); }
POINTWISE float xlogx(float x) { return x == 0.f ? 0.f : x * logf(x); }

// The slice that an index selects; -1 if it is out of range.
template <long EXTENT, bool WRAPS>
POINTWISE long checked_slice(int64_t index) {
  const int64_t slice = WRAPS && index < 0 ? index + EXTENT : index;
  return slice >= 0 && slice < EXTENT ? slice : -1;
}
POINTWISE long slice_or_first(long slice) { return slice < 0 ? 0 : slice; }
POINTWISE float nan_if(bool wrong, float value) { return wrong ? NAN : value; }
constexpr int NAN_BITS = 0x7fc00000;
POINTWISE float or_bits(float value, int bits) {
  return __int_as_float(__float_as_int(value) | bits);
}

struct Sum {
  static __device__ __forceinline__ float identity() { return 0.f; }
  static __device__ __forceinline__ float join(float a, float b) { return a + b; }
};
struct Product {
  static __device__ __forceinline__ float identity() { return 1.f; }
  static __device__ __forceinline__ float join(float a, float b) { return a * b; }
};
struct Max {
  static __device__ __forceinline__ float identity() { return -INFINITY; }
  static __device__ __forceinline__ float join(float a, float b) { return b > a || b != b ? b : a; }
  static __device__ __forceinline__ bool beats(float a, float b) { return a > b; }
};
struct Min {
  static __device__ __forceinline__ float identity() { return INFINITY; }
  static __device__ __forceinline__ float join(float a, float b) { return b < a || b != b ? b : a; }
  static __device__ __forceinline__ bool beats(float a, float b) { return a < b; }
};

// Join an extreme and the place of the first element that has it with another pair. NaN is the
// extreme of all values.
template <class Join>
__device__ __forceinline__ void join_place(float& top, float& place, float value, float at) {
  const bool before = at < place;
  const bool better = Join::beats(value, top) || (value == top && before);
  if (better || (value != value && (top == top || before))) {
    top = value;
    place = at;
  }
}

// Reduce over THREADS threads in a fixed order; every thread gets the result. Several groups of
// fewer than 32 threads share a warp.
template <class Join, int THREADS>
__device__ __forceinline__ float reduce_block(float value) {
  constexpr int WARPS = (THREADS + 31) / 32;
#pragma unroll
  for (int step = WARPS == 1 ? THREADS / 2 : 16; step > 0; step >>= 1)
    value = Join::join(value, __shfl_xor_sync(0xffffffffu, value, step));
  if (WARPS == 1) return value;
  __shared__ float parts[WARPS];
  const int lane = threadIdx.x & 31;
  __syncthreads();
  if (lane == 0) parts[threadIdx.x >> 5] = value;
  __syncthreads();
  value = lane < WARPS ? parts[lane] : Join::identity();
#pragma unroll
  for (int step = 16; step > 0; step >>= 1)
    value = Join::join(value, __shfl_xor_sync(0xffffffffu, value, step));
  return value;
}

// Reduce over the LANES threads with equal threadIdx.x; each gets the result. blockDim:
// (WIDTH, LANES).
template <class Join, int LANES, int WIDTH>
__device__ __forceinline__ float reduce_lanes(float value) {
  if (LANES == 1) return value;
  __shared__ float parts[LANES][WIDTH + 1];
  __syncthreads();
  parts[threadIdx.y][threadIdx.x] = value;
  __syncthreads();
  value = parts[0][threadIdx.x];
#pragma unroll
  for (int lane = 1; lane < LANES; ++lane) value = Join::join(value, parts[lane][threadIdx.x]);
  return value;
}

// The same for several values; blockDim: (32, LANES).
template <class Join, int LANES, int COUNT>
__device__ __forceinline__ void join_lanes(float (&values)[COUNT]) {
  if (LANES == 1) return;
  __shared__ Elements<float, COUNT> parts[LANES][32];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < COUNT; ++k) parts[threadIdx.y][threadIdx.x].at[k] = values[k];
  __syncthreads();
#pragma unroll
  for (int lane = 0; lane < LANES; ++lane) {
    const Elements<float, COUNT> part = parts[lane][threadIdx.x];
#pragma unroll
    for (int k = 0; k < COUNT; ++k)
      values[k] = lane == 0 ? part.at[k] : Join::join(values[k], part.at[k]);
  }
}

// The same for pairs of an extreme and its place.
template <class Join>
__device__ __forceinline__ void reduce_warp_place(float& top, float& place, int threads) {
#pragma unroll
  for (int step = threads / 2; step > 0; step >>= 1) {
    const float value = __shfl_xor_sync(0xffffffffu, top, step);
    join_place<Join>(top, place, value, __shfl_xor_sync(0xffffffffu, place, step));
  }
}
template <class Join, int THREADS>
__device__ __forceinline__ void reduce_block_place(float& top, float& place) {
  constexpr int WARPS = (THREADS + 31) / 32;
  reduce_warp_place<Join>(top, place, WARPS == 1 ? THREADS : 32);
  if (WARPS == 1) return;
  __shared__ float parts[2][WARPS];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  __syncthreads();
  if (lane == 0) parts[0][warp] = top, parts[1][warp] = place;
  __syncthreads();
  top = lane < WARPS ? parts[0][lane] : Join::identity();
  place = lane < WARPS ? parts[1][lane] : INFINITY;
  reduce_warp_place<Join>(top, place, 32);
}
template <class Join, int LANES, int WIDTH = 32>
__device__ __forceinline__ void reduce_lanes_place(float& top, float& place) {
  if (LANES == 1) return;
  __shared__ float parts[2][LANES][WIDTH + 1];
  __syncthreads();
  parts[0][threadIdx.y][threadIdx.x] = top;
  parts[1][threadIdx.y][threadIdx.x] = place;
  __syncthreads();
#pragma unroll
  for (int lane = 0; lane < LANES; ++lane)
    join_place<Join>(top, place, parts[0][lane][threadIdx.x], parts[1][lane][threadIdx.x]);
}

// Join all values in a fixed order.
template <class Join, int COUNT>
__device__ __forceinline__ float join_all(const float (&values)[COUNT]) {
  float joined = values[0];
#pragma unroll
  for (int k = 1; k < COUNT; ++k) joined = Join::join(joined, values[k]);
  return joined;
}

template <class Join, int COUNT>
__device__ __forceinline__ void join_all_places(float& top, float& place,
                                                const float (&tops)[COUNT],
                                                const float (&places)[COUNT]) {
#pragma unroll
  for (int k = 0; k < COUNT; ++k) join_place<Join>(top, place, tops[k], places[k]);
}

// Inclusive scan over the 32 lanes of a warp.
template <class Join>
__device__ __forceinline__ float scan_warp(float value) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int step = 1; step < 32; step <<= 1) {
    const float before = __shfl_up_sync(0xffffffffu, value, step);
    if (lane >= step) value = Join::join(before, value);
  }
  return value;
}

// Join the totals of the warps of a block: `before` joins those of earlier warps, `all` every one.
template <class Join, int THREADS>
__device__ __forceinline__ void scan_warps(float total, float& before, float& all) {
  constexpr int WARPS = THREADS / 32;
  before = Join::identity();
  all = total;
  if (WARPS == 1) return;
  __shared__ float totals[WARPS];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  __syncthreads();
  if (lane == 0) totals[warp] = total;
  __syncthreads();
  const float scanned = scan_warp<Join>(lane < WARPS ? totals[lane] : Join::identity());
  all = __shfl_sync(0xffffffffu, scanned, WARPS - 1);
  const float earlier = __shfl_sync(0xffffffffu, scanned, (warp + 31) & 31);
  before = warp == 0 ? Join::identity() : earlier;
}
