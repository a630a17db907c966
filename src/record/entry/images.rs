//! The message log's form of images without vectors: as much of them as plans depend on, and their digests.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use souffleur_state::prompt_images::{ImageDigest, ImageGrid, PromptImage, PromptImages};
use souffleur_state::scheduler::submission::Submission;

/// An image that must be encoded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageEntry {
    digest: [u8; 32],
    /// The position after the last one that has a vector.
    end: u32,
    n_vectors: u32,
}

/// Stands for all tokens of the prompt, which plans do not read.
const PAD: u32 = 0;

/// The images of a request that came without vectors.
pub(super) fn without_vectors(request: &Submission) -> Vec<ImageEntry> {
    let spans = request.images.iter().flat_map(|images| images.spans());
    let without = spans.filter(|span| span.vectors().is_none());
    let entries = without.map(|span| ImageEntry {
        digest: span.digest().0,
        end: span.vectors_end(),
        n_vectors: span.n_vectors() as u32,
    });
    entries.collect()
}

/// Adds the images to a request. Their marks are left out, since no plan depends on them.
///
/// # Errors
/// The entries are invalid.
pub(crate) fn with_images(
    request: Submission,
    entries: &[ImageEntry],
) -> Result<Submission, String> {
    if entries.is_empty() {
        return Ok(request);
    }
    let images = entries.iter().map(|entry| PromptImage {
        positions: entry.end.saturating_sub(entry.n_vectors)..entry.end,
        pad: PAD,
        digest: ImageDigest(entry.digest),
        grid: ImageGrid {
            rows: entry.n_vectors,
            columns: 1,
        },
        vectors: None,
        input: None,
    });
    let images: Vec<PromptImage> = images.collect();
    let pads = vec![PAD; request.prompt.len()];
    let images = PromptImages::new(&pads, &images)
        .map_err(|error| format!("request {} has invalid images: {error}", request.rid))?;
    Ok(Submission {
        images: Some(Arc::new(images)),
        ..request
    })
}
