//! The inverse DCT of libjpeg's `jidctint.c`, after Loeffler, Ligtenberg and Moschytz (1989): 12 products for eight
//! values, in integers with 13 bits after the point.

const BITS: u32 = 13;
/// Bits after the point between the two passes.
const BETWEEN: u32 = 2;

/// Eight values, without the division by `2^BITS`.
fn eight(v: [i32; 8]) -> [i32; 8] {
    let mul = |a: i32, b: i32| a.wrapping_mul(b);
    let add = |a: i32, b: i32| a.wrapping_add(b);
    let sub = |a: i32, b: i32| a.wrapping_sub(b);
    // The even half.
    let z1 = mul(add(v[2], v[6]), 4433);
    let t2 = sub(z1, mul(v[6], 15137));
    let t3 = add(z1, mul(v[2], 6270));
    let t0 = add(v[0], v[4]).wrapping_shl(BITS);
    let t1 = sub(v[0], v[4]).wrapping_shl(BITS);
    let even = [add(t0, t3), add(t1, t2), sub(t1, t2), sub(t0, t3)];
    // The odd half.
    let z5 = mul(add(add(v[7], v[3]), add(v[5], v[1])), 9633);
    let z1 = mul(add(v[7], v[1]), -7373);
    let z2 = mul(add(v[5], v[3]), -20995);
    let z3 = add(mul(add(v[7], v[3]), -16069), z5);
    let z4 = add(mul(add(v[5], v[1]), -3196), z5);
    let odd = [
        add(mul(v[1], 12299), add(z1, z4)),
        add(mul(v[3], 25172), add(z2, z3)),
        add(mul(v[5], 16819), add(z2, z4)),
        add(mul(v[7], 2446), add(z1, z3)),
    ];
    let mut out = [0; 8];
    for at in 0..4 {
        out[at] = add(even[at], odd[at]);
        out[7 - at] = sub(even[at], odd[at]);
    }
    out
}

fn rounded(value: i32, bits: u32) -> i32 {
    value.wrapping_add(1 << (bits - 1)) >> bits
}

/// The 64 samples of a block, row by row, to a plane whose rows have `stride` samples.
pub fn write(block: &[i16; 64], table: &[u16; 64], out: &mut [u8], stride: usize) {
    let mut columns = [[0; 8]; 8];
    for x in 0..8 {
        let value = |y: usize| i32::from(block[y * 8 + x]) * i32::from(table[y * 8 + x]);
        let column = std::array::from_fn(value);
        columns[x] = eight(column).map(|value| rounded(value, BITS - BETWEEN));
    }
    for y in 0..8 {
        let row = eight(std::array::from_fn(|x| columns[x][y]));
        for (sample, value) in out[y * stride..][..8].iter_mut().zip(row) {
            *sample = (rounded(value, BITS + BETWEEN + 3) + 128).clamp(0, 255) as u8;
        }
    }
}
