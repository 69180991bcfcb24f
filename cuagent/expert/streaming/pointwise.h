// Pointwise functions that a compiler can vectorize: no calls, no branches, float in, float out.
// Polynomials were fitted by weighted least squares over the stated ranges. The stated errors were
// measured against fp64 at a million points each.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

// Of `logarithm(maximum(x, 1e-6f))` gcc computes the constant's part in advance by this pass, and
// does not vectorize the branches that are left.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-tree-pre")
#endif

#define POINTWISE static inline __attribute__((always_inline))

POINTWISE float as_float(int32_t bits) { float x; std::memcpy(&x, &bits, 4); return x; }
POINTWISE int32_t as_bits(float x) { int32_t bits; std::memcpy(&bits, &x, 4); return bits; }
// Elements of half precision in memory. A store rounds to nearest even.
struct bf16 { uint16_t bits; };
POINTWISE float to_float(bf16 x) { return as_float(static_cast<int32_t>(x.bits) << 16); }
POINTWISE bf16 to_bf16(float x) {
  const uint32_t bits = as_bits(x);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return bf16{static_cast<uint16_t>(x != x ? 0x7FC0u : rounded)};
}
struct half { uint16_t bits; };
// 2^112 moves the exponent from half's bias, 15, to float's, 127; subnormal numbers are exact too.
POINTWISE float to_float(half x) {
  const int32_t magnitude = (x.bits & 0x7FFF) << 13, sign = (x.bits & 0x8000) << 16;
  const int32_t finite = as_bits(as_float(magnitude) * 5.19229686e33f);
  return as_float(sign | (magnitude < 0x0F800000 ? finite : magnitude | 0x7F800000));
}
POINTWISE half to_half(float x) {
  const uint32_t bits = as_bits(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
  // Adding 0.5 puts the last bit of a subnormal half (2^-24) at the last bit of the float.
  const uint32_t subnormal = as_bits(as_float(magnitude) + 0.5f) - 0x3F000000u;
  const uint32_t normal = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  const uint32_t large = magnitude > 0x7F800000u ? 0x7E00u : 0x7C00u;
  return half{static_cast<uint16_t>(sign | (magnitude < 0x477FF000u ? finite : large))};
}

// Operations on integers of type T. Results wrap around, as in torch.
template <typename T> struct Bits { typedef uint32_t type; };
template <> struct Bits<int64_t> { typedef uint64_t type; };
#define WHOLE template <typename T> POINTWISE T
#define WRAPPED(a, op, b) \
  static_cast<T>(static_cast<typename Bits<T>::type>(a) op static_cast<typename Bits<T>::type>(b))
WHOLE whole_add(T a, T b) { return WRAPPED(a, +, b); }
WHOLE whole_sub(T a, T b) { return WRAPPED(a, -, b); }
WHOLE whole_mul(T a, T b) { return WRAPPED(a, *, b); }
WHOLE whole_maximum(T a, T b) { return a > b ? a : b; }
WHOLE whole_minimum(T a, T b) { return a < b ? a : b; }
WHOLE whole_bitwise_and(T a, T b) { return a & b; }
WHOLE whole_bitwise_or(T a, T b) { return a | b; }
WHOLE whole_bitwise_xor(T a, T b) { return a ^ b; }
WHOLE whole_shift_left(T a, T b) { return WRAPPED(a, <<, b); }
WHOLE whole_shift_right(T a, T b) { return a >> b; }
// Rounded down; b is positive. For constant powers of two compilers use shifts.
WHOLE whole_floor_divide(T a, T b) {
  if ((b & (b - 1)) == 0) return a >> __builtin_ctzll(b);
  const T quotient = a / b;
  return quotient - (quotient * b > a);
}
WHOLE whole_remainder(T a, T b) {
  if ((b & (b - 1)) == 0) return a & (b - 1);
  const T rest = a % b;
  return rest < 0 ? rest + b : rest;
}

// a - b, where a product is rounded first: with one rounding, the largest of some products less
// their maximum is not 0, and its exponential may be infinite. gcc's vectorizer removes
// __builtin_assoc_barrier.
POINTWISE float difference(float a, float b) {
  return a == b ? __builtin_fabsf(a - b) * 0.f : a - b;  // NaN for infinities
}

// The slice that an index selects; -1 if it is out of range.
template <long EXTENT, bool WRAPS>
POINTWISE long checked_slice(int64_t index) {
  const int64_t slice = WRAPS && index < 0 ? index + EXTENT : index;
  return slice >= 0 && slice < EXTENT ? slice : -1;
}
POINTWISE long slice_or_first(long slice) { return slice < 0 ? 0 : slice; }
// Fetch the cache lines of some bytes that are read soon.
template <long BYTES>
POINTWISE void prefetch(const void* first) {
  for (long k = 0; k < BYTES; k += 64) __builtin_prefetch(static_cast<const char*>(first) + k);
}
POINTWISE float nan_if(bool wrong, float value) { return wrong ? NAN : value; }
constexpr int NAN_BITS = 0x7fc00000;
POINTWISE float or_bits(float value, int32_t bits) { return as_float(as_bits(value) | bits); }

POINTWISE float power_of_two(int32_t n) { return as_float((n + 127) << 23); }

// NaN in either argument gives NaN, as in torch.
POINTWISE float maximum(float a, float b) { return (a >= b) | (a != a) ? a : b; }
POINTWISE float minimum(float a, float b) { return (a <= b) | (a != a) ? a : b; }
POINTWISE float relu(float x) { return x < 0.f ? 0.f : x; }
POINTWISE float absolute(float x) { return __builtin_fabsf(x); }
POINTWISE float sign(float x) { return (x > 0.f) - (x < 0.f); }
POINTWISE float reciprocal(float x) { return 1.f / x; }
POINTWISE float rsqrt(float x) { return 1.f / __builtin_sqrtf(x); }

// a - b trunc(a / b), exact except that the rounded quotient may be one too large in magnitude.
POINTWISE float rest_of_division(float a, float b) {
  return __builtin_fmaf(-__builtin_truncf(a / b), b, a);
}
// The remainder with the sign of b. Each step divides |a| by 2^23 or more: right up to 2^68 |b|.
POINTWISE float floored_remainder(float a, float b) {
  const float rest = rest_of_division(rest_of_division(rest_of_division(a, b), b), b);
  const float r = absolute(b) == __builtin_inff() ? a + (a - a) : rest;  // NaN if a is infinite
  return (r != 0.f) & ((r < 0.f) != (b < 0.f)) ? r + b : r;
}

// e^r for |r| <= ln2/2, where x = n ln2 + r and `whole` is n.
POINTWISE float exponential_of_rest(float x, float whole) {
  const float r = __builtin_fmaf(whole, -1.42860677e-6f, __builtin_fmaf(whole, -0.693145752f, x));
  float p = 0.0013950489f;
  p = __builtin_fmaf(p, r, 0.00836889f);
  p = __builtin_fmaf(p, r, 0.041666206f);
  p = __builtin_fmaf(p, r, 0.16666518f);
  p = __builtin_fmaf(p, r, 0.5f);
  return __builtin_fmaf(p * r, r, r) + 1.f;
}

// 2^n * e^r. 2^n is applied as two factors, so that subnormals and infinity are right. 1 ulp.
POINTWISE float exponential(float x) {
  x = x < -104.f ? -104.f : x;
  x = x > 89.f ? 89.f : x;
  // Adding 1.5 * 2^23 rounds to the nearest integer, which is then in the low bits.
  const float shifted = x * 1.44269504f + 12582912.f;
  const int32_t n = as_bits(shifted) - 0x4B400000;
  const int32_t half = n >> 1;
  const float y = exponential_of_rest(x, shifted - 12582912.f);
  return y * power_of_two(half) * power_of_two(n - half);
}

// e^x with one factor 2^n, a third less work: 0 below -87.7, where `exponential` is subnormal, and
// infinity from 88.4 on, a third of an octave early. For results that are then divided or summed.
POINTWISE float coarse_range_exponential(float x) {
  x = x < -88.f ? -88.f : x;
  x = x > 89.f ? 89.f : x;
  // The constant includes 127, the exponent bias, so the low bits are the exponent bits of 2^n.
  const float shifted = x * 1.44269504f + 12583039.f;
  return exponential_of_rest(x, shifted - 12583039.f) * as_float(as_bits(shifted) << 23);
}
// e^x for x <= 0, such as a value minus the maximum of its row.
POINTWISE float exponential_of_nonpositive(float x) {
  x = x < -88.f ? -88.f : x;
  const float shifted = x * 1.44269504f + 12583039.f;
  return exponential_of_rest(x, shifted - 12583039.f) * as_float(as_bits(shifted) << 23);
}

// e^x - 1 without cancellation near 0. 2 ulp.
POINTWISE float exponential_minus_one(float x) {
  float p = 2.4968207e-05f;
  p = __builtin_fmaf(p, x, 0.00019972386f);
  p = __builtin_fmaf(p, x, 0.0013888554f);
  p = __builtin_fmaf(p, x, 0.008333147f);
  p = __builtin_fmaf(p, x, 0.041666668f);
  p = __builtin_fmaf(p, x, 0.16666667f);
  p = __builtin_fmaf(p, x, 0.5f);
  const float near = __builtin_fmaf(p * x, x, x);
  const float far = exponential(x) - 1.f;
  return absolute(x) < 0.5f ? near : far;
}

// x = 2^e * m with m in [sqrt(1/2), sqrt(2)); log x = e ln2 + log m. 1 ulp.
POINTWISE float logarithm(float x) {
  const bool subnormal = x < 1.17549435e-38f;
  const float scaled = subnormal ? x * 8388608.f : x;
  const int32_t bits = as_bits(scaled) - 0x3F3504F3;
  const int32_t e = bits >> 23;
  const float m = as_float((bits & 0x007FFFFF) + 0x3F3504F3);
  const float exponent = static_cast<float>(e) - (subnormal ? 23.f : 0.f);
  const float f = m - 1.f;
  // Pairs of terms, because each step of Horner's scheme waits for the one before.
  const float square = f * f, fourth = square * square;
  const float a = __builtin_fmaf(-0.25000006f, f, 0.33333302f);
  const float b = __builtin_fmaf(-0.16668633f, f, 0.2000273f);
  const float c = __builtin_fmaf(-0.12389347f, f, 0.14209232f);
  const float d = __builtin_fmaf(-0.11786353f, f, 0.11941144f);
  const float low = __builtin_fmaf(b, square, a);
  const float high = __builtin_fmaf(__builtin_fmaf(0.06768582f, square, d), square, c);
  const float p = __builtin_fmaf(high, fourth, low);
  float y = __builtin_fmaf(p * f, square, -0.5f * square);
  y = __builtin_fmaf(exponent, -2.12194440e-4f, y) + f;
  y = __builtin_fmaf(exponent, 0.693359375f, y);
  y = x == __builtin_inff() ? x : y;
  y = x == 0.f ? -__builtin_inff() : y;
  return (x < 0.f) | (x != x) ? __builtin_nanf("") : y;
}

// log(1 + x), corrected to first order for the rounding error of 1 + x. 2 ulp.
POINTWISE float logarithm_one_plus(float x) {
  const float u = 1.f + x;
  const float lost = (x - (u - 1.f)) / u;
  return u == __builtin_inff() ? u : logarithm(u) + (u > 0.f ? lost : 0.f);
}

POINTWISE float sigmoid(float x) { return 1.f / (1.f + coarse_range_exponential(-x)); }
POINTWISE float silu(float x) { return x / (1.f + coarse_range_exponential(-x)); }

// An odd polynomial up to 0.625, 1 - 2 / (e^2|x| + 1) beyond. 2 ulp.
POINTWISE float hyperbolic_tangent(float x) {
  const float t = absolute(x), s = x * x;
  float p = -0.0058103018f;
  p = __builtin_fmaf(p, s, 0.020743515f);
  p = __builtin_fmaf(p, s, -0.053775925f);
  p = __builtin_fmaf(p, s, 0.1333195f);
  p = __builtin_fmaf(p, s, -0.33333305f);
  const float near = __builtin_fmaf(p * s, x, x);
  const float far = 1.f - 2.f / (coarse_range_exponential(2.f * t) + 1.f);
  return t < 0.625f ? near : __builtin_copysignf(far, x);
}

// An odd polynomial up to 1, 1 - exp(-t Q(t)) beyond. 2 ulp.
POINTWISE float error_function(float x) {
  const float t = absolute(x), s = x * x;
  float p = 7.889119e-05f;
  p = __builtin_fmaf(p, s, -0.0008020841f);
  p = __builtin_fmaf(p, s, 0.005189535f);
  p = __builtin_fmaf(p, s, -0.026854444f);
  p = __builtin_fmaf(p, s, 0.112836f);
  p = __builtin_fmaf(p, s, -0.37612626f);
  p = __builtin_fmaf(p, s, 1.1283791f);
  const float c = t > 4.f ? 4.f : t;
  float q = 5.1508805e-06f;
  q = __builtin_fmaf(q, c, -4.820223e-05f);
  q = __builtin_fmaf(q, c, -3.6064757e-05f);
  q = __builtin_fmaf(q, c, 0.0028923007f);
  q = __builtin_fmaf(q, c, -0.02261201f);
  q = __builtin_fmaf(q, c, 0.10520291f);
  q = __builtin_fmaf(q, c, 0.63565654f);
  q = __builtin_fmaf(q, c, 1.1285449f);
  const float far = 1.f - exponential_of_nonpositive(-c * q);
  return x != x ? x : (t < 1.f ? p * x : __builtin_copysignf(far, x));
}

// x Phi(x) with Phi(-t sqrt 2) = erfc(t) / 2 = exp(-t Q(t)) / 2. Q was fitted up to 4.25; from there
// on the exponent falls by 20 per unit, so that Phi is 0 for large negative x. 2 ulp of |x|.
POINTWISE float gelu(float x) {
  const float t = absolute(x) * 0.707106781f;
  const float c = t > 4.25f ? 4.25f : t;
  float q = -7.23278917e-06f;
  q = __builtin_fmaf(q, c, 9.82887773e-05f);
  q = __builtin_fmaf(q, c, -0.000558194027f);
  q = __builtin_fmaf(q, c, 0.00151726979f);
  q = __builtin_fmaf(q, c, 7.74439856e-06f);
  q = __builtin_fmaf(q, c, -0.0192588227f);
  q = __builtin_fmaf(q, c, 0.102813061f);
  q = __builtin_fmaf(q, c, 0.636613978f);
  q = __builtin_fmaf(q, c, 1.12837944f);
  const float tail = 0.5f * exponential_of_nonpositive(-c * q - 20.f * (t - c));
  return x * (x < 0.f ? tail : 1.f - tail);
}
// exp(x) for x <= 0 within 4e-6 of the value; 0 below -80.
POINTWISE float coarse_exponential_of_nonpositive(float x) {
  const float z = x * 1.44269504f, shifted = z + 12582912.f, f = z - (shifted - 12582912.f);
  float p = 0.00961813f;
  p = __builtin_fmaf(p, f, 0.0555033f);
  p = __builtin_fmaf(p, f, 0.240226507f);
  p = __builtin_fmaf(p, f, 0.693147181f);
  p = __builtin_fmaf(p, f, 1.f);
  return x < -80.f ? 0.f : as_float(as_bits(p) + (as_bits(shifted) << 23));
}
// The same as `gelu` within 4e-5 of |x|, for results in half precision: two thirds of its time.
POINTWISE float gelu_half(float x) {
  const float t = absolute(x) * 0.707106781f;
  const float c = t > 4.f ? 4.f : t;
  float q = -0.000141628972f;
  q = __builtin_fmaf(q, c, 0.00255983806f);
  q = __builtin_fmaf(q, c, -0.0206622532f);
  q = __builtin_fmaf(q, c, 0.101788842f);
  q = __builtin_fmaf(q, c, 0.638110143f);
  q = __builtin_fmaf(q, c, 1.12796812f);
  const float tail = 0.5f * coarse_exponential_of_nonpositive(-t * q);
  return x * (x < 0.f ? tail : 1.f - tail);
}
// (1 + tanh u) / 2 is the sigmoid of 2u.
POINTWISE float gelu_tanh(float x) {
  const float u = 0.797884561f * (x + 0.044715f * x * x * x);
  return x / (1.f + coarse_range_exponential(-2.f * u));
}
// log(1 + e) for 0 <= e <= 1: 2 artanh(s) with s = e / (2 + e), an odd polynomial up to 1/3. 2 ulp.
POINTWISE float logarithm_one_plus_fraction(float e) {
  const float s = e / (2.f + e), square = s * s;
  float p = 0.242902607f;
  p = __builtin_fmaf(p, square, 0.214302778f);
  p = __builtin_fmaf(p, square, 0.286166757f);
  p = __builtin_fmaf(p, square, 0.39998883f);
  p = __builtin_fmaf(p, square, 0.666666746f);
  return __builtin_fmaf(p * square, s, 2.f * s);
}
// max(x, 0) + log(1 + e^-|x|). 2 ulp; 0 below -88.
POINTWISE float softplus(float x) {
  const float rest = logarithm_one_plus_fraction(exponential_of_nonpositive(-absolute(x)));
  return (x < 0.f ? 0.f : x) + rest;
}
POINTWISE float log_sigmoid(float x) {
  const float rest = logarithm_one_plus_fraction(exponential_of_nonpositive(-absolute(x)));
  return (x < 0.f ? x : 0.f) - rest;
}
// tanh(log(1 + e)) = n / (n + 2) with n = e (e + 2).
POINTWISE float mish(float x) {
  const float e = coarse_range_exponential(x > 20.f ? 20.f : x);
  const float n = e * (e + 2.f);
  return x * (n / (n + 2.f));
}
POINTWISE float elu(float x, float alpha) {
  const float low = alpha * exponential_minus_one(x);
  return x > 0.f ? x : low;
}
POINTWISE float selu(float x) { return 1.05070098f * elu(x, 1.67326324f); }
POINTWISE float leaky_relu(float x, float slope) { return x > 0.f ? x : x * slope; }
POINTWISE float relu6(float x) { return minimum(maximum(x, 0.f), 6.f); }
POINTWISE float hardsigmoid(float x) { return relu6(x + 3.f) * 0.166666667f; }
POINTWISE float hardswish(float x) { return x * hardsigmoid(x); }
POINTWISE float softsign(float x) { return x / (1.f + absolute(x)); }
POINTWISE float xlogx(float x) {
  const float y = x * logarithm(x);
  return x == 0.f ? 0.f : y;
}
POINTWISE float square_root(float x) { return __builtin_sqrtf(x); }
POINTWISE float round_down(float x) { return __builtin_floorf(x); }
POINTWISE float round_to_even(float x) { return __builtin_rintf(x); }
POINTWISE float round_to_zero(float x) { return __builtin_truncf(x); }
POINTWISE float round_up(float x) { return __builtin_ceilf(x); }

// sin(x + turn pi/2): x = n pi/2 + r with |r| <= pi/4, reduced in double. 1.6 ulp up to 1e12. From
// 1e14 on, where neighbours are 8e6 apart, the sine is 0 and the cosine 1. NaN for infinities.
POINTWISE float sine_after(float x, double turn) {
  const double y = x;
  // Adding 1.5 * 2^52 rounds to the nearest integer.
  const double n = (y * 0.63661977236758134 + 6755399441055744.0) - 6755399441055744.0;
  const double near = __builtin_fma(n, -1.5707963267948966, y);
  const double rest = __builtin_fma(n, -6.123233995736766e-17, near);
  const double quarter = n + turn;
  const float q = static_cast<float>(quarter - 4.0 * __builtin_floor(quarter * 0.25));
  const float r = static_cast<float>(rest), s = r * r;
  float a = -1.9515295891e-4f;
  a = __builtin_fmaf(a, s, 8.3321608736e-3f);
  a = __builtin_fmaf(a, s, -1.6666654611e-1f);
  const float sin_r = __builtin_fmaf(a * s, r, r);
  float b = 2.443315711809948e-5f;
  b = __builtin_fmaf(b, s, -1.388731625493765e-3f);
  b = __builtin_fmaf(b, s, 4.166664568298827e-2f);
  const float cos_r = __builtin_fmaf(b * s, s, 1.f - 0.5f * s);
  const float odd = (q == 1.f) | (q == 3.f) ? cos_r : sin_r;
  const float value = q >= 2.f ? -odd : odd;
  return absolute(x) <= 1e14f ? value : x - x + static_cast<float>(turn);
}
POINTWISE float sine(float x) { return x == 0.f ? x : sine_after(x, 0.0); }
POINTWISE float cosine(float x) { return sine_after(x, 1.0); }

// atan t for t in [0, 1]. 1 ulp.
POINTWISE float arc_tangent_of_fraction(float t) {
  const float s = t * t;
  float p = -0.00182720331f;
  p = __builtin_fmaf(p, s, 0.0110643972f);
  p = __builtin_fmaf(p, s, -0.0314556211f);
  p = __builtin_fmaf(p, s, 0.0582344718f);
  p = __builtin_fmaf(p, s, -0.0841945484f);
  p = __builtin_fmaf(p, s, 0.109575748f);
  p = __builtin_fmaf(p, s, -0.142652452f);
  p = __builtin_fmaf(p, s, 0.199986383f);
  p = __builtin_fmaf(p, s, -0.333333015f);
  return __builtin_fmaf(p * s, t, t);
}
// atan x = pi/2 - atan(1 / x) for x > 1. 2 ulp.
POINTWISE float arc_tangent(float x) {
  const float t = absolute(x), inverse = 1.f / t;
  const float p = arc_tangent_of_fraction(t > 1.f ? inverse : t);
  return __builtin_copysignf(t > 1.f ? 1.57079633f - p : p, x);
}
// The angle of the point (x, y).
POINTWISE float arc_tangent_of_point(float y, float x) {
  const float a = absolute(x), b = absolute(y);
  const float far = maximum(a, b), near = minimum(a, b), quotient = near / far;
  const float ratio = near == far ? (far == 0.f ? 0.f : 1.f) : quotient;
  const float p = arc_tangent_of_fraction(ratio);
  const float within = b > a ? 1.57079633f - p : p;
  return __builtin_copysignf(as_bits(x) < 0 ? 3.14159265f - within : within, y);
}
// asin t for t in [0, 1/2], where s = t^2. 1 ulp.
POINTWISE float arc_sine_of_half(float t, float s) {
  float p = 0.0375652052f;
  p = __builtin_fmaf(p, s, 0.0144026028f);
  p = __builtin_fmaf(p, s, 0.0318176113f);
  p = __builtin_fmaf(p, s, 0.0445157215f);
  p = __builtin_fmaf(p, s, 0.0750051066f);
  p = __builtin_fmaf(p, s, 0.166666597f);
  return __builtin_fmaf(p * s, t, t);
}
// Above 1/2, asin t = pi/2 - 2 asin sqrt((1 - t) / 2). 2 ulp.
POINTWISE float arc_sine(float x) {
  const float t = absolute(x);
  const float s = t > 0.5f ? 0.5f * (1.f - t) : t * t, root = __builtin_sqrtf(s);
  const float p = arc_sine_of_half(t > 0.5f ? root : t, s);
  return __builtin_copysignf(t > 0.5f ? 1.57079633f - 2.f * p : p, x);
}
POINTWISE float arc_cosine(float x) {
  const float t = absolute(x);
  const float s = t > 0.5f ? 0.5f * (1.f - t) : t * t, root = __builtin_sqrtf(s);
  const float p = arc_sine_of_half(t > 0.5f ? root : t, s);
  const float far = x > 0.f ? 2.f * p : 3.14159265f - 2.f * p;
  return t > 0.5f ? far : 1.57079633f - __builtin_copysignf(p, x);
}

// 2^r for |r| <= 1/2. 1 ulp.
POINTWISE float power_of_two_of_rest(float r) {
  float p = 1.53100809e-05f;
  p = __builtin_fmaf(p, r, 0.000154614478f);
  p = __builtin_fmaf(p, r, 0.00133334543f);
  p = __builtin_fmaf(p, r, 0.00961805694f);
  p = __builtin_fmaf(p, r, 0.0555041097f);
  p = __builtin_fmaf(p, r, 0.240226507f);
  p = __builtin_fmaf(p, r, 0.693147182f);
  return __builtin_fmaf(p, r, 1.f);
}
POINTWISE float exponential_of_two(float x) {
  x = x < -152.f ? -152.f : x;
  x = x > 129.f ? 129.f : x;
  const float shifted = x + 12582912.f;
  const int32_t n = as_bits(shifted) - 0x4B400000, half = n >> 1;
  const float y = power_of_two_of_rest(x - (shifted - 12582912.f));
  return y * power_of_two(half) * power_of_two(n - half);
}
// |x|^y = 2^(y log2 |x|) with the exponent in double. 2 ulp. The limits at 0, 1 and infinities are
// those of C's pow.
POINTWISE float power(float x, float y) {
  const float t = absolute(x);
  const bool subnormal = t < 1.17549435e-38f;
  const int32_t bits = as_bits(subnormal ? t * 8388608.f : t) - 0x3F3504F3;
  const double m = as_float((bits & 0x007FFFFF) + 0x3F3504F3);
  const double exponent = (bits >> 23) - (subnormal ? 23 : 0);
  // log m = 2 artanh(s).
  const double s = (m - 1.0) / (m + 1.0), square = s * s;
  double p = 2.0 / 13.0;
  p = p * square + 2.0 / 11.0;
  p = p * square + 2.0 / 9.0;
  p = p * square + 2.0 / 7.0;
  p = p * square + 2.0 / 5.0;
  p = p * square + 2.0 / 3.0;
  p = p * square + 2.0;
  double logarithm = p * s * 1.4426950408889634 + exponent;
  logarithm = t == 0.f ? -__builtin_inf() : logarithm;
  logarithm = t == __builtin_inff() ? __builtin_inf() : logarithm;
  double z = t == 1.f ? 0.0 : y * logarithm;
  z = z < -160.0 ? -160.0 : z;
  z = z > 160.0 ? 160.0 : z;
  const double n = (z + 6755399441055744.0) - 6755399441055744.0;
  const int32_t whole = static_cast<int32_t>(n), half = whole >> 1;
  const float rest = power_of_two_of_rest(static_cast<float>(z - n));
  const float size = rest * power_of_two(half) * power_of_two(whole - half);
  const float down = __builtin_floorf(y);
  const bool odd = y - 2.f * __builtin_floorf(0.5f * y) == 1.f;
  const bool real = (x >= 0.f) | (down == y) | (t == __builtin_inff());
  const float value = (as_bits(x) < 0) & odd ? -size : size;
  const bool unknown = (x != x) | (y != y) | !real;
  return (x == 1.f) | (y == 0.f) ? 1.f : (unknown ? __builtin_nanf("") : value);
}
