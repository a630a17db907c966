//! A rank's end of a group: its connection and its collectives.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::sync::Arc;

use cudarc::nccl::sys::{cudaStream_t, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclUniqueId};

use super::error::NcclError;
use super::library;
use super::shared::{Aborter, Shared};
use crate::cuda::driver::{Device, DevicePtr, Stream};
use crate::cuda::params::ElementType;
use crate::shard::Rank;

const SUCCESS: c_int = 0;
/// No failure so far.
const IN_PROGRESS: c_int = 7;

/// The name of a group of ranks, by which they find each other. One rank makes it, all connect with it.
#[derive(Clone, Copy)]
pub struct GroupId(ncclUniqueId);

impl GroupId {
    /// # Errors
    /// If NCCL cannot be used, or finds no network interface.
    pub fn new() -> Result<Self, NcclError> {
        let nccl = library::open()?;
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: `id` outlives the call.
        let code = unsafe { (nccl.functions.unique_id)(&mut id) };
        nccl.check(("ncclGetUniqueId", 0), code, std::ptr::null_mut())?;
        Ok(Self(id))
    }
}

/// Elements in device memory, contiguous.
#[derive(Clone, Copy, Debug)]
pub struct Values {
    pub start: DevicePtr<u8>,
    pub element: ElementType,
    /// In elements.
    pub len: usize,
}

impl Values {
    fn of_nccl(self) -> ncclDataType_t {
        match self.element {
            ElementType::F32 => ncclDataType_t::ncclFloat32,
            ElementType::Bf16 => ncclDataType_t::ncclBfloat16,
        }
    }
}

/// A rank's end of a group. All ranks must call the same collectives in the same order.
///
/// The graphs with its collectives must be dropped first: NCCL waits for them. Dropping it waits for the GPU, so that
/// before, all ranks must have reached this rank's collectives, unless the communicator was aborted or a call failed.
pub struct Communicator {
    shared: Arc<Shared>,
    rank: Rank,
}

impl Communicator {
    /// Waits until all ranks of the group connect, each on its own thread and GPU. Allocates device memory.
    ///
    /// There is no limit of time: call it when all ranks are known to be ready. Let all ranks have returned from it
    /// before one calls a collective, which would wait while another rank allocates.
    ///
    /// # Errors
    /// If NCCL cannot be used, or the ranks cannot connect, for example because two of them have one GPU.
    pub fn connect(device: &Device, id: GroupId, rank: Rank) -> Result<Self, NcclError> {
        const CALL: &str = "ncclCommInitRank";
        let nccl = library::open()?;
        let number = |n: usize| {
            c_int::try_from(n).map_err(|_| NcclError::Invalid {
                call: CALL,
                text: format!("rank {} of {} is too large", rank.index(), rank.count()),
            })
        };
        let (index, count) = (number(rank.index())?, number(rank.count())?);
        device.bind()?;
        let mut raw: ncclComm_t = std::ptr::null_mut();
        // NCCL uses the current context. SAFETY: `raw` outlives the call.
        let code = unsafe { (nccl.functions.init_rank)(&mut raw, count, id.0, index) };
        nccl.check((CALL, rank.index()), code, std::ptr::null_mut())?;
        let shared = Shared::new(nccl, device.clone(), rank.index(), raw);
        Ok(Self {
            shared: Arc::new(shared),
            rank,
        })
    }

    pub fn rank(&self) -> Rank {
        self.rank
    }

    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    pub fn aborter(&self) -> Aborter {
        Aborter::new(&self.shared)
    }

    /// Enqueues the sum of all ranks' `values`, each rank's into its `to`; in place if `to` is their start.
    ///
    /// # Safety
    /// Both are memory of this device, `to` as long as `values`, equal or apart, and live until `stream` has passed this
    /// point, or as long as the graph. Other streams use them only in order.
    ///
    /// # Errors
    /// NCCL's error, or that the communicator was aborted; the other ranks then wait until they are aborted.
    pub unsafe fn all_reduce(
        &self,
        stream: &Stream,
        values: Values,
        to: DevicePtr<u8>,
    ) -> Result<(), NcclError> {
        let all_reduce = self.shared.nccl.functions.all_reduce;
        let (from, to) = (const_pointer(values.start), mut_pointer(to));
        let (len, element, sum) = (values.len, values.of_nccl(), ncclRedOp_t::ncclSum);
        // SAFETY: guaranteed by the caller.
        self.enqueue("ncclAllReduce", stream, |raw, stream| unsafe {
            all_reduce(from, to, len, element, sum, raw, stream)
        })
    }

