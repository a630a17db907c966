//! Keys of KV blocks: a chain of hashes over the engine's fingerprint, the namespace and every token.

use std::fmt;

use ring::hmac;
use sha2::{Digest, Sha256};

use crate::cache::namespace::Namespace;

/// Tokens of a block, unless a page holds more.
pub const BLOCK_TOKENS: usize = 64;

/// Tokens of a block of whole pages: the larger of [`BLOCK_TOKENS`] and a page; `None` unless one divides the other.
pub fn block_tokens(page_tokens: usize) -> Option<usize> {
    match page_tokens {
        0 => None,
        page if BLOCK_TOKENS.is_multiple_of(page) => Some(BLOCK_TOKENS),
        page if page.is_multiple_of(BLOCK_TOKENS) => Some(page),
        _ => None,
    }
}

/// The key of a block. Blocks with equal keys have equal bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockKey(pub [u8; 32]);

impl fmt::Debug for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "BlockKey({a:02x}{b:02x}{c:02x}{d:02x})")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPlace {
    pub key: BlockKey,
    /// The key of the block before this one; for a first block, the root key of the namespace.
    pub parent: BlockKey,
    /// Number of blocks before this one.
    pub block: u32,
}

/// 32 random bytes, kept next to the store's files. Without them, a block's key does not reveal its tokens.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// A value that shows whether a file belongs to this secret.
    pub fn check(&self) -> [u8; 32] {
        self.hash([b"souffleur secret check".as_slice()])
    }

    pub(super) fn hash<'a>(&self, parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
        let mut mac = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &self.0));
        for part in parts {
            mac.update(part);
        }
        let mut hash = [0; 32];
        hash.copy_from_slice(mac.sign().as_ref());
        hash
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The hash of everything that changes the bits of keys, values and states, except tokens and namespace.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// The name of the store's folder: the first 8 bytes as 16 hexadecimal digits.
    pub fn folder(&self) -> String {
        self.0[..8].iter().map(|b| format!("{b:02x}")).collect()
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({})", self.folder())
    }
}

/// The parts of a fingerprint by name, in the order in which they are added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FingerprintParts {
    parts: Vec<(String, String)>,
}

impl FingerprintParts {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a part. Its name and its value change the fingerprint.
    pub fn part(mut self, name: impl Into<String>, value: impl fmt::Display) -> Self {
        self.parts.push((name.into(), value.to_string()));
        self
    }

    /// The parts, for the file that describes a folder.
    pub fn parts(&self) -> &[(String, String)] {
        &self.parts
    }

    /// The hash of all parts. Each text is hashed after its length, so that different lists have different hashes.
    pub fn fingerprint(&self) -> Fingerprint {
        let mut hash = Sha256::new();
        for text in self.parts.iter().flat_map(|(name, value)| [name, value]) {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
        Fingerprint(hash.finalize().into())
    }
}

/// Makes keys for one engine. They show whether a prompt is in the store, so the file of the secret must stay private.
#[derive(Clone, Debug)]
pub struct Keys {
    secret: Secret,
    fingerprint: Fingerprint,
    block_tokens: usize,
}

impl Keys {
    pub fn new(secret: Secret, fingerprint: Fingerprint, block_tokens: usize) -> Self {
        Self {
            secret,
            fingerprint,
            block_tokens: block_tokens.max(1),
        }
    }

    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// Begins a path: `HMAC-SHA256(secret, fingerprint ‖ namespace)`.
    pub fn chain(&self, namespace: &Namespace) -> KeyChain {
        let name = namespace_bytes(namespace);
        let root = self.secret.hash([self.fingerprint.0.as_slice(), &name]);
        KeyChain {
            last: BlockKey(root),
            n_blocks: 0,
        }
    }

