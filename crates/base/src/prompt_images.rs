//! Images in a prompt: the positions that each takes, and the true ids at these positions.
//!
//! A prompt stays a list of `u32`. Images have *marks*: special tokens, as those of begin, end or a row's end, that no
//! vector replaces. Every position of an image, its marks included, holds a *key* in place of a token id: [`KEY_BIT`],
//! a bit that tells the image's first position from the others, and below it 29 bits of a keyed hash of the image and
//! the position. Code that compares tokens (prefix cache, KV store, KV events, sessions, message log) thereby tells
//! pictures apart without knowledge of images. Code that needs true ids, or positions in the grid, asks [`PromptImages`], the table that
//! accompanies the tokens.
//!
//! Vectors replace the embeddings at an image's positions, its marks excepted. Only the executor reads them.

mod input;
mod positions;
mod shown;
mod whole;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::error::FieldError;
use crate::prompt_vectors::{PLACEHOLDER_TOKEN, PromptVectors, VectorRun};

pub use input::ImageInput;
pub use shown::decode_around;

/// The bit of a key that no token id has: vocabularies are smaller. Keys stay positive as signed numbers of 32 bits.
pub const KEY_BIT: u32 = 1 << 30;
/// The bit that the key of an image's first position has, so that adjacent images can be told apart.
const FIRST_BIT: u32 = KEY_BIT >> 1;
/// The most images of a prompt.
pub const MAX_IMAGES: usize = 1024;

const FIELD: &str = "images";

pub fn is_key(token: u32) -> bool {
    token >> 30 == KEY_BIT >> 30
}

/// Whether a token is the key of an image's first position.
fn begins_image(token: u32) -> bool {
    is_key(token) && token & FIRST_BIT != 0
}

/// The identity of an image: SHA-256 over the pixels that the encoder sees and everything else that its vectors depend
/// on, such as the encoder's weights and parameters. Equal digests must mean equal vectors.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ImageDigest(pub [u8; 32]);

impl fmt::Debug for ImageDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "ImageDigest({a:02x}{b:02x}{c:02x}{d:02x})")
    }
}

/// The arrangement of an image's vectors, in row-major order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageGrid {
    pub rows: u32,
    pub columns: u32,
}

impl ImageGrid {
    fn n_vectors(self) -> u64 {
        u64::from(self.rows) * u64::from(self.columns)
    }

    /// Number of positions by which later text moves forward with M-RoPE: an image takes as many rotary positions as
    /// its longer side has vectors. [`Self::n_vectors`] must fit 32 bits.
    fn shortening(self) -> u32 {
        self.rows * self.columns - self.rows.max(self.columns)
    }
}

/// What a model can do with images in prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageSupport {
    /// Positions of an image have RoPE like text.
    Sequence,
    /// M-RoPE: positions of an image depend on its grid.
    Grid,
    /// As `Sequence`, and the vectors of an image attend to each other in both directions, in some layers or in all.
    Bidirectional,
    /// Images are refused, for this reason: a clause.
    Missing(&'static str),
    /// As [`Self::Grid`], and each vector of an image is followed by this number of others, equally wide, which are
    /// added to the outputs of the first layers (DeepStack, arXiv 2406.04334).
    Deepstack(usize),
}

impl ImageSupport {
    /// Whether positions rotate by the image's grid.
    pub fn rotates_by_grid(self) -> bool {
        matches!(self, Self::Grid | Self::Deepstack(_))
    }

    /// The values of a position of an image, in a model whose embeddings have `hidden_size`.
    pub fn vector_width(self, hidden_size: usize) -> usize {
        match self {
            Self::Deepstack(n_sets) => hidden_size * (1 + n_sets),
            Self::Sequence | Self::Grid | Self::Bidirectional | Self::Missing(_) => hidden_size,
        }
    }
}

/// The layers in which the vectors of an image attend to each other in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BidirectionalLayers {
    All,
    /// Only the layers with a sliding window, and within the window; other layers attend causally.
    Windowed,
}

