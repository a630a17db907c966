//! The order of the waiting queue: the policy, its probes of the cache, priorities, and policy changes.

use std::sync::Arc;

use super::planning::MAX_CANDIDATES;
use super::policy::{
    LongQueue, MAX_PROBED, PriorityOrder, ProbeNeed, SchedulePolicy, Waiting, effective_policy,
    schedule_policy,
};
use super::sequence::Phase;
use super::{Next, Scheduler};
use crate::cache::eviction::EvictionPolicy;
use crate::plan::probe::{PrefixesProbed, ProbeKey, ProbePrefixes};
use souffleur_base::ids::SeqId;

use super::pipeline::{ProbeResult, Returned};

/// Admission passes between two touches of the waiting requests' prefixes, which protect them from LRU eviction.
const TOUCH_INTERVAL: u64 = 32;
/// Number of waiting requests whose prefixes are touched.
const MAX_TOUCHED: usize = 128;

/// The rules that order the queue, in addition to the policy.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub struct QueueRules {
    pub priority: PriorityOrder,
    /// The cache's eviction policy; `None` without a prefix cache.
    pub eviction_policy: Option<EvictionPolicy>,
}

impl Default for QueueRules {
    fn default() -> Self {
        Self {
            priority: PriorityOrder::default(),
            eviction_policy: Some(EvictionPolicy::default()),
        }
    }
}

pub(super) struct QueueOrder {
    rules: QueueRules,
    policy: Box<dyn SchedulePolicy>,
    /// The policy that takes effect after the pending probe.
    next_policy: Option<Box<dyn SchedulePolicy>>,
    /// A change not yet sent to the tree.
    new_eviction_policy: Option<EvictionPolicy>,
    /// Tokens prefilled by all planned steps: the clock of policies that measure waiting time in tokens.
    prefilled_tokens: u64,
    /// Plans that considered the queue.
    admission_passes: u64,
}

impl QueueOrder {
    pub(super) fn new(policy: Box<dyn SchedulePolicy>, rules: QueueRules) -> Self {
        Self {
            policy: effective_policy(policy, rules.eviction_policy.is_some()),
            rules,
            next_policy: None,
            new_eviction_policy: None,
            prefilled_tokens: 0,
            admission_passes: 0,
        }
    }

    pub(super) fn eviction_policy(&self) -> Option<EvictionPolicy> {
        self.rules.eviction_policy
    }

    pub(super) fn new_eviction_policy(&self) -> Option<EvictionPolicy> {
        self.new_eviction_policy
    }

    pub(super) fn take_new_eviction_policy(&mut self) -> Option<EvictionPolicy> {
        self.new_eviction_policy.take()
    }

    pub(super) fn take_next_policy(&mut self) {
        if let Some(policy) = self.next_policy.take() {
            self.policy = policy;
        }
    }

    pub(super) fn prefilled_tokens(&self) -> u64 {
        self.prefilled_tokens
    }

    pub(super) fn note_prefilled(&mut self, tokens: u64) {
        self.prefilled_tokens += tokens;
    }

    /// With fcfs and LRU eviction, requests that wait long would lose their prefixes, so every [`TOUCH_INTERVAL`]th
    /// pass touches these prefixes. Returns true for a touching pass.
    fn is_touching(&mut self) -> bool {
        let is_lru = |policy: EvictionPolicy| policy.name() == EvictionPolicy::default().name();
        if !self.policy.keeps_arrival_order() || !self.rules.eviction_policy.is_some_and(is_lru) {
            return false;
        }
        self.admission_passes += 1;
        self.admission_passes.is_multiple_of(TOUCH_INTERVAL)
    }
}

impl Scheduler {
    /// Changes the scheduling policy from the next plan on. Without a prefix cache, a cache-aware policy becomes
    /// `fcfs`.
    ///
    /// # Errors
    /// Unknown name, with the list of policies; nothing has changed.
    pub fn set_policy(&mut self, name: &str) -> Result<(), String> {
        let policy = schedule_policy(name)?;
        let order = self.queue.order_mut();
        let has_prefix_cache = order.rules.eviction_policy.is_some();
        // A pending probe was made for the old policy, which orders one more plan.
        order.next_policy = Some(effective_policy(policy, has_prefix_cache));
        if !self.pipeline.is_probing() {
            order.take_next_policy();
        }
        self.pipeline.note_change();
        Ok(())
    }

    /// Changes the eviction policy from the next plan on; keeps the parameters.
    ///
    /// # Errors
    /// Unknown name, with the list of policies, or no prefix cache; nothing has changed.
    pub fn set_eviction_policy(&mut self, name: &str) -> Result<(), String> {
        let order = self.queue.order_mut();
        let Some(present) = order.rules.eviction_policy else {
            return Err("requires the prefix cache: unset disable_radix_cache".to_owned());
        };
        let policy = EvictionPolicy::from_name(name).map_err(|unknown| unknown.reason())?;
        let policy = policy.with_parameters(present.parameters());
        order.rules.eviction_policy = Some(policy);
        order.new_eviction_policy = Some(policy);
        self.pipeline.note_change();
        Ok(())
    }

