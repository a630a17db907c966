//! Scheduling policy: depth-first order of the radix tree, so that requests that share a prefix run together. The
//! branch with the most waiting requests comes first.

use rustc_hash::FxHashMap;

use crate::plan::probe::ProbeKind;

use super::{LongQueue, ProbeNeed, SchedulePolicy, Waiting};

pub(super) const NAME: &str = "dfs-weight";

pub(super) struct DfsWeight;

/// Sort key of a node among its siblings: most requests below it first, then the earliest request.
type NodeKey = (std::cmp::Reverse<usize>, usize);

/// Sorts after every node: requests that end at a node follow requests further down.
const END: NodeKey = (std::cmp::Reverse(0), usize::MAX);

impl SchedulePolicy for DfsWeight {
    fn name(&self) -> &'static str {
        NAME
    }

    fn probe_need(&self) -> Option<ProbeNeed> {
        Some(ProbeNeed {
            kind: ProbeKind::Paths,
            long_queue: LongQueue::OrdersAll,
        })
    }

    fn order(&mut self, waiting: &mut [Waiting]) {
        let mut keys: FxHashMap<u32, NodeKey> = FxHashMap::default();
        for (place, request) in waiting.iter().enumerate() {
            for &node in &request.matched.path {
                let (weight, _) = keys.entry(node).or_insert((std::cmp::Reverse(0), place));
                weight.0 += 1;
            }
        }
        // A request's sort key is the list of keys on its path.
        waiting.sort_by_cached_key(|request| {
            let path = request.matched.path.iter();
            let keys_on_path = path.map(|node| keys[node]);
            keys_on_path.chain([END]).collect::<Vec<NodeKey>>()
        });
    }
}