/// An image of a prompt of true token ids.
#[derive(Clone, Debug)]
pub struct PromptImage {
    /// The image's positions in the prompt, including its marks.
    pub positions: Range<u32>,
    /// The token id at the positions that the vectors replace. The image's other tokens are its marks.
    pub pad: u32,
    pub digest: ImageDigest,
    pub grid: ImageGrid,
    /// A vector for each position with the id `pad`, of [`ImageSupport::vector_width`] values; `None` if the vectors are
    /// computed from `input`, or the K/V of all these positions comes from the cache.
    pub vectors: Option<Arc<PromptVectors>>,
    /// The pixels from which the vectors are computed, unless they are given.
    pub input: Option<Arc<dyn ImageInput>>,
}

/// The images of one prompt, ascending and disjoint.
#[derive(Clone, Debug)]
pub struct PromptImages {
    spans: Vec<ImageSpan>,
    /// See [`Self::whole`].
    whole: Option<Arc<[Range<u32>]>>,
}

/// The positions of one image.
#[derive(Clone, Debug)]
pub struct ImageSpan {
    positions: Range<u32>,
    digest: ImageDigest,
    grid: ImageGrid,
    /// The token id at the positions that have vectors.
    pad: u32,
    /// Positions of marks, ascending, with their token ids.
    marks: Vec<(u32, u32)>,
    /// From the first position with a vector to the last.
    pads: Range<u32>,
    vectors: Option<Arc<PromptVectors>>,
    input: Option<Arc<dyn ImageInput>>,
    /// Sum of [`ImageGrid::shortening`] of the images before this one.
    shortened: u32,
}

impl PromptImages {
    /// Checks the images of a prompt of true token ids.
    ///
    /// # Errors
    /// [`FieldError`] on `images` if there are none or too many; if one is not after the one before, not within the
    /// prompt, or has numbers of pad tokens, grid cells and vectors that differ.
    pub fn new(tokens: &[u32], images: &[PromptImage]) -> Result<Self, FieldError> {
        let n_images = images.len();
        if n_images == 0 || n_images > MAX_IMAGES {
            let text = format!("{FIELD} has {n_images} images, must have 1 to {MAX_IMAGES}");
            return Err(FieldError::new(FIELD, text));
        }
        let mut spans: Vec<ImageSpan> = Vec::with_capacity(n_images);
        for (index, image) in images.iter().enumerate() {
            let before = spans.last();
            let end = before.map_or(0, |span| span.positions.end);
            let shortened = before.map_or(0, |span| span.shortened + span.grid.shortening());
            let span = ImageSpan::new(tokens, image, (end, shortened));
            let wrong =
                |reason: String| FieldError::new(FIELD, format!("{FIELD}[{index}] {reason}"));
            spans.push(span.map_err(wrong)?);
        }
        Ok(Self { spans, whole: None })
    }

    pub fn spans(&self) -> &[ImageSpan] {
        &self.spans
    }

    /// The same images, with the vectors that `of_image` returns for the index of an image without vectors, and without
    /// the images' inputs.
    ///
    /// # Panics
    /// If there is not one vector for each position of the image outside of its marks.
    pub fn with_vectors(
        &self,
        mut of_image: impl FnMut(usize) -> Option<Arc<PromptVectors>>,
    ) -> Self {
        let spans = self.spans.iter().enumerate().map(|(index, span)| {
            let vectors = span.vectors.clone().or_else(|| of_image(index));
            if let Some(vectors) = &vectors {
                let (got, wanted) = (vectors.len(), span.n_vectors());
                assert_eq!(
                    got, wanted,
                    "an image of {wanted} positions got {got} vectors"
                );
            }
            ImageSpan {
                vectors,
                input: None,
                ..span.clone()
            }
        });
        Self {
            spans: spans.collect(),
            whole: self.whole.clone(),
        }
    }

