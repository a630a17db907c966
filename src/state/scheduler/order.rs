//! The order of the waiting queue: the policy, what it asks the cache, priorities on top, and swaps of policies.

use std::sync::Arc;

use super::planning::MAX_CANDIDATES;
use super::policy::{
    Crowd, MAX_PROBED, PriorityOrder, ProbeNeed, SchedulePolicy, Waiting, effective_policy,
    schedule_policy,
};
use super::sequence::Phase;
use super::{Next, Scheduler};
use crate::ids::SeqId;
use crate::state::cache::eviction::EvictionPolicy;
use crate::state::plan::probe::{PrefixesProbed, ProbeKey, ProbePrefixes};

use super::pipeline::{Found, Returned};

/// Admissions after which the waiting requests' prefixes are touched once, so that they are not the oldest ones.
const TOUCH_INTERVAL: u64 = 32;
/// Waiting requests whose prefixes are touched then.
const MAX_TOUCHED: usize = 128;

/// The rules that order the queue besides the policy.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub struct QueueRules {
    /// Whether priorities count.
    pub priority: PriorityOrder,
    /// How the cache evicts; `None` where there is no prefix cache.
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

/// The policies, and the counts that they go by.
pub(super) struct QueueOrder {
    rules: QueueRules,
    policy: Box<dyn SchedulePolicy>,
    /// Comes once the plan that is being asked for is open.
    next_policy: Option<Box<dyn SchedulePolicy>>,
    /// A swap that the tree does not know of yet.
    new_eviction_policy: Option<EvictionPolicy>,
    /// Prompt tokens prefilled by the steps planned so far: the clock of policies that age by work.
    prefilled_tokens: u64,
    /// Plans that looked at the queue.
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

    /// The eviction policy that the tree is to be told of still.
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

    /// First come, first served, with least-recently-used eviction: what waits long would find its prefix evicted, so
    /// every so many plans it is touched. True for such a plan.
    fn is_touching(&mut self) -> bool {
        let is_lru = |policy: EvictionPolicy| policy.name() == EvictionPolicy::default().name();
        if !self.policy.keeps_arrival() || !self.rules.eviction_policy.is_some_and(is_lru) {
            return false;
        }
        self.admission_passes += 1;
        self.admission_passes.is_multiple_of(TOUCH_INTERVAL)
    }
}

impl Scheduler {
    /// Orders the queue by another policy from the next plan on. Without a prefix cache, one that looks at it
    /// becomes `fcfs`.
    ///
    /// # Errors
    /// Names the policies that there are; nothing has changed then.
    pub fn set_policy(&mut self, name: &str) -> Result<(), String> {
        let policy = schedule_policy(name)?;
        let order = self.queue.order_mut();
        let has_prefix_cache = order.rules.eviction_policy.is_some();
        // The question that the cache is being asked is of no use to another policy.
        order.next_policy = Some(effective_policy(policy, has_prefix_cache));
        if !self.pipeline.is_probing() {
            order.take_next_policy();
        }
        self.pipeline.note_change();
        Ok(())
    }

    /// Evicts by another policy, with the parameters of the present one, from the next plan on.
    ///
    /// # Errors
    /// Names the policies that there are, or says that there is no prefix cache; nothing has changed then.
    pub fn set_eviction_policy(&mut self, name: &str) -> Result<(), String> {
        let order = self.queue.order_mut();
        let Some(present) = order.rules.eviction_policy else {
            return Err("needs the prefix cache, which disable_radix_cache turns off".to_owned());
        };
        let policy = EvictionPolicy::from_name(name).map_err(|unknown| unknown.reason())?;
        let policy = policy.with_parameters(present.parameters());
        order.rules.eviction_policy = Some(policy);
        order.new_eviction_policy = Some(policy);
        self.pipeline.note_change();
        Ok(())
    }

