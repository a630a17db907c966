//! Loads a model on several CUDA ranks, each on a GPU of its own.
//!
//! The ranks' threads load the weights, meet, connect to each other with NCCL, and record the graphs, which contain the
//! collectives.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{CudaExecutor, CudaOptions, open};
use crate::cpu::{HostSizes, HostTower, TowerFiles};
use crate::host::BlockPort;
use crate::ranks::{
    Collectives, Exchange, GroupParts, LoadFailure, MakeRank, RankExecutor, RankPort, Ranks,
    RanksStore, Reporter,
};
use souffleur_base::error::LoadError;
use souffleur_kernels::cpu::ranks::{GroupRules, Moment, RankLink};
use souffleur_kernels::cuda::driver::Device;
use souffleur_kernels::cuda::nccl::GroupId;
use souffleur_kernels::cuda::pack::Modules;
use souffleur_kernels::cuda::ranks::{CollectiveGroup, CudaLink, LinkFailure};
use souffleur_model::loader::LoadProgress;

/// Loads the kernels of a GPU.
pub type LoadModules = fn(&Device) -> Result<Modules, LoadError>;

/// Loads the kernels that the engine has for a GPU.
///
/// # Errors
/// If no place has the kernels.
pub fn load_modules(device: &Device) -> Result<Modules, LoadError> {
    Modules::load(device).map_err(|error| LoadError::Device(error.to_string()))
}

/// Loads a model on the ranks of a group, each on one of the devices, in rank order. With a KV store of blocks of that
/// number of tokens, a block has the parts of all ranks. `rules` has the longest time of a part of a step, too. Rank 0's
/// thread runs the vision tower.
///
/// # Errors
/// Those of [`CudaExecutor::load`], of [`CudaExecutor::with_store`] and of [`HostTower::load`], if NCCL cannot be used,
/// and if the ranks cannot share the model: the text names `tp_size`.
///
/// # Panics
/// If there are no ranks, or not as many devices.
pub fn load_ranks(
    (devices, modules): (Vec<Device>, LoadModules),
    dir: &Path,
    options: &CudaOptions,
    rules: &GroupRules,
    store: Option<(usize, Box<dyn BlockPort>)>,
    mut tower: Option<(TowerFiles, HostSizes)>,
    progress: LoadProgress<'_>,
) -> Result<Ranks, LoadError> {
    assert_eq!(devices.len(), rules.count, "a rank must have a GPU");
    let id = GroupId::new().map_err(|error| LoadError::Device(error.to_string()))?;
    let group = Arc::new(CollectiveGroup::default());
    let store = store.map(|store| RanksStore::new(store, rules.count, false));
    let maker = |(device, host): (Device, RankLink)| -> MakeRank {
        let index = host.rank().index();
        let seat = Seat {
            device,
            modules,
            dir: dir.to_owned(),
            options: options.clone(),
            id,
            group: group.clone(),
            store: store.as_ref().map(|store| store.of_rank(index)),
            // Rank 0 is the first.
            tower: tower.take(),
        };
        Box::new(move |reporter| Ok(Box::new(seat.load(host, reporter)?)))
    };
    let links = RankLink::group(rules);
    let makers = devices.into_iter().zip(links).map(maker).collect();
    let parts = GroupParts {
        makers,
        limit: rules.limit,
        collectives: Some(group),
        store,
    };
    Ranks::load(parts, progress)
}

/// What a rank's thread loads, and where.
struct Seat {
    device: Device,
    modules: LoadModules,
    dir: PathBuf,
    options: CudaOptions,
    id: GroupId,
    group: Arc<CollectiveGroup>,
    store: Option<(Exchange, usize)>,
    tower: Option<(TowerFiles, HostSizes)>,
}

impl Seat {
    fn load(self, host: RankLink, reporter: &Reporter) -> Result<CudaExecutor, LoadFailure> {
        let (rank, group) = (host.rank(), self.group.clone());
        let loaded = self.load_part(host, reporter);
        loaded.map_err(|failure| match group.reason_of_others(rank) {
            Some(reason) => LoadFailure::Others(reason.to_owned()),
            None => failure,
        })
    }

    fn load_part(self, host: RankLink, reporter: &Reporter) -> Result<CudaExecutor, LoadFailure> {
        let rank = host.rank();
        host.inject_fault(Moment::Load);
        let modules = (self.modules)(&self.device)?;
        let part = open(&self.dir, &self.options)?.of_rank(rank, None);
        let part = part.map_err(|error| LoadError::Device(error.to_string()))?;
        let hidden_size = part.config.hidden_size;
        let widths = (hidden_size, part.config.images().vector_width(hidden_size));
        let tower = self
            .tower
            .map(|(files, sizes)| HostTower::load(&files, widths, sizes));
        let tower = tower.transpose()?;
        let group = (self.id, self.group);
        let join = |device: &Device| {
            let linked = CudaLink::connect(device, group, host, || reporter.connects());
            linked.map(Some).map_err(|failure| match failure {
                LinkFailure::Nccl(error) => LoadFailure::Own(LoadError::Device(error.to_string())),
                LinkFailure::Others(lost) => LoadFailure::Others(lost.to_string()),
            })
        };
        let mut report = |done, total| reporter.progress(done, total);
        let place = (self.device, &modules);
        let loaded =
            CudaExecutor::of_checkpoint(place, (&part, rank), &self.options, join, &mut report);
        let mut executor = loaded?;
        if let Some(tower) = tower {
            executor = executor.with_tower(tower);
        }
        let Some(store) = self.store else {
            return Ok(executor);
        };
        let block_tokens = store.1;
        let port = RankPort::new(&part.kv_layout(), store)?;
        Ok(executor.with_store(block_tokens, Box::new(port))?)
    }
}

impl Collectives for CollectiveGroup {
    fn failure(&self) -> Option<String> {
        CollectiveGroup::failure(self)
    }

    fn end(&self, reason: &str) {
        self.end_by(None, reason);
    }

    fn ended(&self) -> Option<String> {
        self.reason().map(str::to_owned)
    }
}

impl RankExecutor for CudaExecutor {
    fn fail_ranks(&self, reason: &str) {
        self.backend.fail_ranks(reason);
    }

    fn ended_by_others(&self) -> Option<String> {
        self.backend.ended_by_others().map(str::to_owned)
    }
}
