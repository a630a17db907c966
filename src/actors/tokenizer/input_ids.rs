//! The token ids of a prompt's log probabilities: the executor returns keys at the positions of images, which no
//! vocabulary has.

use souffleur_state::prompt_images::PromptImages;
use souffleur_state::sampling::TokenLogprobs;
use souffleur_state::scheduler::submission::Submission;

/// Puts true ids in place of keys.
pub(super) struct InputIds {
    /// `None` for a prompt without images, or whose log probabilities are not wanted.
    images: Option<PromptImages>,
    /// The position of the next log probability.
    next: u32,
}

impl InputIds {
    pub(super) fn of(submission: &Submission) -> Self {
        let wish = submission.logprobs.as_ref();
        let start = wish.and_then(|wish| wish.start);
        let images = submission.images.as_ref().filter(|_| start.is_some());
        Self::new(start, images.map(|images| images.without_vectors()))
    }

    fn new(start: Option<u32>, images: Option<PromptImages>) -> Self {
        Self {
            images,
            next: start.unwrap_or(0),
        }
    }

    /// Takes the log probabilities of the next positions.
    pub(super) fn put_into(&mut self, read: &mut [TokenLogprobs]) {
        for (position, one) in (self.next..).zip(read.iter_mut()) {
            let images = self.images.as_ref();
            if let Some(id) = images.and_then(|images| images.id_at(position)) {
                one.token = id;
            }
        }
        self.next += read.len() as u32;
    }
}

#[cfg(test)]
mod tests {
    use souffleur_request::{ImageDigest, ImageGrid, PromptImage};
    use souffleur_state::prompt_images::KEY_BIT;

    use super::*;

    /// The ids that parts of these lengths get, of a prompt whose first position is `start`.
    fn ids(start: u32, images: Option<PromptImages>, parts: &[usize]) -> Vec<u32> {
        let mut ids = InputIds::new(Some(start), images);
        let parts = parts.iter().map(|len| {
            let key = TokenLogprobs {
                token: KEY_BIT,
                ..TokenLogprobs::default()
            };
            let mut part = vec![key; *len];
            ids.put_into(&mut part);
            part
        });
        let parts: Vec<Vec<TokenLogprobs>> = parts.collect();
        parts.into_iter().flatten().map(|one| one.token).collect()
    }

    #[test]
    fn keys_are_replaced_by_the_ids_at_their_positions() {
        let image = PromptImage {
            positions: 1..5,
            pad: 9,
            digest: ImageDigest([1; 32]),
            grid: ImageGrid {
                rows: 1,
                columns: 2,
            },
            vectors: None,
            input: None,
        };
        let images = PromptImages::new(&[5, 6, 9, 9, 7, 5], &[image]).expect("valid images");
        let expected = [KEY_BIT, 6, 9, 9, 7, KEY_BIT];
        for parts in [&[6][..], &[1, 0, 2, 3], &[3, 3]] {
            assert_eq!(ids(0, Some(images.clone()), parts), expected);
        }
        assert_eq!(ids(3, Some(images), &[1, 2]), expected[3..]);
        assert_eq!(ids(0, None, &[2]), [KEY_BIT; 2]);
    }
}
