//! Where the items of an expert's matrix begin among those of all experts.

/// Items of a matrix of an expert, from the first one on.
#[derive(Clone, Copy)]
pub struct ItemRun {
    pub(super) first_item: usize,
    /// Which of the active experts.
    pub(super) active: usize,
    /// Which matrix of its stack.
    pub(super) section: usize,
}