    /// The same images without vectors and inputs, for a sequence whose K/V is computed.
    pub fn without_vectors(&self) -> Self {
        let spans = self.spans.iter().map(|span| ImageSpan {
            vectors: None,
            input: None,
            ..span.clone()
        });
        Self {
            spans: spans.collect(),
            whole: self.whole.clone(),
        }
    }

    /// The image that has this position.
    pub fn at(&self, position: u32) -> Option<&ImageSpan> {
        let after = self
            .spans
            .partition_point(|span| span.positions.start <= position);
        let span = &self.spans[after.checked_sub(1)?];
        span.positions.contains(&position).then_some(span)
    }

    /// The true token id at a position, where the prompt has a key; `None` outside of images.
    pub fn id_at(&self, position: u32) -> Option<u32> {
        let span = self.at(position)?;
        Some(span.mark_at(position).unwrap_or(span.pad))
    }

    /// The prompt with a key at each position of an image. `of_image` returns the function that makes an image's keys,
    /// from the offset in the image and from the mark there, if there is one.
    pub fn keyed<K>(&self, tokens: &[u32], of_image: impl Fn(&ImageSpan) -> K) -> Arc<[u32]>
    where
        K: FnMut(u32, Option<u32>) -> u32,
    {
        let mut keyed = tokens.to_vec();
        for span in &self.spans {
            let (start, mut key) = (span.positions.start, of_image(span));
            for position in span.positions.clone() {
                let key = key(position - start, span.mark_at(position)) & (FIRST_BIT - 1);
                let first = if position == start { FIRST_BIT } else { 0 };
                keyed[position as usize] = KEY_BIT | first | key;
            }
        }
        keyed.into()
    }

    /// The ids that the model looks up, of a sequence that begins with the prompt: true ids for marks, and
    /// [`PLACEHOLDER_TOKEN`] for vectors.
    ///
    /// # Panics
    /// If the sequence ends within an image.
    pub fn inputs(&self, tokens: &[u32]) -> Arc<[u32]> {
        let mut inputs = tokens.to_vec();
        for span in &self.spans {
            let range = span.positions.start as usize..span.positions.end as usize;
            inputs[range].fill(PLACEHOLDER_TOKEN);
            for (position, mark) in &span.marks {
                inputs[*position as usize] = *mark;
            }
        }
        inputs.into()
    }

    /// The tokens of the prompt outside of its images.
    pub fn text_tokens(&self, prompt: &[u32]) -> Vec<u32> {
        let mut text = Vec::with_capacity(prompt.len());
        let mut end = 0;
        for span in &self.spans {
            text.extend_from_slice(&prompt[end..span.positions.start as usize]);
            end = span.positions.end as usize;
        }
        text.extend_from_slice(&prompt[end..]);
        text
    }

    /// Calls `place` for each run of vectors at `positions`, in order. `first_token` is the index of the first position
    /// in the step.
    pub fn for_each_run(
        &self,
        positions: Range<u32>,
        first_token: usize,
        mut place: impl FnMut(VectorRun),
    ) {
        let first = self
            .spans
            .partition_point(|span| span.pads.end <= positions.start);
        let spans = self.spans[first..].iter();
        for span in spans.take_while(|span| span.pads.start < positions.end) {
            let Some(prompt) = &span.vectors else {
                continue;
            };
            let begin = span.pads.start.max(positions.start);
            for run in span.runs(begin..span.pads.end.min(positions.end)) {
                let vector = span.n_vectors_before(run.start) as usize;
                place(VectorRun {
                    first_token: first_token + (run.start - positions.start) as usize,
                    vectors: vector..vector + run.len(),
                    prompt: prompt.clone(),
                });
            }
        }
    }

    /// The end of the last image without vectors: the K/V before it must come from the cache. 0 if all have vectors.
    pub fn cached_until(&self) -> u32 {
        let mut spans = self.spans.iter().rev();
        let last = spans.find(|span| span.vectors.is_none());
        last.map_or(0, |span| span.pads.end)
    }
}

