//! The digest that identifies a picture's vectors. Files of different formats with equal pixels have equal digests.

use sha2::{Digest, Sha256};

use super::{Prepared, Processor};

/// Version of the processors, to be raised when equal pixels give other vectors than before.
const VERSION: u32 = 1;

impl Processor {
    /// SHA-256 over the scaled RGB pixels of each view, their grids, this processor's settings and the tower's
    /// fingerprint: all that the vectors depend on. One level of one sample gives another digest.
    pub fn digest(&self, prepared: &Prepared, tower: &[u8]) -> [u8; 32] {
        let mut hash = Sha256::new();
        // Each part has a length before it, so that no two lists of parts have the same bytes.
        let mut part = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        part(&VERSION.to_le_bytes());
        part(tower);
        part(format!("{self:?}").as_bytes());
        for (view, picture) in prepared.layout.views.iter().zip(&prepared.views) {
            let sizes = [
                view.grid.t,
                view.grid.h,
                view.grid.w,
                view.width,
                view.height,
            ];
            part(&sizes.map(u32::to_le_bytes).concat());
            part(picture.pixels());
        }
        hash.finalize().into()
    }
}