    /// The policy that orders the queue from the next plan on.
    pub fn policy_name(&self) -> &'static str {
        let order = self.queue.order();
        order.next_policy.as_ref().unwrap_or(&order.policy).name()
    }

    /// The facts that the policy must know before it can order the queue for a plan; one request alone needs no order.
    pub(super) fn probe_due(&self) -> Option<ProbeNeed> {
        let need = self.queue.order().policy.probe_need()?;
        let n_waiting = self.queue.waiting().len();
        let falls_back = n_waiting > MAX_PROBED && need.crowd == Crowd::FallsBack;
        (n_waiting > 1 && !falls_back && self.looks_at_queue(&self.decode_rows().seqs))
            .then_some(need)
    }

    /// Asks the tree, which settles first: the policy sees what the last step left in the cache.
    pub(super) fn probe(&mut self, need: ProbeNeed) -> Next {
        self.queue.restore_arrival();
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

    /// Takes the answer to a probe and goes on with the plan.
    pub fn prefixes_probed(&mut self, reply: PrefixesProbed) -> Next {
        self.pipeline.end_probe(Found {
            matches: reply.matches.into_iter().collect(),
            returned: Returned {
                pages: reply.returned,
                rows: reply.returned_rows,
                states: reply.returned_states,
                windows: reply.returned_windows,
            },
        });
        self.requests.begin_sweep();
        for checkpointed in reply.checkpointed {
            self.take_checkpointed(checkpointed);
        }
        self.pipeline.begin_plan(self.hosts.asks_for_flush());
        if self.pipeline.is_recovering() {
            return self.recover();
        }
        self.see_who_left();
        self.open_plan()
    }

    /// Puts those to be admitted first in front of the queue.
    pub(super) fn order_queue(&mut self) {
        let mut matches = self.pipeline.take_matches();
        self.queue.restore_arrival();
        let order = self.queue.order();
        let by_arrival = match order.policy.probe_need() {
            Some(_) => matches.is_empty(),
            None => order.policy.keeps_arrival(),
        };
        let priority = order.rules.priority;
        if by_arrival && priority == PriorityOrder::Ignored {
            return;
        }
        let all = self.queue.waiting().iter().map(|seq| {
            let sequence = &self.requests[*seq];
            let matched = matches.remove(seq);
            let is_known = by_arrival || order.policy.probe_need().is_none() || matched.is_some();
            let waiting = Waiting {
                seq: *seq,
                prompt_tokens: sequence.request.prompt.len(),
                fill_tokens: sequence.request.prompt.len() + sequence.output.len(),
                max_new_tokens: sequence.max_new_tokens(),
                waited_tokens: order.prefilled_tokens - sequence.arrival_prefilled_tokens,
                matched: matched.unwrap_or_default(),
            };
            (is_known, waiting)
        });
        // Those that came too late for the probe stay behind.
        let (known, rest): (Vec<_>, Vec<_>) = all.partition(|(is_known, _)| *is_known);
        let mut known: Vec<Waiting> = known.into_iter().map(|(_, waiting)| waiting).collect();
        if !by_arrival {
            self.queue.order_mut().policy.order(&mut known);
        }
        let rest = rest.into_iter().map(|(_, waiting)| waiting.seq);
        let mut order: Vec<SeqId> = known.iter().map(|waiting| waiting.seq).collect();
        order.extend(rest);
        if priority != PriorityOrder::Ignored {
            order.sort_by_cached_key(|seq| priority.rank(self.requests[*seq].request.priority));
        }
        self.queue.reorder(order);
        if self.queue.waiting().len() > MAX_CANDIDATES {
            // Others are at the head now than when the plan began.
            self.sweep_cancelled();
        }
    }

    /// The prefixes to touch in this plan, that of the head of the queue last.
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
            // Placeholders are alike, and what they stand for is not.
            tokens = Arc::default();
        }
        ProbeKey {
            seq,
            namespace: sequence.request.namespace.clone(),
            match_limit: sequence.match_limit_of(tokens.len()),
            tokens,
        }
    }

    /// Prompt and output of a request: what its prefill computes.
    pub(super) fn fill_of(&mut self, seq: SeqId) -> Arc<[u32]> {
        let sequence = &mut self.requests[seq];
        let len = sequence.request.prompt.len() + sequence.output.len();
        if sequence.phase == Phase::Waiting && sequence.fill.len() != len {
            sequence.fill = sequence.all_tokens(sequence.output.len());
        }
        sequence.fill.clone()
    }
}