    pub fn policy_name(&self) -> &'static str {
        let order = self.queue.order();
        order.next_policy.as_ref().unwrap_or(&order.policy).name()
    }

    /// The probe that the policy needs to order the queue for this plan; `None` if the plan needs no order or no probe.
    pub(super) fn probe_due(&self) -> Option<ProbeNeed> {
        let need = self.queue.order().policy.probe_need()?;
        let n_waiting = self.queue.waiting().len();
        let falls_back = n_waiting > MAX_PROBED && need.long_queue == LongQueue::FallsBack;
        (n_waiting > 1 && !falls_back && self.considers_queue(&self.decode_rows().seqs))
            .then_some(need)
    }

    /// Probes the tree. The settlements come first, so that the policy sees the last step's effect on the cache.
    pub(super) fn probe(&mut self, need: ProbeNeed) -> Next {
        self.queue.sort_by_arrival();
        let priority = self.queue.order().rules.priority;
        if priority != PriorityOrder::Ignored {
            let requests = &self.requests;
            self.queue
                .sort_by(|seq| priority.rank(requests[*seq].request.priority));
        }
        let all: Vec<SeqId> = self.queue.waiting().iter().copied().collect();
        self.pipeline.begin_probe();
        Next::ProbePrefixes(Box::new(ProbePrefixes {
            step: self.pipeline.next_step(),
            settle: self.take_settlements(),
            keys: all.into_iter().map(|seq| self.probe_key(seq)).collect(),
            kind: need.kind,
        }))
    }

    pub fn prefixes_probed(&mut self, reply: PrefixesProbed) -> Next {
        self.pipeline.end_probe(ProbeResult {
            matches: reply.matches.into_iter().collect(),
            returned: Returned {
                pages: reply.returned,
                rows: reply.returned_rows,
                states: reply.returned_states,
                windows: reply.returned_windows,
            },
        });
        self.requests.begin_sweep();
        self.apply_checkpoints(reply.checkpointed);
        self.pipeline.begin_plan(self.hosts.asks_for_flush());
        if self.pipeline.is_recovering() {
            return self.recover();
        }
        self.sweep_before_plan();
        self.open_plan()
    }

    pub(super) fn order_queue(&mut self) {
        let mut matches = self.pipeline.take_matches();
        self.queue.sort_by_arrival();
        let order = self.queue.order();
        let by_arrival = match order.policy.probe_need() {
            Some(_) => matches.is_empty(),
            None => order.policy.keeps_arrival_order(),
        };
        let priority = order.rules.priority;
        if by_arrival && priority == PriorityOrder::Ignored {
            return;
        }
        let all = self.queue.waiting().iter().map(|seq| {
            let sequence = &self.requests[*seq];
            let matched = matches.remove(seq);
            let is_ordered = by_arrival || order.policy.probe_need().is_none() || matched.is_some();
            let waiting = Waiting {
                seq: *seq,
                prompt_tokens: sequence.request.prompt.len(),
                fill_tokens: sequence.request.prompt.len() + sequence.output.len(),
                max_new_tokens: sequence.max_new_tokens(),
                waited_tokens: order.prefilled_tokens - sequence.arrival_prefilled_tokens,
                matched: matched.unwrap_or_default(),
            };
            (is_ordered, waiting)
        });
        // Requests that arrived after the probe come last.
        let (ordered, late): (Vec<_>, Vec<_>) = all.partition(|(is_ordered, _)| *is_ordered);
        let mut ordered: Vec<Waiting> = ordered.into_iter().map(|(_, waiting)| waiting).collect();
        if !by_arrival {
            self.queue.order_mut().policy.order(&mut ordered);
        }
        let late = late.into_iter().map(|(_, waiting)| waiting.seq);
        let mut order: Vec<SeqId> = ordered.iter().map(|waiting| waiting.seq).collect();
        order.extend(late);
        if priority != PriorityOrder::Ignored {
            order.sort_by_cached_key(|seq| priority.rank(self.requests[*seq].request.priority));
        }
        self.queue.reorder(order);
        if self.queue.waiting().len() > MAX_CANDIDATES {
            // The new head of the queue may contain requests that the first sweep did not check.
            self.sweep_cancelled();
        }
    }

    /// The prefixes to touch in this plan, the head of the queue last.
    pub(super) fn prefixes_to_touch(&mut self) -> Vec<ProbeKey> {
        if !self.queue.order_mut().is_touching() {
            return Vec::new();
        }
        let waiting = self.queue.waiting().iter();
        let first: Vec<SeqId> = waiting.take(MAX_TOUCHED).copied().collect();
        let keys = first.into_iter().rev();
        keys.map(|seq| self.probe_key(seq)).collect()
    }

    fn probe_key(&mut self, seq: SeqId) -> ProbeKey {
        let mut tokens = self.fill_of(seq);
        let sequence = &self.requests[seq];
        if sequence.request.bypasses_cache {
            // Different prompt embeddings have the same placeholder tokens.
            tokens = Arc::default();
        }
        ProbeKey {
            seq,
            intake: sequence.request.intake,
            namespace: sequence.request.namespace.clone(),
            match_limit: sequence.match_limit_of(tokens.len()),
            tokens,
        }
    }

    /// Prompt and output of a request, the input of its prefill.
    pub(super) fn fill_of(&mut self, seq: SeqId) -> Arc<[u32]> {
        let sequence = &mut self.requests[seq];
        let len = sequence.request.prompt.len() + sequence.output.len();
        if sequence.phase == Phase::Waiting && sequence.fill.len() != len {
            sequence.fill = sequence.all_tokens(sequence.output.len());
        }
        sequence.fill.clone()
    }
}