    /// Enqueues a copy of all ranks' parts to each rank's `to`: that of rank r begins at element `r * part.len`.
    ///
    /// # Safety
    /// As for [`Self::all_reduce`], with `to` as long as all parts; `part` may be its place in `to`.
    ///
    /// # Errors
    /// As for [`Self::all_reduce`].
    pub unsafe fn all_gather(
        &self,
        stream: &Stream,
        part: Values,
        to: DevicePtr<u8>,
    ) -> Result<(), NcclError> {
        let all_gather = self.shared.nccl.functions.all_gather;
        let (from, to) = (const_pointer(part.start), mut_pointer(to));
        let (len, element) = (part.len, part.of_nccl());
        // SAFETY: guaranteed by the caller.
        self.enqueue("ncclAllGather", stream, |raw, stream| unsafe {
            all_gather(from, to, len, element, raw, stream)
        })
    }

    /// Enqueues a copy of rank `root`'s values to the others' `values`.
    ///
    /// # Safety
    /// As for [`Self::all_reduce`].
    ///
    /// # Errors
    /// As for [`Self::all_reduce`].
    pub unsafe fn broadcast(
        &self,
        stream: &Stream,
        values: Values,
        root: usize,
    ) -> Result<(), NcclError> {
        let broadcast = self.shared.nccl.functions.broadcast;
        let (from, to) = (const_pointer(values.start), mut_pointer(values.start));
        let (len, element) = (values.len, values.of_nccl());
        let root = c_int::try_from(root).unwrap_or(c_int::MAX);
        // SAFETY: guaranteed by the caller. NCCL refuses a root that does not exist.
        self.enqueue("ncclBroadcast", stream, |raw, stream| unsafe {
            broadcast(from, to, len, element, root, raw, stream)
        })
    }

    fn enqueue(
        &self,
        call: &'static str,
        stream: &Stream,
        function: impl FnOnce(ncclComm_t, cudaStream_t) -> c_int,
    ) -> Result<(), NcclError> {
        let (own, other) = (self.device().info(), stream.device().info());
        if own.ordinal != other.ordinal {
            let text = format!(
                "rank {} is on GPU {}, the stream is on GPU {}",
                self.rank.index(),
                own.ordinal,
                other.ordinal
            );
            return Err(NcclError::Invalid { call, text });
        }
        self.device().bind()?;
        let stream: cudaStream_t = stream.raw().cast();
        self.shared.call(call, |raw| function(raw, stream))
    }

    /// Checks whether NCCL has noticed a failure of collectives since they were enqueued. Does not wait.
    ///
    /// # Errors
    /// The failure: the collectives of all ranks must be aborted. Or that the communicator was aborted.
    pub fn check(&self) -> Result<(), NcclError> {
        let async_error = self.shared.nccl.functions.async_error;
        let check = |raw| {
            let mut failure: c_int = 0;
            // SAFETY: `failure` outlives the call, and has the size of the enum.
            let status = unsafe { async_error(raw, (&raw mut failure).cast()) };
            match (status, failure) {
                (SUCCESS, IN_PROGRESS) => SUCCESS,
                (SUCCESS, failure) => failure,
                (status, _) => status,
            }
        };
        self.shared.call("ncclCommGetAsyncError", check)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.shared.end();
    }
}

fn const_pointer(start: DevicePtr<u8>) -> *const c_void {
    mut_pointer(start).cast_const()
}

fn mut_pointer(start: DevicePtr<u8>) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(start.address() as usize)
}

impl fmt::Debug for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GroupId")
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (index, count) = (self.rank.index(), self.rank.count());
        write!(f, "Communicator(rank {index} of {count})")
    }
}
