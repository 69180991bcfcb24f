// Elements of half precision in memory for CUDA. A store rounds to nearest even.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "pointwise_cuda.h"

using bf16 = __nv_bfloat16;

POINTWISE float to_float(bf16 x) { return __bfloat162float(x); }
POINTWISE float to_float(half x) { return __half2float(x); }
POINTWISE bf16 to_bf16(float x) { return __float2bfloat16_rn(x); }
POINTWISE half to_half(float x) { return __float2half_rn(x); }

// `load_vector` and `store_vector` find these overloads by their argument types.
POINTWISE void assign(float& to, bf16 from) { to = to_float(from); }
POINTWISE void assign(float& to, half from) { to = to_float(from); }
POINTWISE void assign(bf16& to, float from) { to = to_bf16(from); }
POINTWISE void assign(half& to, float from) { to = to_half(from); }
