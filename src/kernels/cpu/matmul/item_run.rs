//! Position of an expert matrix's items among the items of all experts.

#[derive(Clone, Copy)]
pub struct ItemRun {
    pub(super) first_item: usize,
    pub(super) active: usize,
    pub(super) section: usize,
}
