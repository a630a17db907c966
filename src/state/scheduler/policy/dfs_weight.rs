//! Depth first through the tree, the branch with the most waiting requests first: those who share a prefix run
//! together, and a branch is left once it is done with.

use rustc_hash::FxHashMap;

use crate::state::plan::probe::ProbeKind;

use super::{Crowd, ProbeNeed, SchedulePolicy, Waiting};

pub(super) const NAME: &str = "dfs-weight";

pub(super) struct DfsWeight;

/// A node among its siblings, the first to be entered being the least: many requests below it, then an early one.
type Turn = (std::cmp::Reverse<usize>, usize);

/// Behind the last node of a path: requests that end at a node come after those below it.
const END: Turn = (std::cmp::Reverse(0), usize::MAX);

impl SchedulePolicy for DfsWeight {
    fn name(&self) -> &'static str {
        NAME
    }

    fn probe_need(&self) -> Option<ProbeNeed> {
        Some(ProbeNeed {
            kind: ProbeKind::Paths,
            crowd: Crowd::OrdersAll,
        })
    }

    fn order(&mut self, waiting: &mut [Waiting]) {
        let mut turns: FxHashMap<u32, Turn> = FxHashMap::default();
        for (place, request) in waiting.iter().enumerate() {
            for &node in &request.matched.path {
                let (weight, _) = turns.entry(node).or_insert((std::cmp::Reverse(0), place));
                weight.0 += 1;
            }
        }
        // A request's place in the depth-first order is the list of turns down to it.
        waiting.sort_by_cached_key(|request| {
            let path = request.matched.path.iter();
            let down = path.map(|node| turns[node]);
            down.chain([END]).collect::<Vec<Turn>>()
        });
    }
}
