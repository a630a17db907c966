//! Rotary positions of a step's tokens, for models with M-RoPE.
//!
//! Text has one M-RoPE position per token, so that a list of positions is enough for decodes, and CUDA graphs read it
//! from a buffer. An image's vectors have three (time, row, column).

use std::ops::Range;

use crate::cuda::list_buffer::{ListBuffer, Section};
use souffleur_kernels::cuda::backend::GridToken;
use souffleur_state::prompt_images::PromptImages;

/// Lists the first number of each token, for the positions of each row and its images, and zeros up to `padded` tokens.
/// Adds the tokens whose numbers differ to `grid_tokens`.
pub(super) fn list_positions<'a>(
    works: impl Iterator<Item = (Range<u32>, Option<&'a PromptImages>)>,
    padded: usize,
    (lists, grid_tokens): (&mut ListBuffer, &mut Vec<GridToken>),
) -> Section<u32> {
    let first_word = lists.begin();
    let mut token = 0;
    for (indices, images) in works {
        for index in indices {
            let position = images.map_or([index; 3], |images| images.rotary_position(index));
            lists.extend([position[0]]);
            if position != [position[0]; 3] {
                grid_tokens.push(GridToken { token, position });
            }
            token += 1;
        }
    }
    let padding = padded.saturating_sub(token as usize);
    lists.extend(std::iter::repeat_n(0, padding));
    lists.end(first_word)
}

#[cfg(test)]
mod tests {
    use souffleur_state::prompt_images::{ImageDigest, ImageGrid, PromptImage};

    use super::*;

    /// Two tokens, an image of two rows of three vectors, and four tokens.
    fn images() -> PromptImages {
        let image = PromptImage {
            positions: 2..8,
            pad: 9,
            digest: ImageDigest([0; 32]),
            grid: ImageGrid {
                rows: 2,
                columns: 3,
            },
            vectors: None,
            input: None,
        };
        let tokens = [5, 5, 9, 9, 9, 9, 9, 9, 5, 5, 5, 5];
        PromptImages::new(&tokens, &[image]).expect("a valid image")
    }

    #[test]
    fn text_after_an_image_has_earlier_positions_and_vectors_have_three() {
        let images = images();
        let (mut lists, mut grid_tokens) = (ListBuffer::default(), Vec::new());
        // A decode after the image, a prompt without images, and a part of the prompt with the image.
        let works = [
            (20..21, Some(&images)),
            (0..3, None),
            (1..10, Some(&images)),
        ];
        let list = list_positions(works.into_iter(), 0, (&mut lists, &mut grid_tokens));
        let words = &lists.words()[list.words()];
        assert_eq!(words, [17, 0, 1, 2, 1, 2, 2, 2, 2, 2, 2, 5, 6]);
        let at = |token, row, column| GridToken {
            token,
            position: [2, row, column],
        };
        let expected = [
            at(6, 2, 3),
            at(7, 2, 4),
            at(8, 3, 2),
            at(9, 3, 3),
            at(10, 3, 4),
        ];
        assert_eq!(grid_tokens, expected);
    }

    #[test]
    fn decodes_are_padded_to_the_size_of_their_graph() {
        let images = images();
        let (mut lists, mut grid_tokens) = (ListBuffer::default(), Vec::new());
        let works = [(12..13, Some(&images)), (30..31, None)];
        let list = list_positions(works.into_iter(), 4, (&mut lists, &mut grid_tokens));
        assert_eq!(&lists.words()[list.words()], [9, 30, 0, 0]);
        assert!(grid_tokens.is_empty());
    }
}
