//! Loads a model on several CPU ranks.

use std::path::Path;

use super::{CpuExecutor, CpuOptions, TowerFiles};
use crate::host::BlockPort;
use crate::ranks::{
    Exchange, GroupParts, LoadFailure, MakeRank, RankExecutor, RankPort, Ranks, RanksStore,
};
use souffleur_base::error::LoadError;
use souffleur_kernels::cpu::Numa;
use souffleur_kernels::cpu::ranks::{GroupRules, Moment, RankLink};
use souffleur_kernels::shard::Rank;
use souffleur_model::loader::{Checkpoint, LoadProgress};

/// Loads a model on the ranks of a group, each with the threads of `options`, on one NUMA node unless `numa` is off.
/// With a KV store of blocks of that number of tokens, a block has the parts of all ranks. Rank 0 runs the vision tower.
///
/// # Errors
/// Those of [`CpuExecutor::load`], of [`CpuExecutor::with_store`] and of [`CpuExecutor::load_tower`], and if the ranks
/// cannot share the model: the text names `tp_size`.
///
/// # Panics
/// If there are no ranks.
pub fn load_ranks(
    dir: &Path,
    options: &CpuOptions,
    rules: &GroupRules,
    store: Option<(usize, Box<dyn BlockPort>)>,
    mut tower: Option<TowerFiles>,
    progress: LoadProgress<'_>,
) -> Result<Ranks, LoadError> {
    let store = store.map(|store| RanksStore::new(store, rules.count, true));
    let maker = |link: RankLink| -> MakeRank {
        let index = link.rank().index();
        let exchange = store.as_ref().map(|store| store.of_rank(index));
        let (dir, options) = (dir.to_owned(), of_rank(options, link.rank()));
        // Rank 0 is the first.
        let tower = tower.take();
        Box::new(move |reporter| {
            let mut report = |done, total| reporter.progress(done, total);
            let loaded = CpuExecutor::load_rank(&dir, &options, (link, exchange), &mut report);
            let loaded = match &tower {
                None => loaded,
                Some(TowerFiles { checkpoint, source }) => {
                    loaded.and_then(|executor| executor.load_tower(checkpoint, source))
                }
            };
            let loaded = loaded.map_err(LoadFailure::Own)?;
            Ok(Box::new(loaded))
        })
    };
    let makers = RankLink::group(rules).into_iter().map(maker).collect();
    let parts = GroupParts {
        makers,
        limit: rules.limit,
        collectives: None,
        store,
    };
    Ranks::load(parts, progress)
}

fn of_rank(options: &CpuOptions, rank: Rank) -> CpuOptions {
    CpuOptions {
        // All ranks would be bound to the same cores.
        pin_threads: false,
        numa: match options.numa {
            Numa::Auto => Numa::OfRank(rank),
            other => other,
        },
        ..options.clone()
    }
}

impl RankExecutor for CpuExecutor {
    fn fail_ranks(&self, reason: &str) {
        self.backend.fail_ranks(reason);
    }
}

impl CpuExecutor {
    /// As [`Self::load`], with the part of the model that the link's rank has.
    fn load_rank(
        dir: &Path,
        options: &CpuOptions,
        (link, store): (RankLink, Option<(Exchange, usize)>),
        progress: LoadProgress<'_>,
    ) -> Result<Self, LoadError> {
        if options.sparsity.is_some() && link.rank() != Rank::ONLY {
            return Err(LoadError::Memory(format!(
                "tp_size is {}, expected 1 with double sparsity",
                link.rank().count()
            )));
        }
        link.inject_fault(Moment::Load);
        let checkpoint = Checkpoint::open(dir, options.dtype, options.load_format)?;
        let part = checkpoint.of_rank(link.rank(), options.quantization);
        let part = part.map_err(|error| LoadError::Memory(error.to_string()))?;
        let executor = Self::of_checkpoint(&part, options, Some(link), progress)?;
        let Some(store) = store else {
            return Ok(executor);
        };
        let block_tokens = store.1;
        let port = RankPort::new(&executor.kv_layout, store)?;
        executor.with_store(block_tokens, Box::new(port))
    }
}
