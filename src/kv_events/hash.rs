//! Computes block ids as SGLang does: from a hash of the block's tokens and the previous block's hash.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::config::IdFormat;
use souffleur_state::cache::namespace::Namespace;

const SALT_PREFIX: &[u8] = b"sglang-cache-salt-v1\0";
const NAMESPACE_PREFIX: &[u8] = b"sglang-kv-event-namespace-v1";
/// Hashed into the ids of sequences with long-context RoPE factors. SGLang has no such namespace.
const LONG_ROPE: &[u8] = b"\x02souffleur-long-rotation";

/// The hash of a block and all blocks before it.
pub type BlockHash = [u8; 32];

/// The inputs of block ids that are specific to a namespace.
#[derive(Debug)]
pub struct IdSpace {
    /// Replaces the previous block's hash for the first block.
    prior: Option<BlockHash>,
    /// Hashed into the ids, so that equal tokens have different ids in different namespaces.
    seed: Option<BlockHash>,
    cache_salt: Option<Arc<str>>,
    is_named: bool,
}

impl IdSpace {
    /// Creates the inputs for a namespace. SGLang's default format hashes an `extra_key` only if it names an adapter.
    /// This function hashes every `extra_key`: an eviction in one namespace must not look like an eviction in another.
    pub fn new(namespace: &Namespace, format: IdFormat) -> Self {
        let salt = namespace.cache_salt();
        let hashed_salt = salt.filter(|_| format == IdFormat::Dynamo);
        let names = [namespace.extra_key(), hashed_salt];
        let has_long_rope = namespace.has_long_rotation();
        let has_seed = has_long_rope || names.iter().any(Option::is_some);
        Self {
            prior: salt.map(|salt| hash(&[SALT_PREFIX, salt.as_bytes()])),
            seed: has_seed.then(|| namespace_seed(names, has_long_rope)),
            cache_salt: salt.map(Arc::from),
            is_named: salt.or(namespace.extra_key()).is_some(),
        }
    }

    pub fn cache_salt(&self) -> Option<&Arc<str>> {
        self.cache_salt.as_ref()
    }

    /// True if a client named the namespace, by a salt or an `extra_key`.
    pub fn is_named(&self) -> bool {
        self.is_named
    }

    /// The hash of a block, given the previous block's hash, which is `None` for the first block.
    pub fn hash(&self, before: Option<&BlockHash>, tokens: &[u32]) -> BlockHash {
        let mut hasher = Sha256::new();
        if let Some(before) = before.or(self.prior.as_ref()) {
            hasher.update(before);
        }
        for token in tokens {
            hasher.update(token.to_le_bytes());
        }
        hasher.finalize().into()
    }

    pub fn id(&self, block: &BlockHash) -> i64 {
        let id = first_bytes(block);
        match &self.seed {
            None => id,
            Some(seed) => first_bytes(&hash(&[seed, &id.to_be_bytes()])),
        }
    }
}

fn namespace_seed(names: [Option<&str>; 2], has_long_rope: bool) -> BlockHash {
    let mut text = NAMESPACE_PREFIX.to_vec();
    for name in names {
        match name {
            None => text.push(0),
            Some(name) => {
                text.push(1);
                text.extend((name.len() as u64).to_le_bytes());
                text.extend(name.as_bytes());
            }
        }
    }
    if has_long_rope {
        text.extend(LONG_ROPE);
    }
    hash(&[&text])
}

fn hash(parts: &[&[u8]]) -> BlockHash {
    let mut hasher = Sha256::new();
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize().into()
}

fn first_bytes(block: &BlockHash) -> i64 {
    let (first, _) = block.split_first_chunk::<8>().expect("a hash has 32 bytes");
    i64::from_be_bytes(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(extra_key: Option<&str>, salt: Option<&str>, format: IdFormat) -> IdSpace {
        IdSpace::new(&Namespace::new(extra_key, salt), format)
    }

    fn hex(block: &BlockHash) -> String {
        block.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn hashes_and_ids_equal_those_of_sglang() {
        let plain = space(None, None, IdFormat::Default);
        let first = plain.hash(None, &[1, 2, 3, 4]);
        let second = plain.hash(Some(&first), &[5, 6, 7, 8]);
        assert_eq!(
            hex(&first),
            "cf97adeedb59e05bfd73a2b4c2a8885708c4f4f70c84c64b27120e72ab733b72"
        );
        assert_eq!(
            hex(&second),
            "4ebfa8a1f3c341517621838c6e1b9aa350307e3f00b3cbd1a07ef740f54396d6"
        );
        assert_eq!(plain.id(&first), -3_488_128_144_981_237_669);
        assert_eq!(plain.id(&second), 5_674_439_469_042_975_057);
    }

    #[test]
    fn different_namespaces_have_different_ids() {
        let mut ids = Vec::new();
        for format in [IdFormat::Default, IdFormat::Dynamo] {
            let mut format_ids = Vec::new();
            for extra_key in [None, Some(""), Some("a"), Some("ab")] {
                for salt in [None, Some("a"), Some("b")] {
                    let namespace = Namespace::new(extra_key, salt);
                    for namespace in namespace.with_and_without_long_rotation() {
                        let space = IdSpace::new(&namespace, format);
                        format_ids.push(space.id(&space.hash(None, &[7; 16])));
                    }
                }
            }
            let mut sorted = format_ids.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), format_ids.len(), "{format:?}");
            ids.push(format_ids);
        }
        // With neither a salt nor an `extra_key`, both formats give the same id; with a salt, they do not.
        assert_eq!(ids[0][0], ids[1][0]);
        assert_ne!(ids[0][2], ids[1][2]);
    }

    #[test]
    fn a_salt_enters_the_first_block_only() {
        let salted = space(None, Some("s"), IdFormat::Default);
        let plain = space(None, None, IdFormat::Default);
        let first = salted.hash(None, &[1]);
        assert_ne!(first, plain.hash(None, &[1]));
        assert_eq!(
            salted.hash(Some(&first), &[2]),
            plain.hash(Some(&first), &[2])
        );
        assert_eq!(salted.cache_salt().map(|salt| &**salt), Some("s"));
    }
}
