//! Rows of samples in the picture's width: libjpeg's `jdsample.c`, with its triangle filter.

use super::frame::{Component, Frame};

/// Writes the samples of a component for the picture's row `y`. `out` has the width of all units.
pub fn row(frame: &Frame, component: &Component, samples: &[u8], y: usize, out: &mut [u8]) {
    let (across, down) = component.samples;
    let (h, v) = component.factors;
    let (wider, higher) = (frame.largest.0 / h, frame.largest.1 / v);
    let at = y / higher;
    let line = |row: usize| &samples[row * component.stride()..][..across];
    // The row that is nearest to this one after its own.
    let near = if y.is_multiple_of(2) {
        line(at.saturating_sub(1))
    } else {
        line((at + 1).min(down - 1))
    };
    match (wider, higher) {
        (1, 1) => out[..across].copy_from_slice(line(at)),
        (1, 2) => {
            let bias = if y.is_multiple_of(2) { 1 } else { 2 };
            for ((out, own), near) in out.iter_mut().zip(line(at)).zip(near) {
                *out = ((u16::from(*own) * 3 + u16::from(*near) + bias) >> 2) as u8;
            }
        }
        (2, 1) if across > 2 => double(across, |x| u16::from(line(at)[x]), (1, 2, 2), out),
        (2, 2) if across > 2 => {
            let own = line(at);
            let sum = |x: usize| u16::from(own[x]) * 3 + u16::from(near[x]);
            double(across, sum, (8, 7, 4), out);
        }
        _ => {
            for (out, sample) in out.chunks_mut(wider).zip(line(at)) {
                out.fill(*sample);
            }
        }
    }
}

/// Doubles a row of sums: three parts of the own and one of the nearer neighbour, whose half is rounded by the first
/// number on the left and by the second on the right, and shifted by the third.
fn double(n: usize, sum: impl Fn(usize) -> u16, round: (u16, u16, u16), out: &mut [u8]) {
    let (left, right, shift) = round;
    let (mut before, mut own) = (sum(0), sum(0));
    for (x, two) in out.as_chunks_mut::<2>().0[..n].iter_mut().enumerate() {
        let after = if x + 1 == n { own } else { sum(x + 1) };
        two[0] = ((own * 3 + before + left) >> shift) as u8;
        two[1] = ((own * 3 + after + right) >> shift) as u8;
        (before, own) = (own, after);
    }
}
