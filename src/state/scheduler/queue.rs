//! The waiting queue: those that wait for their first admission, and those that were retracted.

use std::collections::VecDeque;

use rustc_hash::FxHashSet;

use super::order::QueueOrder;
use crate::ids::SeqId;

/// Waiting requests, and what orders them.
pub(super) struct Queue {
    order: QueueOrder,
    /// In the order of the last plan; requests that arrived since follow.
    waiting: VecDeque<SeqId>,
    /// Ahead of `waiting`, oldest first.
    retracted: VecDeque<SeqId>,
    /// Preempted for the step that is being planned: no candidates of it.
    preempted: Vec<SeqId>,
}

impl Queue {
    pub(super) fn new(order: QueueOrder) -> Self {
        Self {
            order,
            waiting: VecDeque::new(),
            retracted: VecDeque::new(),
            preempted: Vec::new(),
        }
    }

    #[inline]
    pub(super) fn order(&self) -> &QueueOrder {
        &self.order
    }

    #[inline]
    pub(super) fn order_mut(&mut self) -> &mut QueueOrder {
        &mut self.order
    }

    /// Those that wait, retracted ones included.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.retracted.len()
    }

    #[inline]
    pub(super) fn n_retracted(&self) -> usize {
        self.retracted.len()
    }

    /// Those that wait in the policy's order, in the order of the last plan.
    #[inline]
    pub(super) fn waiting(&self) -> &VecDeque<SeqId> {
        &self.waiting
    }

    /// All that wait, retracted ones first.
    #[inline]
    pub(super) fn all(&self) -> impl Iterator<Item = SeqId> + Clone + '_ {
        self.retracted.iter().chain(&self.waiting).copied()
    }

    /// All that wait but for those preempted for the step that is being planned.
    #[inline]
    pub(super) fn candidates(&self) -> impl Iterator<Item = SeqId> + '_ {
        self.all().filter(|seq| !self.preempted.contains(seq))
    }

    /// Takes in a request that has just arrived.
    #[inline]
    pub(super) fn push(&mut self, seq: SeqId) {
        self.waiting.push_back(seq);
    }

    /// Takes in a request that was retracted: ahead of every policy's order, oldest first.
    #[inline]
    pub(super) fn push_retracted(&mut self, seq: SeqId) {
        let place = self.retracted.partition_point(|other| *other < seq);
        self.retracted.insert(place, seq);
    }

    /// Takes in a request that was preempted, where it stood by its arrival: ahead of all others it would take the place
    /// that was made. It is no candidate until [`Queue::forget_preempted`].
    #[inline]
    pub(super) fn push_preempted(&mut self, seq: SeqId) {
        self.preempted.push(seq);
        let later = self.waiting.iter().position(|other| *other > seq);
        self.waiting
            .insert(later.unwrap_or(self.waiting.len()), seq);
    }

    #[inline]
    pub(super) fn forget_preempted(&mut self) {
        self.preempted.clear();
    }

    /// Takes a request out, wherever it waits.
    #[inline]
    pub(super) fn leave(&mut self, seq: SeqId) {
        for queue in [&mut self.waiting, &mut self.retracted] {
            if let Some(place) = queue.iter().position(|other| *other == seq) {
                queue.remove(place);
            }
        }
    }

    /// Takes out those that are admitted, in one pass however many they are: thousands may wait.
    #[inline]
    pub(super) fn leave_together(&mut self, admitted: &FxHashSet<SeqId>) {
        self.waiting.retain(|seq| !admitted.contains(seq));
        self.retracted.retain(|seq| !admitted.contains(seq));
    }

    /// Puts those that wait in the order of their arrival, which is that of their ids. Costs one comparison each where
    /// nothing is out of place.
    #[inline]
    pub(super) fn restore_arrival(&mut self) {
        self.waiting.make_contiguous().sort_unstable();
    }

    /// Sorts those that wait by a key, equals in the order in which they stand.
    #[inline]
    pub(super) fn sort_by<K: Ord>(&mut self, key: impl FnMut(&SeqId) -> K) {
        self.waiting.make_contiguous().sort_by_cached_key(key);
    }

    /// Puts those that wait in this order.
    #[inline]
    pub(super) fn reorder(&mut self, order: Vec<SeqId>) {
        debug_assert_eq!(order.len(), self.waiting.len());
        self.waiting = order.into();
    }
}
