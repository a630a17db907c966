//! The picture of the prefix tree: a mirror of its nodes, folded to the largest ones, and the differences of pictures.
//!
//! Pure code: the same notes give the same picture.

pub(super) mod mirror;
pub(super) mod names;
pub(super) mod picture;
#[cfg(test)]
mod tests;
