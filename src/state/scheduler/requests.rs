//! The table of live requests, by `SeqId` and by request id, with their cancel flags.

use std::ops::{Index, IndexMut};

use rustc_hash::{FxHashMap, FxHashSet};

use super::sequence::{Sequence, SequenceTable};
use souffleur_base::ids::{IntakeId, RequestId, SeqId};
use souffleur_base::in_hand;

#[derive(Default)]
pub(super) struct Requests {
    table: SequenceTable,
    /// Requests that have not ended.
    by_rid: FxHashMap<RequestId, SeqId>,
    /// False only if no live request has a timeout.
    has_timeouts: bool,
    /// Requests whose cancel flag the last call to the scheduler found raised.
    cancels_seen: Vec<IntakeId>,
    /// Requests whose cancel flags this plan has checked, if the queue is longer than one check covers.
    swept: FxHashSet<SeqId>,
}

impl Requests {
    #[inline]
    pub(super) fn insert(&mut self, sequence: Sequence) -> SeqId {
        self.has_timeouts |= sequence.request.timeouts.any();
        let rid = sequence.request.rid.clone();
        let seq = self.table.insert(sequence);
        self.by_rid.insert(rid, seq);
        seq
    }

    pub(super) fn begin_after(&mut self, n_sequences: u64) {
        self.table.begin_after(n_sequences);
    }

    #[inline]
    pub(super) fn get(&self, seq: SeqId) -> Option<&Sequence> {
        self.table.get(seq)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, seq: SeqId) -> Option<&mut Sequence> {
        self.table.get_mut(seq)
    }

    /// Notes the request of a sequence as the one in hand.
    #[inline]
    pub(super) fn hold(&self, seq: SeqId) {
        match self.get(seq) {
            Some(sequence) => in_hand::hold(sequence.request.intake),
            None => in_hand::clear(),
        }
    }

    /// The sequence, whose request is noted as the one in hand.
    ///
    /// # Panics
    /// If the sequence is not live; no request is in hand then.
    #[inline]
    pub(super) fn noted(&self, seq: SeqId) -> &Sequence {
        let Some(sequence) = self.get(seq) else {
            not_live()
        };
        in_hand::hold(sequence.request.intake);
        sequence
    }

    /// As [`Self::noted`].
    #[inline]
    pub(super) fn noted_mut(&mut self, seq: SeqId) -> &mut Sequence {
        let Some(sequence) = self.get_mut(seq) else {
            not_live()
        };
        in_hand::hold(sequence.request.intake);
        sequence
    }

    #[inline]
    pub(super) fn remove(&mut self, seq: SeqId) -> Option<Sequence> {
        self.table.remove(seq)
    }

    #[inline]
    pub(super) fn iter(&self) -> impl Iterator<Item = (SeqId, &Sequence)> {
        self.table.iter()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    #[inline]
    pub(super) fn find_by_rid(&self, rid: &RequestId) -> Option<SeqId> {
        self.by_rid.get(rid).copied()
    }

    #[inline]
    pub(super) fn release_rid(&mut self, seq: SeqId) {
        let rid = &self.table[seq].request.rid;
        if self.by_rid.get(rid) == Some(&seq) {
            self.by_rid.remove(rid);
        }
    }

    /// Number of requests that have not ended.
    #[inline]
    pub(super) fn n_live(&self) -> usize {
        self.by_rid.len()
    }

    #[inline]
    pub(super) fn live(&self) -> impl Iterator<Item = SeqId> + '_ {
        self.by_rid.values().copied()
    }

    /// Requests that have not ended, oldest first.
    #[inline]
    pub(super) fn live_by_age(&self) -> Vec<SeqId> {
        let mut live: Vec<SeqId> = self.live().collect();
        live.sort_unstable();
        live
    }

    #[inline]
    pub(super) fn has_timeouts(&self) -> bool {
        self.has_timeouts
    }

    #[inline]
    pub(super) fn set_has_timeouts(&mut self, has_timeouts: bool) {
        self.has_timeouts = has_timeouts;
    }

    #[inline]
    pub(super) fn cancels_seen(&self) -> &[IntakeId] {
        &self.cancels_seen
    }

    #[inline]
    pub(super) fn note_cancel_seen(&mut self, intake: IntakeId) {
        self.cancels_seen.push(intake);
    }

    #[inline]
    pub(super) fn forget_cancels_seen(&mut self) {
        self.cancels_seen.clear();
    }

    /// Starts the checks of a new call; forgets those of the last one.
    #[inline]
    pub(super) fn begin_sweep(&mut self) {
        self.cancels_seen.clear();
        self.swept.clear();
    }

    /// Requests in `head` whose cancel flag is raised, except requests checked since the sweep began.
    #[inline]
    pub(super) fn cancelled_among(&self, head: impl Iterator<Item = SeqId>) -> Vec<SeqId> {
        let is_cancelled =
            |seq: &SeqId| !self.swept.contains(seq) && self.table[*seq].request.cancel.is_raised();
        head.filter(is_cancelled).collect()
    }

    /// Marks requests as checked. A plan may sweep a second time, over another head of the queue. A flag raised after
    /// its first check counts only for the next plan, so that the list of flags seen determines this plan.
    #[inline]
    pub(super) fn note_swept(&mut self, head: impl Iterator<Item = SeqId>) {
        self.swept.extend(head);
    }
}

impl Index<SeqId> for Requests {
    type Output = Sequence;

    #[inline]
    fn index(&self, seq: SeqId) -> &Sequence {
        &self.table[seq]
    }
}

impl IndexMut<SeqId> for Requests {
    #[inline]
    fn index_mut(&mut self, seq: SeqId) -> &mut Sequence {
        &mut self.table[seq]
    }
}

/// The request of an earlier sequence of the list has not caused this panic.
#[cold]
fn not_live() -> ! {
    in_hand::clear();
    unreachable!("the scheduler's lists hold live sequences");
}
