//! A hash of a prefix that grows token by token: the same for the same tokens, however they are cut.

use std::hash::{BuildHasher, BuildHasherDefault};

use rustc_hash::FxHasher;

use crate::cache::namespace::Namespace;

/// An odd base: every token counts at every distance from the end.
const BASE: u64 = 0x9e37_79b9_7f4a_7c15;
/// Tokens taken at a time: their products do not wait for each other.
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

/// The hash of a namespace and the tokens of a prefix in it. Prefixes with equal hashes are possible: diagnoses and
/// eviction policies would confuse them, but matches compare tokens.
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

/// Token 0 counts too, and neighbouring ids differ in many bits.
fn digit(token: u32) -> u64 {
    (u64::from(token) + 1).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_has_one_hash_however_it_is_cut() {
        let empty = PrefixHash::empty(&Namespace::default());
        let tokens: Vec<u32> = (0..23).map(|i| i * i % 7).collect();
        let whole = empty.then(&tokens);
        for cut in 0..=tokens.len() {
            assert_eq!(empty.then(&tokens[..cut]).then(&tokens[cut..]), whole);
        }
    }

    #[test]
    fn order_zeros_and_namespaces_count() {
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
