// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One column of results per instruction; the host computes the same columns its own way.
#include <cstdint>

#define KERNEL extern "C" __global__ void
using u32 = std::uint32_t;
using u64 = unsigned long long;

KERNEL integers(u32 const* a, u32 const* b, u32 const* c, u32* out, int n) {
  int const t = threadIdx.x;
  if (t >= n)
    return;
  u32 const x = a[t], y = b[t], z = c[t];
  int k = 0;
  auto put = [&](u32 v) { out[k++ * n + t] = v; };
  u32 r;
  put(x + y);
  put(x - y);
  put(x * y + z);
  put(__umulhi(x, y));
  put(static_cast<u32>(__mulhi(static_cast<int>(x), static_cast<int>(y))));
  put(x / (y | 1));
  put(static_cast<u32>(static_cast<int>(x) / static_cast<int>(y | 1)));
  put(x % (y | 1));
  put(static_cast<u32>(static_cast<int>(x) % static_cast<int>(y | 1)));
  put(min(static_cast<int>(x), static_cast<int>(y)));
  put(max(x, y));
  put(__popc(x));
  put(__clz(x));
  put(__brev(x));
  asm volatile("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z));
  put(r);
  put(__funnelshift_l(x, y, z));
  put(__funnelshift_rc(x, y, z));
  put(__usad(x, y, z));
  put(static_cast<u32>(__dp4a(static_cast<int>(x), static_cast<int>(y), static_cast<int>(z))));
  asm volatile("bfe.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y & 31), "r"(z & 31));
  put(r);
  asm volatile("bfe.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y & 31), "r"(z & 31));
  put(r);
  asm volatile("bfi.b32 %0, %1, %2, %3, %4;" : "=r"(r) : "r"(x), "r"(z), "r"(y & 31), "r"(z & 15));
  put(r);
  asm volatile("lop3.b32 %0, %1, %2, %3, 0xe2;" : "=r"(r) : "r"(x), "r"(y), "r"(z));
  put(r);
  asm volatile("bfind.u32 %0, %1;" : "=r"(r) : "r"(x));
  put(r);
  u64 const wide = static_cast<u64>(x) << 32 | y;
  put(static_cast<u32>(__umul64hi(wide, static_cast<u64>(z) << 32 | x) >> 32));
  put(static_cast<u32>(wide / (z | 1)));
  put(static_cast<u32>(static_cast<long long>(wide) >> (z & 63)));
  put(static_cast<u32>(static_cast<short>(x) * static_cast<short>(y)));
}

KERNEL floats(float const* a, float const* b, float const* c, float* out, int n) {
  int const t = threadIdx.x;
  if (t >= n)
    return;
  float const x = a[t], y = b[t], z = c[t];
  int k = 0;
  auto put = [&](float v) { out[k++ * n + t] = v; };
  float r;
  put(x + y);
  put(x * y);
  put(fmaf(x, y, z));
  put(x / y);
  put(sqrtf(x));
  put(1.0F / x);
  put(fminf(x, y));
  put(fmaxf(x, y));
  put(fabsf(x));
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  put(r);
  asm volatile("lg2.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  put(r);
  asm volatile("rsqrt.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  put(r);
  asm volatile("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  put(r);
  asm volatile("add.sat.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
  put(r);
  put(static_cast<float>(static_cast<double>(x) * y));
  put(x < y ? 1.0F : 0.0F);
  put(!(x >= y) ? 1.0F : 0.0F);
}

#if __CUDA_ARCH__ >= 900 // rounding to zero and conversions from bf16 came with sm_90
KERNEL to_halves(float const* a, u32* out, int n) {
  int const t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= n)
    return;
  float const x = a[t];
  unsigned short h;
  u32 r;
  int k = 0;
  auto put = [&](u32 v) { out[k++ * n + t] = v; };
  asm volatile("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  put(h);
  asm volatile("cvt.rz.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  put(h);
  asm volatile("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
  put(h);
  asm volatile("cvt.rz.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
  put(h);
  asm volatile("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(x), "f"(-x));
  put(r);
  asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(x), "f"(-x));
  put(r);
  asm volatile("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(x), "f"(-x));
  put(r);
}

KERNEL from_halves(float* out) { // all 65536 patterns; f16 first, then bf16
  int const t = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned short const h = static_cast<unsigned short>(t);
  float f;
  asm volatile("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  out[t] = f;
  asm volatile("cvt.f32.bf16 %0, %1;" : "=f"(f) : "h"(h));
  out[65536 + t] = f;
}

#endif

KERNEL to_integers(float const* a, int* out, int n) {
  int const t = threadIdx.x;
  if (t >= n)
    return;
  out[t] = __float2int_rn(a[t]);
  out[n + t] = __float2int_rz(a[t]);
  out[2 * n + t] = __float2int_rd(a[t]);
  out[3 * n + t] = __float2int_ru(a[t]);
  out[4 * n + t] = static_cast<int>(__float2uint_rz(a[t]));
  out[5 * n + t] = __float_as_int(static_cast<float>(__float_as_int(a[t])));
  out[6 * n + t] = __float_as_int(__int2float_rz(__float_as_int(a[t])));
  out[7 * n + t] = __float_as_int(rintf(a[t]));
}

KERNEL half_arithmetic(u32 const* a, u32 const* b, u32 const* c, u32* out, int n) {
  int const t = threadIdx.x;
  if (t >= n)
    return;
  u32 r;
  int k = 0;
  auto put = [&](u32 v) { out[k++ * n + t] = v; };
  asm volatile("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a[t]), "r"(b[t]));
  put(r);
  asm volatile("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a[t]), "r"(b[t]));
  put(r);
  asm volatile("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a[t]), "r"(b[t]), "r"(c[t]));
  put(r);
  asm volatile("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a[t]), "r"(b[t]), "r"(c[t]));
  put(r);
  asm volatile("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a[t]), "r"(b[t]));
  put(r);
}

// Library functions expand to long sequences with directed rounding, selections and local arrays.
KERNEL library(float const* a, float* out, int n) {
  int const t = threadIdx.x;
  if (t >= n)
    return;
  float const x = a[t];
  int k = 0;
  auto put = [&](float v) { out[k++ * n + t] = v; };
  put(expf(x));
  put(logf(fabsf(x)));
  put(tanhf(x));
  put(sinf(x));
  put(powf(fabsf(x), 1.5F));
  put(erff(x));
  put(expm1f(x));
  put(__expf(x));
  put(static_cast<float>(exp(static_cast<double>(x))));
  put(fmodf(x, 0.7F));
}

KERNEL directed(float const* a, float const* b, float const* c, float* out, int n) {
  int const t = threadIdx.x;
  if (t >= n)
    return;
  float const x = a[t], y = b[t], z = c[t];
  out[t] = __fadd_rd(x, y);
  out[n + t] = __fadd_ru(x, y);
  out[2 * n + t] = __fmul_rz(x, y);
  out[3 * n + t] = __fmaf_rd(x, y, z);
  out[4 * n + t] = __fmaf_ru(x, y, z);
}
