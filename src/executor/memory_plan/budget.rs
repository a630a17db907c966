//! The memory budget: a device's free memory, the weights, and the reserve.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Host memory, part of which other programs need.
    Host,
    /// The memory of the GPU with this number; other programs need no share of it.
    Gpu(usize),
}

/// The memory of images, in bytes; 0 without a vision tower. If the text model is on a GPU, it is memory of the host, and
/// not part of the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VisionBytes {
    /// Weights of the tower, included in the model's weights.
    pub tower: u64,
    /// Activations of the image that is being encoded, and vectors of images; included in the reserve.
    pub images: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBudget {
    pub place: Place,
    /// Free before the weights are loaded, in bytes.
    pub free_before_bytes: u64,
    /// Memory that the weights take, in bytes.
    pub weights_bytes: u64,
    /// Memory that weights and KV pool leave free, in bytes; see [`reserve_bytes`](super::reserve_bytes).
    pub reserve_bytes: u64,
    /// Part of the reserve: the page table on the device, in bytes. 0 where the host keeps it.
    pub page_table_bytes: u64,
    /// Part of the reserve: buffers of the KV store, in bytes. 0 without a store.
    pub store_bytes: u64,
    /// Parts of the weights and of the reserve.
    pub vision: VisionBytes,
    /// Requests whose page tables and activations fit in the reserve; `u32::MAX` if it does not depend on their number.
    pub max_rows: u32,
}