impl ImageSpan {
    /// `before` is the end of the image before, and the sum of the shortenings so far. Errors continue a sentence.
    fn new(
        tokens: &[u32],
        image: &PromptImage,
        (end_before, shortened): (u32, u32),
    ) -> Result<Self, String> {
        let (positions, pad) = (&image.positions, image.pad);
        let Range { start, end } = *positions;
        if start < end_before || start >= end || end as usize > tokens.len() {
            let n_tokens = tokens.len();
            return Err(format!(
                "is at positions {start} to {end} of {n_tokens}: images must be in order, disjoint and in the prompt"
            ));
        }
        let ids = || positions.clone().zip(&tokens[start as usize..end as usize]);
        let pads = || ids().filter(move |(_, id)| **id == pad).map(|(at, _)| at);
        let n_pads = pads().count();
        let grid = image.grid;
        if n_pads == 0 || n_pads as u64 != grid.n_vectors() {
            let ImageGrid { rows, columns } = grid;
            return Err(format!(
                "has {n_pads} pad tokens with id {pad}, but a grid of {rows} rows and {columns} columns: send one pad \
                 token for each cell"
            ));
        }
        let n_vectors = image
            .vectors
            .as_ref()
            .map_or(n_pads, |vectors| vectors.len());
        if n_vectors != n_pads {
            return Err(format!(
                "has {n_vectors} vectors for {n_pads} pad tokens: send one vector for each"
            ));
        }
        let marks = ids().filter(|(_, id)| **id != pad);
        Ok(Self {
            positions: positions.clone(),
            digest: image.digest,
            grid,
            pad,
            marks: marks.map(|(at, id)| (at, *id)).collect(),
            pads: pads().next().unwrap_or(start)..pads().next_back().map_or(end, |last| last + 1),
            vectors: image.vectors.clone(),
            input: image.input.clone(),
            shortened,
        })
    }

    pub fn positions(&self) -> Range<u32> {
        self.positions.clone()
    }

    pub fn digest(&self) -> &ImageDigest {
        &self.digest
    }

    pub fn grid(&self) -> ImageGrid {
        self.grid
    }

    pub fn vectors(&self) -> Option<&Arc<PromptVectors>> {
        self.vectors.as_ref()
    }

    pub fn input(&self) -> Option<&Arc<dyn ImageInput>> {
        self.input.as_ref()
    }

    /// Number of positions that have a vector: all but the marks.
    pub fn n_vectors(&self) -> usize {
        self.positions.len() - self.marks.len()
    }

    /// The position after the last one that has a vector.
    pub fn vectors_end(&self) -> u32 {
        self.pads.end
    }

    /// The token id of the mark at a position; `None` if a vector is there.
    pub fn mark_at(&self, position: u32) -> Option<u32> {
        let found = self.marks.binary_search_by_key(&position, |mark| mark.0);
        found.ok().map(|index| self.marks[index].1)
    }

    /// The token ids of the marks, in order.
    pub fn marks(&self) -> impl Iterator<Item = u32> {
        self.marks.iter().map(|(_, id)| *id)
    }

    /// Whether no mark is between vectors, as the positions of M-RoPE require.
    pub fn is_contiguous(&self) -> bool {
        self.pads.len() as u64 == self.grid.n_vectors()
    }

    fn n_vectors_before(&self, position: u32) -> u32 {
        let n_marks = self.marks.partition_point(|(mark, _)| *mark < position);
        position - self.positions.start - n_marks as u32
    }

    /// The parts of a range of positions between marks.
    fn runs(&self, range: Range<u32>) -> impl Iterator<Item = Range<u32>> {
        let Range { start, end } = range;
        let marks = self.marks.iter().map(|(position, _)| *position);
        let marks = marks.filter(move |position| range.contains(position));
        let starts = std::iter::once(start).chain(marks.clone().map(|mark| mark + 1));
        let runs = starts.zip(marks.chain(std::iter::once(end)));
        runs.map(|(start, end)| start..end)
            .filter(|run| !run.is_empty())
    }
}

#[cfg(test)]
mod tests;
