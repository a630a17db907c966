//! Keys of images, which a prompt has in place of token ids at the positions of an image. Some of the positions have
//! marks, tokens such as those at an image's begin and end; the other positions have vectors.
//!
//! Equal prefixes of keys must mean equal K/V, and a search for two images with equal keys must need the secret. An
//! image's hash is `HMAC-SHA256(secret, digest ‖ grid)`, which covers its vectors and their RoPE positions. The key of
//! a vector is a part of `SHA-256(hash ‖ offset)`, and the key of a mark a part of `SHA-256(hash ‖ offset ‖ id)`. The
//! smallest image has 87 bits in its three positions, two of them marks.

use sha2::{Digest, Sha256};

use super::Secret;
use crate::cache::namespace::Namespace;
use souffleur_base::prompt_images::{ImageDigest, ImageSpan};

/// Keys in one hash.
const KEYS: u32 = 8;

/// Makes the keys of one image.
pub struct ImageKeys {
    image: [u8; 32],
    /// The keys of vectors that were hashed last, and the offset of the first of them.
    hashed: (u32, [u8; 32]),
}

impl ImageKeys {
    pub fn new(secret: &Secret, image: &ImageSpan) -> Self {
        let grid = image.grid();
        let (rows, columns) = (grid.rows.to_le_bytes(), grid.columns.to_le_bytes());
        let parts = [
            b"souffleur image".as_slice(),
            &image.digest().0,
            &rows,
            &columns,
        ];
        let image = secret.hash(parts);
        Self {
            image,
            hashed: (0, hash(&image, &[0])),
        }
    }

    /// The key at an offset in the image, of a vector or of a mark with this token id.
    pub fn at(&mut self, offset: u32, mark: Option<u32>) -> u32 {
        if let Some(mark) = mark {
            return word(&hash(&self.image, &[offset, mark]), 0);
        }
        let first = offset - offset % KEYS;
        if self.hashed.0 != first {
            self.hashed = (first, hash(&self.image, &[first]));
        }
        word(&self.hashed.1, (offset - first) as usize)
    }
}

/// The name of an image's vectors for the requests of a namespace: those with a `cache_salt` share vectors only among
/// themselves, as they share prefixes. Otherwise the time to the first token would tell who else has sent the image.
pub fn name_of_vectors(image: &ImageSpan, namespace: &Namespace) -> ImageDigest {
    match namespace.cache_salt() {
        None => *image.digest(),
        Some(salt) => {
            let hash = Sha256::new().chain_update(image.digest().0);
            ImageDigest(hash.chain_update(salt).finalize().into())
        }
    }
}

fn hash(image: &[u8; 32], numbers: &[u32]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(image);
    for number in numbers {
        hash.update(number.to_le_bytes());
    }
    hash.finalize().into()
}

fn word(hash: &[u8; 32], index: usize) -> u32 {
    u32::from_le_bytes(hash.as_chunks::<4>().0[index])
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use souffleur_base::prompt_images::{
        ImageDigest, ImageGrid, PromptImage, PromptImages, is_key,
    };

    /// The keys of an image of `n_vectors` vectors between two marks.
    fn image_keys(secret: u8, digest: [u8; 32], ends: (u32, u32), n_vectors: u32) -> Vec<u32> {
        let mut tokens = vec![9; n_vectors as usize + 2];
        (tokens[0], tokens[n_vectors as usize + 1]) = ends;
        let image = PromptImage {
            positions: 0..n_vectors + 2,
            pad: 9,
            digest: ImageDigest(digest),
            grid: ImageGrid {
                rows: 1,
                columns: n_vectors,
            },
            vectors: None,
            input: None,
        };
        let images = PromptImages::new(&tokens, &[image]).expect("valid images");
        let secret = Secret::new([secret; 32]);
        let of_image = |span: &ImageSpan| {
            let mut keys = ImageKeys::new(&secret, span);
            move |offset: u32, mark: Option<u32>| keys.at(offset, mark)
        };
        images.keyed(&tokens, of_image).to_vec()
    }

    #[test]
    fn images_with_other_pixels_marks_grids_and_secrets_share_no_key() {
        let of = |secret: u8, digest: u8, ends: (u32, u32), n_vectors: u32| {
            image_keys(secret, [digest; 32], ends, n_vectors)
        };
        let keys = of(1, 1, (6, 7), 30);
        assert_eq!(keys, of(1, 1, (6, 7), 30));
        assert!(keys.iter().all(|key| is_key(*key) && *key >> 31 == 0));
        let distinct: HashSet<&u32> = keys.iter().collect();
        assert_eq!(distinct.len(), 32);
        // A mark changes the key of its position alone.
        let other_mark = of(1, 1, (6, 8), 30);
        assert_eq!(keys[..31], other_mark[..31]);
        assert_ne!(keys[31], other_mark[31]);
        let others = [
            of(2, 1, (6, 7), 30),
            of(1, 2, (6, 7), 30),
            of(1, 1, (6, 7), 29),
        ]
        .concat();
        assert!(others.iter().all(|key| !distinct.contains(key)));
    }

    /// At night, `SOUFFLEUR_IMAGE_DIGESTS` sets a number such as a million.
    #[test]
    fn random_images_have_different_runs_of_keys() {
        let number = std::env::var("SOUFFLEUR_IMAGE_DIGESTS").ok();
        let number = number.and_then(|text| text.parse().ok());
        let mut random = fastrand::Rng::with_seed(55);
        let mut runs = HashSet::new();
        for _ in 0..number.unwrap_or(20_000_u32) {
            let digest = std::array::from_fn(|_| random.u8(..));
            assert!(runs.insert(image_keys(5, digest, (6, 7), 1)));
        }
    }
}
