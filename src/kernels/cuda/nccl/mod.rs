//! Collectives of ranks on several GPUs, with NCCL.
//!
//! NCCL takes 300 MB and is not part of the driver: it is opened at first use, and every use is refused by name without
//! it. All ranks are threads of this process. A collective is an operation of a stream, and part of a graph if the
//! stream is captured; it ends when all ranks have reached it, or when its communicator is aborted.
//!
//! The order in which NCCL adds up the ranks' values depends on its algorithm, and so on the number of ranks and values,
//! on the GPUs and on their links.

mod communicator;
mod error;
mod library;
mod shared;

pub use communicator::{Communicator, GroupId, Values};
pub use error::{NcclError, NcclUnavailable, NcclVersion};
pub use library::installed;
pub use shared::Aborter;
