//! Prompts with pictures, and the vector that each of their positions must get.

use std::ops::Range;
use std::sync::Arc;

use souffleur_state::prompt_images::{
    ImageDigest, ImageGrid, ImageInput, PromptImage, PromptImages,
};
use souffleur_state::prompt_vectors::PromptVectors;

/// Sampled tokens are below this.
pub const VOCAB: u32 = 256;
/// The tower fails for pictures from this one on.
pub const BROKEN: u8 = 240;
/// Tokens of texts are below this, and those of questions are not.
const TEXT: u32 = 200;
/// Ends a text that is cut off.
const CUT: u32 = 255;
/// True ids: the mark before a picture, those of its vectors, the mark in its middle, the mark after it.
const BEGIN: u32 = 300;
const PAD: u32 = 301;
const BREAK: u32 = 302;
const END: u32 = 303;

/// The vectors of a picture: 8, 39, 70 or 101.
pub fn n_vectors(picture: u8) -> u32 {
    8 + 31 * u32::from(picture % 4)
}

/// Vectors that tell the picture and their place in it.
pub fn vectors_of(picture: u8) -> Arc<PromptVectors> {
    let values = (0..n_vectors(picture)).flat_map(|index| [f32::from(picture), index as f32]);
    Arc::new(PromptVectors::new(2, values.collect()).expect("valid vectors"))
}

#[derive(Debug)]
struct Pixels(u8);

impl ImageInput for Pixels {
    fn n_views(&self) -> usize {
        1
    }

    fn grid(&self, _: usize) -> ImageGrid {
        ImageGrid {
            rows: 1,
            columns: 1,
        }
    }

    fn patches(&self, _: usize) -> Vec<f32> {
        vec![f32::from(self.0)]
    }

    fn bytes(&self) -> usize {
        1
    }
}

pub fn picture_of(input: &dyn ImageInput) -> u8 {
    input.patches(0)[0] as u8
}

#[derive(Clone, Debug)]
pub struct Prompt {
    /// With keys at the positions of pictures.
    pub tokens: Arc<[u32]>,
    pub images: Option<Arc<PromptImages>>,
    /// The picture and the vector's place in it, for each position that has a vector.
    vectors: Vec<Option<(u8, u32)>>,
}

impl Prompt {
    /// A text that begins like the others of its family, pictures, and a question. Pictures with odd numbers have a mark
    /// between their vectors.
    pub fn new(family: u32, n_text: usize, pictures: &[u8], question: &[u32]) -> Self {
        let text = (0..n_text as u32).map(|at| (at * 7 + family * 31) % TEXT);
        let mut ids: Vec<u32> = text.collect();
        let mut vectors: Vec<Option<(u8, u32)>> = vec![None; n_text];
        let mut images = Vec::new();
        for &picture in pictures {
            let (first, n_vectors) = (ids.len() as u32, n_vectors(picture));
            let mut push = |id, vector| {
                ids.push(id);
                vectors.push(vector);
            };
            push(BEGIN, None);
            for index in 0..n_vectors {
                if picture % 2 == 1 && index == n_vectors / 2 {
                    push(BREAK, None);
                }
                push(PAD, Some((picture, index)));
            }
            push(END, None);
            images.push(PromptImage {
                positions: first..ids.len() as u32,
                pad: PAD,
                digest: ImageDigest([picture; 32]),
                grid: ImageGrid {
                    rows: 1,
                    columns: n_vectors,
                },
                vectors: None,
                input: Some(Arc::new(Pixels(picture))),
            });
        }
        ids.extend_from_slice(question);
        vectors.resize(ids.len(), None);
        if images.is_empty() {
            return Self {
                tokens: ids.into(),
                images: None,
                vectors,
            };
        }
        let images = PromptImages::new(&ids, &images).expect("valid images");
        let tokens = images.keyed(&ids, |image| {
            let picture = u32::from(image.digest().0[0]);
            move |offset: u32, _: Option<u32>| (picture << 12) | offset
        });
        Self {
            tokens,
            images: Some(Arc::new(images)),
            vectors,
        }
    }

    /// The first `len` tokens, as a text that continues otherwise.
    pub fn cut(&self, len: usize) -> Self {
        let mut tokens = self.tokens[..len].to_vec();
        tokens.push(CUT);
        Self {
            vectors: vec![None; tokens.len()],
            tokens: tokens.into(),
            images: None,
        }
    }

    pub fn n_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// The positions in a range that have vectors, with the picture and the vector's place in it.
    pub fn vectors_at(&self, positions: Range<u32>) -> Vec<(u32, u8, u32)> {
        let vector_at = |at: u32| {
            let (picture, index) = self.vectors.get(at as usize).copied().flatten()?;
            Some((at, picture, index))
        };
        positions.filter_map(vector_at).collect()
    }

    /// The pictures that have a vector after the first `cached` tokens, in order.
    pub fn pictures_after(&self, cached: usize) -> Vec<u8> {
        let vectors = self.vectors_at(cached as u32..self.n_tokens() as u32);
        let mut pictures: Vec<u8> = vectors.iter().map(|(_, picture, _)| *picture).collect();
        pictures.dedup();
        pictures
    }

    /// Whether a picture has vectors right before and right after the first `len` tokens.
    pub fn is_inside(&self, len: u32) -> bool {
        len > 0 && self.vectors_at(len - 1..len + 1).len() == 2
    }

    pub fn is_broken(&self) -> bool {
        self.vectors
            .iter()
            .flatten()
            .any(|(picture, _)| *picture >= BROKEN)
    }
}
