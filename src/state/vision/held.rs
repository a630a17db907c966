//! The vectors in memory: pinned by tickets, or cached in the order of their last use.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::prompt_images::ImageDigest;
use crate::prompt_vectors::PromptVectors;

pub(super) struct Held {
    limit_bytes: usize,
    /// Sum over `images`.
    bytes: usize,
    images: FxHashMap<ImageDigest, HeldImage>,
    /// Images without pins, by the time of their last use.
    unpinned: BTreeMap<u64, ImageDigest>,
    /// Advances with each unpinning.
    clock: u64,
}

struct HeldImage {
    vectors: Arc<PromptVectors>,
    pins: usize,
    /// The image's key in `unpinned`, if it has no pins.
    last_use: u64,
}

impl Held {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            bytes: 0,
            images: FxHashMap::default(),
            unpinned: BTreeMap::new(),
            clock: 0,
        }
    }

    /// Adds an image that is not held, with this number of pins.
    pub(super) fn insert(&mut self, digest: ImageDigest, vectors: Arc<PromptVectors>, pins: usize) {
        debug_assert!(pins > 0, "an image is encoded for a ticket");
        self.bytes += vectors.bytes();
        let image = HeldImage {
            vectors,
            pins,
            last_use: 0,
        };
        self.images.insert(digest, image);
        self.evict();
    }

    pub(super) fn pin(&mut self, digest: &ImageDigest) -> Option<Arc<PromptVectors>> {
        let image = self.images.get_mut(digest)?;
        if image.pins == 0 {
            self.unpinned.remove(&image.last_use);
        }
        image.pins += 1;
        Some(image.vectors.clone())
    }

    pub(super) fn unpin(&mut self, digest: &ImageDigest) {
        let Some(image) = self.images.get_mut(digest) else {
            return;
        };
        image.pins = image.pins.saturating_sub(1);
        if image.pins == 0 {
            self.clock += 1;
            image.last_use = self.clock;
            self.unpinned.insert(self.clock, *digest);
            self.evict();
        }
    }

    pub(super) fn vectors_of(&self, digest: &ImageDigest) -> Option<usize> {
        let image = self.images.get(digest);
        image.map(|image| image.vectors.len())
    }

    pub(super) fn size(&self) -> (usize, usize) {
        (self.images.len(), self.bytes)
    }

    fn evict(&mut self) {
        while self.bytes > self.limit_bytes {
            let Some((_, digest)) = self.unpinned.pop_first() else {
                return;
            };
            if let Some(image) = self.images.remove(&digest) {
                self.bytes -= image.vectors.bytes();
            }
        }
    }
}
