//! The hashes that the fake executor keeps in place of K/V, and the logits and states derived from them.

use std::ops::Range;

/// Extends a hash of tokens by one token.
pub(super) fn mix(hash: u64, token: u32) -> u64 {
    let mut mixed = (hash ^ u64::from(token).wrapping_add(0x9e37_79b9_7f4a_7c15))
        .wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^= mixed >> 29;
    mixed.wrapping_mul(0x94d0_49bb_1331_11eb) | 1
}

/// A number that is the hash of no tokens, since those are odd.
pub(super) fn garbage(seq: u64, position: usize) -> u64 {
    mix(seq, position as u32) & !1
}

/// Logits from 0 to 1 after the tokens with this hash.
pub(super) fn fake_logits(hash: u64, vocab_size: u32) -> Vec<f32> {
    noise(hash, 0..vocab_size).collect()
}

/// Deterministic numbers from 0 to 1.
fn noise(hash: u64, places: Range<u32>) -> impl Iterator<Item = f32> {
    places.map(move |place| (mix(hash, place) >> 40) as f32 / (1 << 24) as f32)
}

/// A hidden state with values from -1 to 1, after the tokens with this hash.
pub(super) fn fake_state(hash: u64, hidden_size: usize) -> Vec<f32> {
    let values = noise(hash, 0..hidden_size as u32);
    values.map(|value| 2.0 * value - 1.0).collect()
}

/// The next token after the tokens with this hash.
pub(super) fn sample(hash: u64, seed: u64, vocab_size: u32) -> u32 {
    (mix(hash, seed as u32) >> 33) as u32 % vocab_size
}
