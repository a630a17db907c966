//! Text of tokens among which are keys of images.

use super::{FIRST_BIT, begins_image, is_key};

/// Bits of a key's hash that are not shown: 16 are.
const HIDDEN_BITS: u32 = 13;

/// Decodes tokens, with `[image 3f2a…]` for each image. The name is the highest bits of the hash in the first of its
/// keys, so equal images have equal names, unless the tokens begin within one.
pub fn decode_around(tokens: &[u32], decode: impl Fn(&[u32]) -> String) -> String {
    let is_one = |one: &u32, next: &u32| is_key(*one) == is_key(*next) && !begins_image(*next);
    let shown = tokens.chunk_by(is_one).map(|run| {
        if is_key(run[0]) {
            format!("[image {:04x}…]", (run[0] & (FIRST_BIT - 1)) >> HIDDEN_BITS)
        } else {
            decode(run)
        }
    });
    shown.collect()
}
