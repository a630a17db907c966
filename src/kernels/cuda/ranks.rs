//! The collectives of CUDA ranks: the link of each rank, and the group, by which any thread ends them on all ranks.

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
    end: OnceLock<End>,
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
    /// Ends the collectives of all ranks: their streams pass the collectives that run. An earlier reason stays.
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
        };
        link.host.barrier()?;
        Ok(link)
    }

    pub fn rank(&self) -> Rank {
        self.host.rank()
    }

    /// See [`GroupRules::strike`](crate::cpu::ranks::GroupRules::strike).
    pub fn strike(&self, moment: Moment) {
        self.host.strike(moment);
    }

    /// Ends the collectives of all ranks, with the reason.
    pub fn fail(&self, reason: &str) {
        self.group.end_by(Some(self.rank()), reason);
    }

    /// As [`Self::fail`], as the rank uses the link no more.
    pub fn end(&self) {
        self.fail(&format!("rank {} has ended", self.rank().index()));
    }

    /// See [`CollectiveGroup::reason_of_others`].
    pub fn ended_by_others(&self) -> Option<&str> {
        self.group.reason_of_others(self.rank())
    }

    /// Enqueues the sum of all ranks' `len` values in place of the values.
    ///
    /// # Safety
    /// As for [`Communicator::all_reduce`].
    pub unsafe fn sum(
        &self,
        stream: &Stream,
        values: DevicePtr<f32>,
        len: usize,
    ) -> Result<(), NcclError> {
        self.strike(Moment::Collective);
        let (values, to) = (f32_values(values, len), values.cast());
        // SAFETY: guaranteed by the caller.
        unsafe { self.communicator.all_reduce(stream, values, to) }
    }

    /// Enqueues a copy of all ranks' `len` values to `to`, in rank order.
    ///
    /// # Safety
    /// As for [`Communicator::all_gather`].
    pub unsafe fn gather(
        &self,
        stream: &Stream,
        (part, len): (DevicePtr<f32>, usize),
        to: DevicePtr<f32>,
    ) -> Result<(), NcclError> {
        self.strike(Moment::Collective);
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