    /// The whole blocks of a path, in order.
    pub fn path(&self, namespace: &Namespace, tokens: &[u32]) -> Vec<BlockPlace> {
        let mut chain = self.chain(namespace);
        let blocks = tokens.chunks_exact(self.block_tokens);
        blocks.map(|block| chain.push(block)).collect()
    }
}

#[derive(Clone, Copy, Debug)]
pub struct KeyChain {
    last: BlockKey,
    n_blocks: u32,
}

impl KeyChain {
    /// Extends the path by the tokens of a block: `SHA-256(parent ‖ tokens as u32 LE)`.
    pub fn push(&mut self, tokens: &[u32]) -> BlockPlace {
        let mut hash = Sha256::new();
        hash.update(self.last.0);
        for token in tokens {
            hash.update(token.to_le_bytes());
        }
        let place = BlockPlace {
            key: BlockKey(hash.finalize().into()),
            parent: self.last,
            block: self.n_blocks,
        };
        (self.last, self.n_blocks) = (place.key, self.n_blocks + 1);
        place
    }
}

/// An injective encoding of a namespace: a byte for LongRoPE, and the presence, length and text of each name.
fn namespace_bytes(namespace: &Namespace) -> Vec<u8> {
    let mut bytes = vec![u8::from(namespace.has_long_rotation())];
    for name in [namespace.extra_key(), namespace.cache_salt()] {
        bytes.push(u8::from(name.is_some()));
        let text = name.unwrap_or_default();
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(secret: u8, part: &str) -> Keys {
        let parts = FingerprintParts::new().part("weights", part);
        Keys::new(Secret::new([secret; 32]), parts.fingerprint(), 4)
    }

    fn last(keys: &Keys, namespace: &Namespace, tokens: &[u32]) -> BlockKey {
        let path = keys.path(namespace, tokens);
        path.last().expect("the path has a block").key
    }

    #[test]
    fn a_key_depends_on_everything_before_its_end() {
        let tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        let plain = Namespace::default();
        let key = last(&keys(1, "a"), &plain, &tokens);
        assert_eq!(key, last(&keys(1, "a"), &plain, &tokens[..8]));
        let namespaces = [
            Namespace::new(Some("a"), None),
            Namespace::new(None, Some("a")),
            Namespace::new(Some(""), None),
            plain.clone().with_long_rotation(true),
        ];
        let mut others: Vec<BlockKey> = namespaces
            .iter()
            .map(|namespace| last(&keys(1, "a"), namespace, &tokens))
            .collect();
        others.push(last(&keys(2, "a"), &plain, &tokens));
        others.push(last(&keys(1, "b"), &plain, &tokens));
        others.push(last(&keys(1, "a"), &plain, &[0, 2, 3, 4, 5, 6, 7, 8]));
        others.push(last(&keys(1, "a"), &plain, &tokens[..4]));
        others.push(key);
        others.sort();
        others.dedup();
        assert_eq!(others.len(), 9);
    }

    #[test]
    fn the_chain_is_the_documented_one() {
        let keys = keys(7, "a");
        let path = keys.path(&Namespace::default(), &[1, 2, 3, 4, 5, 6, 7, 8]);
        let mut bytes = path[0].parent.0.to_vec();
        for token in [1u32, 2, 3, 4] {
            bytes.extend(token.to_le_bytes());
        }
        assert_eq!(path[0].key.0[..], Sha256::digest(&bytes)[..]);
        assert_eq!((path[1].parent, path[1].block), (path[0].key, 1));
    }

    #[test]
    fn the_root_is_an_hmac() {
        // The HMAC of an empty message, with a key of 32 zero bytes.
        let hash = Secret::new([0; 32]).hash([]);
        let hex: String = hash.iter().map(|b| format!("{b:02x}")).collect();
        let known = "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad";
        assert_eq!(hex, known);
    }

    #[test]
    fn the_division_of_texts_into_parts_changes_the_fingerprint() {
        let print = |parts: &[(&str, &str)]| {
            let all = parts
                .iter()
                .fold(FingerprintParts::new(), |all, (n, v)| all.part(*n, v));
            all.fingerprint()
        };
        assert_ne!(print(&[("a", "bc")]), print(&[("ab", "c")]));
        assert_ne!(
            print(&[("a", "b"), ("c", "d")]),
            print(&[("a", "bc"), ("", "d")])
        );
        assert_eq!(print(&[("a", "b")]), print(&[("a", "b")]));
        assert_eq!(print(&[]).folder().len(), 16);
    }

    #[test]
    fn blocks_are_whole_pages() {
        let table = [(0, None), (1, Some(64)), (16, Some(64)), (48, None)];
        for (page, block) in table
            .into_iter()
            .chain([(64, Some(64)), (128, Some(128)), (96, None)])
        {
            assert_eq!(block_tokens(page), block, "{page}");
        }
    }
}
