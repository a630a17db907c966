//! Errors of images that a tower cannot encode.

/// The text names the value, the limit and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TowerError {
    #[error(
        "an image of {h} x {w} patches is not whole blocks of {merge} x {merge}: scale it as the model's image processor \
         does"
    )]
    NotBlocks { h: usize, w: usize, merge: usize },
    #[error(
        "an image of {h} x {w} patches is not the {side} x {side} of this model: scale it to that size"
    )]
    WrongGrid { h: usize, w: usize, side: usize },
    #[error("an image of {h} x {w} patches is too large, the limit is {limit}: scale it down")]
    TooLarge {
        h: usize,
        w: usize,
        /// In words, such as `65536 patches`.
        limit: String,
    },
    #[error(
        "an image has {got} values, its patches have {expected}: use the image processor of this model"
    )]
    WrongValues { got: usize, expected: usize },
}
