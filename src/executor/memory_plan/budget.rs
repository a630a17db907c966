//! The memory budget: a device's free memory, the weights, and the reserve.

/// The device whose memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The host's memory, of which other programs need a share.
    Host,
    /// The memory of the GPU with this number, without a share for other programs.
    Gpu(usize),
}

/// The memory of a device, and the parts that are taken before the KV pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBudget {
    /// The device.
    pub place: Place,
    /// Free before the weights are loaded, in bytes.
    pub free_before_bytes: u64,
    /// The part of it that loading the weights takes, in bytes.
    pub weights_bytes: u64,
    /// The memory that stays free of weights and KV pool, in bytes; see
    /// [`reserve_bytes`](super::reserve_bytes).
    pub reserve_bytes: u64,
    /// Part of the reserve: the page table on the device, in bytes. 0 where the host keeps it.
    pub page_table_bytes: u64,
    /// Part of the reserve: buffers of the KV store, in bytes. 0 without one.
    pub store_bytes: u64,
    /// Requests that the reserve has page tables and activations for; `u32::MAX` where none are reserved by their number.
    pub max_rows: u32,
}
