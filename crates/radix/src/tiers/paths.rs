//! Computes the keys of blocks that are written to a tier, and hashes each recent path only once.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::cache::namespace::Namespace;
use crate::tiers::{BlockPlace, KeyChain, Keys};

/// Number of remembered paths: those of requests whose prefixes are being written.
const MAX_PATHS: usize = 16;

#[derive(Clone, Debug)]
pub struct Paths {
    keys: Keys,
    /// Most recently used first.
    recent: VecDeque<Path>,
}

#[derive(Clone, Debug)]
struct Path {
    namespace: Namespace,
    tokens: Arc<[u32]>,
    chain: KeyChain,
    places: Vec<BlockPlace>,
}

impl Paths {
    pub fn new(keys: Keys) -> Self {
        Self {
            keys,
            recent: VecDeque::with_capacity(MAX_PATHS),
        }
    }

    /// The key and position of a block of a path; `None` if the path is shorter.
    pub fn place(
        &mut self,
        namespace: &Namespace,
        tokens: &Arc<[u32]>,
        block: u32,
    ) -> Option<BlockPlace> {
        let is_this =
            |path: &Path| Arc::ptr_eq(&path.tokens, tokens) && path.namespace == *namespace;
        let known = self.recent.iter().position(is_this);
        let mut path = match known.and_then(|index| self.recent.remove(index)) {
            Some(path) => path,
            None => Path {
                namespace: namespace.clone(),
                tokens: tokens.clone(),
                chain: self.keys.chain(namespace),
                places: Vec::new(),
            },
        };
        let block_tokens = self.keys.block_tokens();
        let blocks = path.tokens.chunks_exact(block_tokens);
        for block in blocks.take(block as usize + 1).skip(path.places.len()) {
            path.places.push(path.chain.push(block));
        }
        let place = path.places.get(block as usize).copied();
        self.recent.truncate(MAX_PATHS - 1);
        self.recent.push_front(path);
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::{Fingerprint, Secret};

    #[test]
    fn keys_do_not_depend_on_the_order_of_requests() {
        let keys = Keys::new(Secret::new([7; 32]), Fingerprint([1; 32]), 4);
        let tokens: Arc<[u32]> = (0..30).collect();
        let other: Arc<[u32]> = (1..30).collect();
        let namespace = Namespace::default();
        let expected = keys.path(&namespace, &tokens);
        let mut paths = Paths::new(keys);
        for block in [3, 0, 6, 6, 1] {
            let place = paths.place(&namespace, &tokens, block);
            assert_eq!(place, Some(expected[block as usize]));
            assert_ne!(paths.place(&namespace, &other, block), place);
        }
        assert_eq!(paths.place(&namespace, &tokens, 7), None);
    }
}
