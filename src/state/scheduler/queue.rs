//! The waiting queue: requests before their first admission, and retracted or preempted ones.

use std::collections::VecDeque;

use rustc_hash::FxHashSet;

use super::order::QueueOrder;
use souffleur_base::ids::SeqId;

pub(super) struct Queue {
    order: QueueOrder,
    /// In the order of the last plan, then newer arrivals.
    waiting: VecDeque<SeqId>,
    /// Oldest first; without priorities, served before `waiting`.
    retracted: VecDeque<SeqId>,
    /// Preempted for the step being planned: not candidates for it.
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

    /// Number of waiting requests, including retracted ones.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.retracted.len()
    }

    #[inline]
    pub(super) fn n_retracted(&self) -> usize {
        self.retracted.len()
    }

    /// Requests before their first admission, and preempted ones, in the order of the last plan.
    #[inline]
    pub(super) fn waiting(&self) -> &VecDeque<SeqId> {
        &self.waiting
    }

    /// All waiting requests, retracted ones first.
    #[inline]
    pub(super) fn all(&self) -> impl Iterator<Item = SeqId> + Clone + '_ {
        self.retracted.iter().chain(&self.waiting).copied()
    }

    /// All waiting requests, except those preempted for the step being planned.
    #[inline]
    pub(super) fn candidates(&self) -> impl Iterator<Item = SeqId> + '_ {
        self.all().filter(|seq| !self.preempted.contains(seq))
    }

    #[inline]
    pub(super) fn push(&mut self, seq: SeqId) {
        self.waiting.push_back(seq);
    }

    /// Inserts a retracted request by its age.
    #[inline]
    pub(super) fn push_retracted(&mut self, seq: SeqId) {
        let place = self.retracted.partition_point(|other| *other < seq);
        self.retracted.insert(place, seq);
    }

    /// Inserts a preempted request by its arrival: at the head, the request would take back the memory that it freed.
    /// It is not a candidate until [`Queue::forget_preempted`].
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

    #[inline]
    pub(super) fn remove(&mut self, seq: SeqId) {
        for queue in [&mut self.waiting, &mut self.retracted] {
            if let Some(place) = queue.iter().position(|other| *other == seq) {
                queue.remove(place);
            }
        }
    }

    /// Removes the admitted requests in one pass: thousands may wait.
    #[inline]
    pub(super) fn remove_all(&mut self, admitted: &FxHashSet<SeqId>) {
        self.waiting.retain(|seq| !admitted.contains(seq));
        self.retracted.retain(|seq| !admitted.contains(seq));
    }

    /// Restores the order of arrival, which is the order of ids. Costs one comparison per request if all are in order.
    #[inline]
    pub(super) fn sort_by_arrival(&mut self) {
        self.waiting.make_contiguous().sort_unstable();
    }

    #[inline]
    pub(super) fn sort_by<K: Ord>(&mut self, key: impl FnMut(&SeqId) -> K) {
        self.waiting.make_contiguous().sort_by_cached_key(key);
    }

    #[inline]
    pub(super) fn reorder(&mut self, order: Vec<SeqId>) {
        debug_assert_eq!(order.len(), self.waiting.len());
        self.waiting = order.into();
    }
}
