//! The memory budget: a device's free memory, the weights, and the reserve.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The host's memory, of which other programs need a share.
    Host,
    /// The memory of the GPU with this number, without a share for other programs.
    Gpu(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBudget {
    pub place: Place,
    /// Free before the weights are loaded, in bytes.
    pub free_before_bytes: u64,
    /// The part of it that loading the weights takes, in bytes.
    pub weights_bytes: u64,
    /// The memory that stays free of weights and KV pool, in bytes; see [`reserve_bytes`](super::reserve_bytes).
    pub reserve_bytes: u64,
    /// Part of the reserve: the page table on the device, in bytes. 0 where the host keeps it.
    pub page_table_bytes: u64,
    /// Part of the reserve: buffers of the KV store, in bytes. 0 without one.
    pub store_bytes: u64,
    /// Requests that the reserve has page tables and activations for; `u32::MAX` if it is independent of them.
    pub max_rows: u32,
}
