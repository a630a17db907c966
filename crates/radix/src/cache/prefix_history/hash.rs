//! A polynomial hash of token prefixes, which can be extended by any number of tokens at a time.

use std::hash::{BuildHasher, BuildHasherDefault};

use rustc_hash::FxHasher;

use crate::cache::namespace::Namespace;

/// Odd, so that every token changes the hash at any distance from the end.
const BASE: u64 = 0x9e37_79b9_7f4a_7c15;
/// Tokens per iteration: their products are independent of each other.
const LANES: usize = 4;
const POWERS: [u64; LANES + 1] = powers();

const fn powers() -> [u64; LANES + 1] {
    let mut powers = [1u64; LANES + 1];
    let mut at = 1;
    while at <= LANES {
        powers[at] = powers[at - 1].wrapping_mul(BASE);
        at += 1;
    }
    powers
}

/// The hash of a namespace and the tokens of a prefix. Two prefixes may have equal hashes: diagnoses and eviction
/// policies then confuse them, but matches compare tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrefixHash(u64);

impl PrefixHash {
    pub fn empty(namespace: &Namespace) -> Self {
        Self(BuildHasherDefault::<FxHasher>::default().hash_one(namespace))
    }

    pub fn then(self, tokens: &[u32]) -> Self {
        let mut hash = self.0;
        let lanes = tokens.chunks_exact(LANES);
        let rest = lanes.remainder();
        for lane in lanes {
            let mut sum = hash.wrapping_mul(POWERS[LANES]);
            for (place, &token) in lane.iter().enumerate() {
                sum = sum.wrapping_add(digit(token).wrapping_mul(POWERS[LANES - 1 - place]));
            }
            hash = sum;
        }
        for &token in rest {
            hash = hash.wrapping_mul(BASE).wrapping_add(digit(token));
        }
        Self(hash)
    }
}

/// Nonzero also for token 0; consecutive ids differ in many bits.
fn digit(token: u32) -> u64 {
    (u64::from(token) + 1).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_does_not_depend_on_how_tokens_are_divided() {
        let empty = PrefixHash::empty(&Namespace::default());
        let tokens: Vec<u32> = (0..23).map(|i| i * i % 7).collect();
        let whole = empty.then(&tokens);
        for cut in 0..=tokens.len() {
            assert_eq!(empty.then(&tokens[..cut]).then(&tokens[cut..]), whole);
        }
    }

    #[test]
    fn order_zeros_and_namespaces_change_the_hash() {
        let empty = PrefixHash::empty(&Namespace::default());
        let salted = PrefixHash::empty(&Namespace::new(None, Some("a")));
        let hashes = [
            empty,
            empty.then(&[0]),
            empty.then(&[0, 0]),
            empty.then(&[1, 2]),
            empty.then(&[2, 1]),
            salted.then(&[1, 2]),
        ];
        for (i, a) in hashes.iter().enumerate() {
            assert!(hashes[..i].iter().all(|b| a != b), "{i}");
        }
    }
}
