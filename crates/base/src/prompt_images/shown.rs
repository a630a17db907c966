//! Text of tokens among which are keys of images.

use super::{KEY_BIT, is_key};

/// Bits of a key that are not shown: 16 are.
const HIDDEN_BITS: u32 = 14;

/// Decodes tokens, with `[image 3f2a…]` for each run of keys. The name is the highest bits of the run's first key, so
/// equal images that begin in the run have equal names. Adjacent images are one run.
pub fn decode_around(tokens: &[u32], decode: impl Fn(&[u32]) -> String) -> String {
    let runs = tokens.chunk_by(|one, next| is_key(*one) == is_key(*next));
    let shown = runs.map(|run| {
        if is_key(run[0]) {
            format!("[image {:04x}…]", (run[0] & (KEY_BIT - 1)) >> HIDDEN_BITS)
        } else {
            decode(run)
        }
    });
    shown.collect()
}
