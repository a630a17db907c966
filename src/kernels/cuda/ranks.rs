//! The collectives of CUDA ranks: the link of each rank, and the group, by which any thread ends them on all ranks.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use super::driver::{Device, DevicePtr, Stream};
use super::nccl::{Aborter, Communicator, GroupId, NcclError, Values};
use super::params::ElementType;
use crate::cpu::ranks::{Moment, RankLink, RanksLost};
use crate::shard::Rank;

/// The collectives of all ranks that were loaded together. Once they have ended, the ranks must be loaded again.
#[derive(Default)]
pub struct CollectiveGroup {
    members: Mutex<Vec<Member>>,
    calls: Mutex<CallLog>,
    end: OnceLock<End>,
}

/// The calls that some ranks have made and others have not, in order. NCCL compares no calls: ranks whose calls differ
/// would wait for each other, or add up unrelated values. Calls captured in a CUDA graph
/// are compared at the capture only.
#[derive(Default)]
struct CallLog {
    /// The number of calls that all ranks have made.
    n_complete: u64,
    pending: VecDeque<Pending>,
}

struct Pending {
    call: Call,
    /// The first rank that made it.
    by: Rank,
    n_ranks: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Sum { values: usize },
    Gather { values: usize },
}

impl CallLog {
    /// Takes note of a rank's call, the `number`-th.
    ///
    /// # Errors
    /// If another rank has made another call: names both.
    fn note(&mut self, rank: Rank, number: u64, call: Call) -> Result<(), String> {
        let index = (number - self.n_complete) as usize;
        match self.pending.get_mut(index) {
            Some(first) if first.call != call => {
                return Err(format!(
                    "rank {} calls {call:?} as collective {number}, rank {} calls {:?}",
                    rank.index(),
                    first.by.index(),
                    first.call
                ));
            }
            Some(first) => first.n_ranks += 1,
            None => self.pending.push_back(Pending {
                call,
                by: rank,
                n_ranks: 1,
            }),
        }
        let is_complete = |first: &Pending| first.n_ranks == rank.count();
        while self.pending.front().is_some_and(is_complete) {
            self.pending.pop_front();
            self.n_complete += 1;
        }
        Ok(())
    }
}

struct Member {
    communicator: Weak<Communicator>,
    aborter: Aborter,
}

struct End {
    /// The rank that ended the collectives; `None` for the ranks' leader.
    by: Option<Rank>,
    reason: String,
}

impl CollectiveGroup {
    /// Ends the collectives of all ranks: running collectives return without a valid result, so that the streams
    /// continue. An earlier reason stays.
    pub fn end_by(&self, by: Option<Rank>, reason: &str) {
        let reason = reason.to_owned();
        let _ = self.end.set(End { by, reason });
        let members = self.members();
        members.iter().for_each(|member| member.aborter.abort());
    }

    /// Why the collectives have ended.
    pub fn reason(&self) -> Option<&str> {
        self.end.get().map(|end| end.reason.as_str())
    }

    /// As [`Self::reason`], if not `rank` itself has ended them.
    pub fn reason_of_others(&self, rank: Rank) -> Option<&str> {
        let end = self.end.get().filter(|end| end.by != Some(rank));
        end.map(|end| end.reason.as_str())
    }

    /// A failure that NCCL has noticed on a rank, unless the collectives have ended. Does not wait.
    pub fn failure(&self) -> Option<String> {
        let communicators: Vec<Arc<Communicator>> = {
            let members = self.members();
            let open = members.iter();
            open.filter_map(|member| member.communicator.upgrade())
                .collect()
        };
        let mut checks = communicators.iter().map(|open| open.check());
        let failure = checks.find_map(Result::err)?;
        self.end.get().is_none().then(|| failure.to_string())
    }

    fn add(&self, communicator: &Arc<Communicator>) {
        let aborter = communicator.aborter();
        let mut members = self.members();
        // An end that is set later finds the member.
        if self.end.get().is_some() {
            aborter.abort();
        }
        members.push(Member {
            communicator: Arc::downgrade(communicator),
            aborter,
        });
    }

