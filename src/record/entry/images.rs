//! The message log's form of images: as much of them as plans and errors depend on, and their digests if one must be
//! encoded.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use souffleur_state::prompt_images::{ImageDigest, ImageGrid, PromptImage, PromptImages};
use souffleur_state::prompt_vectors::PromptVectors;
use souffleur_state::scheduler::submission::Submission;

/// An image of a request of which one must be encoded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageEntry {
    digest: [u8; 32],
    /// The position after the last one that has a vector.
    end: u32,
    /// 0 for an image that came with its vectors. Errors count it: they name an image by its place.
    n_vectors: u32,
}

/// The images of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImagesEntry {
    /// All, if one of them has no vectors.
    listed: Vec<ImageEntry>,
    /// Runs of tokens that no chunk may cut, ascending.
    whole: Vec<Range<u32>>,
}

impl ImagesEntry {
    pub(super) fn of(request: &Submission) -> Self {
        let images = request.images.as_ref();
        let whole = images.and_then(|images| images.whole());
        Self {
            listed: of_request(request),
            whole: whole.map_or_else(Vec::new, |runs| runs.to_vec()),
        }
    }

    /// Whether the images attend in both directions.
    pub(super) fn has_whole(&self) -> bool {
        !self.whole.is_empty()
    }
}

impl From<Vec<ImageEntry>> for ImagesEntry {
    fn from(listed: Vec<ImageEntry>) -> Self {
        Self {
            listed,
            whole: Vec::new(),
        }
    }
}

/// Stands for all tokens of the prompt, which plans do not read.
const PAD: u32 = 0;

/// The images of a request, if it has one without vectors; otherwise none.
pub(super) fn of_request(request: &Submission) -> Vec<ImageEntry> {
    let spans = || request.images.iter().flat_map(|images| images.spans());
    if spans().all(|span| span.vectors().is_some()) {
        return Vec::new();
    }
    let entries = spans().map(|span| ImageEntry {
        digest: span.digest().0,
        end: span.vectors_end(),
        n_vectors: match span.vectors() {
            None => span.n_vectors() as u32,
            Some(_) => 0,
        },
    });
    entries.collect()
}

/// Adds the images to a request, without their marks (tokens such as begin and end of image), since no plan depends on
/// these.
///
/// # Errors
/// The entries are invalid.
pub(crate) fn with_images(request: Submission, entry: &ImagesEntry) -> Result<Submission, String> {
    let request = with_table(request, &entry.listed)?;
    if entry.whole.is_empty() {
        return Ok(request);
    }
    let n_tokens = request.prompt.len();
    let mut end = 0;
    for run in &entry.whole {
        if run.is_empty() || run.start < end || run.end as usize > n_tokens {
            return Err(format!(
                "request {} has a run of tokens {} to {} of {n_tokens}: runs must be in order, disjoint and in the prompt",
                request.rid, run.start, run.end
            ));
        }
        end = run.end;
    }
    let images = PromptImages::with_whole(request.images.as_deref(), entry.whole.clone());
    Ok(Submission {
        images: Some(Arc::new(images)),
        ..request
    })
}

fn with_table(request: Submission, entries: &[ImageEntry]) -> Result<Submission, String> {
    if entries.is_empty() {
        return Ok(request);
    }
    // Stands for the vectors that came with an image.
    let given = PromptVectors::new(1, vec![0.0]).map_err(|error| error.to_string())?;
    let given = Arc::new(given);
    let images = entries.iter().map(|entry| {
        let n_vectors = entry.n_vectors.max(1);
        PromptImage {
            positions: entry.end.saturating_sub(n_vectors)..entry.end,
            pad: PAD,
            digest: ImageDigest(entry.digest),
            grid: ImageGrid {
                rows: n_vectors,
                columns: 1,
            },
            vectors: (entry.n_vectors == 0).then(|| given.clone()),
            input: None,
        }
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

#[cfg(test)]
mod tests {
    use souffleur_base::ids::{IntakeId, RequestId};
    use souffleur_request::{CancelFlag, RequestTimeouts};
    use souffleur_state::cache::namespace::Namespace;
    use souffleur_state::sampling::SamplingParams;

    use super::super::SubmitEntry;
    use super::*;

    /// A request with ten tokens and no images.
    fn request() -> Submission {
        let sampling = SamplingParams::default();
        let entry = SubmitEntry {
            rid: RequestId::new("r".to_owned()),
            intake: IntakeId::new(1),
            prompt: [5; 10].into(),
            namespace: (&Namespace::default()).into(),
            sampling_json: serde_json::to_string(&sampling).expect("serialisable"),
            logprobs: None,
            priority: None,
            submitted_s: 0.0,
            timeouts: RequestTimeouts::default(),
        };
        let submission = entry.submission(Arc::default(), Arc::default(), CancelFlag::default());
        submission.expect("a valid entry")
    }

    fn entry(whole: [Range<u32>; 2]) -> ImagesEntry {
        ImagesEntry {
            listed: vec![ImageEntry {
                digest: [1; 32],
                end: 6,
                n_vectors: 3,
            }],
            whole: whole.to_vec(),
        }
    }

    #[test]
    fn a_log_keeps_the_runs_of_images_with_and_without_vectors() {
        // The second run is of an image with vectors, of which the log has nothing else.
        let logged = entry([3..6, 8..9]);
        let request = with_images(request(), &logged).expect("a valid entry");
        assert!(logged.has_whole());
        assert_eq!(ImagesEntry::of(&request), logged);
        assert!(!ImagesEntry::from(logged.listed).has_whole());
    }

    #[test]
    fn invalid_runs_are_refused() {
        for whole in [[3..6, 5..7], [4..4, 7..8], [3..6, 8..11]] {
            let error = with_images(request(), &entry(whole)).expect_err("invalid runs");
            assert!(error.contains("runs must be in order"), "{error}");
        }
    }
}
