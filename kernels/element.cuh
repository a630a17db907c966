// Element types: float and bf16 seen as float, and 16-byte pieces of rows.
#pragma once
#include "ptx.cuh"

DEV float f32(float v) { return v; }

template <class E> DEV E from_f32(float v);
template <> DEV float from_f32<float>(float v) { return v; }
template <> DEV bf16 from_f32<bf16>(float v) { return to_bf16(v); }

DEV bool aligned16(const void* p) { return (reinterpret_cast<uint64_t>(p) & 15) == 0; }

// Eight elements; the address is a multiple of 16 bytes.
DEV void load8(float (&v)[8], const float* p) {
  const float4 low = reinterpret_cast<const float4*>(p)[0], high = reinterpret_cast<const float4*>(p)[1];
  v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
  v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}
DEV void unpack_bf16(float& low, float& high, uint32_t pair) {
  low = __uint_as_float(pair << 16);
  high = __uint_as_float(pair & 0xffff0000u);
}
DEV void load8(float (&v)[8], const bf16* p) {
  const uint4 bits = *reinterpret_cast<const uint4*>(p);
  unpack_bf16(v[0], v[1], bits.x);
  unpack_bf16(v[2], v[3], bits.y);
  unpack_bf16(v[4], v[5], bits.z);
  unpack_bf16(v[6], v[7], bits.w);
}
DEV void store8(float* p, const float (&v)[8]) {
  reinterpret_cast<float4*>(p)[0] = make_float4(v[0], v[1], v[2], v[3]);
  reinterpret_cast<float4*>(p)[1] = make_float4(v[4], v[5], v[6], v[7]);
}
DEV void store8(bf16* p, const float (&v)[8]) {
  *reinterpret_cast<uint4*>(p) = make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]),
                                            pack_bf16(v[6], v[7]));
}

// Four elements; the address is a multiple of their size together.
DEV float4 load4(const float* p) { return *reinterpret_cast<const float4*>(p); }
DEV void store4(float* p, float4 v) { *reinterpret_cast<float4*>(p) = v; }
DEV void store4(bf16* p, float4 v) {
  *reinterpret_cast<uint2*>(p) = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
}

// kWidth elements, eight at once where the caller has checked that they are aligned, else one.
template <int kWidth, class E> DEV void load_elements(float (&v)[kWidth], const E* p) {
  if constexpr (kWidth == 8) load8(v, p);
  else v[0] = f32(*p);
}
template <int kWidth, class E> DEV void store_elements(E* p, const float (&v)[kWidth]) {
  if constexpr (kWidth == 8) store8(p, v);
  else *p = from_f32<E>(v[0]);
}