    fn calls(&self) -> MutexGuard<'_, CallLog> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn members(&self) -> MutexGuard<'_, Vec<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a rank cannot connect to the others.
#[derive(Debug, thiserror::Error)]
pub enum LinkFailure {
    #[error(transparent)]
    Nccl(#[from] NcclError),
    #[error(transparent)]
    Others(#[from] RanksLost),
}

/// A rank's access to the collectives.
pub struct CudaLink {
    communicator: Arc<Communicator>,
    group: Arc<CollectiveGroup>,
    host: RankLink,
    n_calls: Cell<u64>,
}

impl CudaLink {
    /// Connects the rank of `host` to the others, which do the same on their threads. Calls `on_all_ready` before NCCL,
    /// which has no limit of time.
    ///
    /// # Errors
    /// If another rank does not come, or NCCL fails.
    pub fn connect(
        device: &Device,
        (id, group): (GroupId, Arc<CollectiveGroup>),
        mut host: RankLink,
        on_all_ready: impl FnOnce(),
    ) -> Result<Self, LinkFailure> {
        host.barrier()?;
        on_all_ready();
        let connected = Communicator::connect(device, id, host.rank());
        let communicator = connected.inspect_err(|error| host.fail(&error.to_string()))?;
        let communicator = Arc::new(communicator);
        group.add(&communicator);
        // From here on the drop of the link ends the collectives.
        let mut link = Self {
            communicator,
            group,
            host,
            n_calls: Cell::new(0),
        };
        link.host.barrier()?;
        Ok(link)
    }

    pub fn rank(&self) -> Rank {
        self.host.rank()
    }

    /// See [`RankLink::inject_fault`].
    pub fn inject_fault(&self, moment: Moment) {
        self.host.inject_fault(moment);
    }

    /// Ends the collectives of all ranks, with the reason.
    pub fn fail(&self, reason: &str) {
        self.group.end_by(Some(self.rank()), reason);
    }

    /// Calls [`Self::fail`], because this rank no longer uses the link.
    pub fn end(&self) {
        self.fail(&format!("rank {} has stopped", self.rank().index()));
    }

    /// See [`CollectiveGroup::reason_of_others`].
    pub fn ended_by_others(&self) -> Option<&str> {
        self.group.reason_of_others(self.rank())
    }

    fn begin(&self, name: &'static str, call: Call) -> Result<(), NcclError> {
        self.inject_fault(Moment::Collective);
        let number = self.n_calls.get();
        self.n_calls.set(number + 1);
        let noted = self.group.calls().note(self.rank(), number, call);
        noted.map_err(|text| NcclError::Invalid { call: name, text })
    }

    /// Enqueues the sum of all ranks' `len` values in place of the values.
    ///
    /// # Safety
    /// As for [`Communicator::all_reduce`].
    ///
    /// # Errors
    /// As for [`Communicator::all_reduce`], and if another rank calls another collective.
    pub unsafe fn sum(
        &self,
        stream: &Stream,
        values: DevicePtr<f32>,
        len: usize,
    ) -> Result<(), NcclError> {
        self.begin("ncclAllReduce", Call::Sum { values: len })?;
        let (values, to) = (f32_values(values, len), values.cast());
        // SAFETY: guaranteed by the caller.
        unsafe { self.communicator.all_reduce(stream, values, to) }
    }

    /// Enqueues a copy of all ranks' `len` values to `to`, in rank order.
    ///
    /// # Safety
    /// As for [`Communicator::all_gather`].
    ///
    /// # Errors
    /// As for [`Self::sum`].
    pub unsafe fn gather(
        &self,
        stream: &Stream,
        (part, len): (DevicePtr<f32>, usize),
        to: DevicePtr<f32>,
    ) -> Result<(), NcclError> {
        self.begin("ncclAllGather", Call::Gather { values: len })?;
        let part = f32_values(part, len);
        // SAFETY: guaranteed by the caller.
        unsafe { self.communicator.all_gather(stream, part, to.cast()) }
    }
}

fn f32_values(start: DevicePtr<f32>, len: usize) -> Values {
    Values {
        start: start.cast(),
        element: ElementType::F32,
        len,
    }
}

impl Drop for CudaLink {
    /// Ends the collectives of all ranks: NCCL would otherwise wait for collectives that the others do not reach.
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_compared_in_the_order_of_each_rank() {
        let (sum, other) = (Call::Sum { values: 4 }, Call::Sum { values: 3 });
        let gather = Call::Gather { values: 4 };
        let ranks: Vec<Rank> = Rank::all(3).collect();
        let mut log = CallLog::default();
        let mut note = |rank: usize, number, call| log.note(ranks[rank], number, call);
        for (rank, number, call) in [
            (1, 0, sum),
            (1, 1, gather),
            (0, 0, sum),
            (2, 0, sum),
            (2, 1, gather),
            (2, 2, sum),
            (0, 1, gather),
        ] {
            assert_eq!(note(rank, number, call), Ok(()));
        }
        let differ = note(0, 2, other).expect_err("it has fewer values");
        assert_eq!(
            differ,
            "rank 0 calls Sum { values: 3 } as collective 2, rank 2 calls Sum { values: 4 }"
        );
        assert!(note(1, 2, gather).is_err());
        assert_eq!((log.n_complete, log.pending.len()), (2, 1));
    }
}
