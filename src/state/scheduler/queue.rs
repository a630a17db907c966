//! The order of the waiting queue: the policy, what it asks the cache, priorities on top, and swaps of policies.

use std::sync::Arc;

use crate::ids::SeqId;
use crate::state::cache::eviction::EvictionPolicy;
use crate::state::plan::probe::{ProbeKey, ProbeReply, ProbeRequest};
use crate::state::scheduler::policy::{
    Crowd, MAX_PROBED, PriorityOrder, ProbeNeed, Waiting, effective_policy, schedule_policy,
};
use crate::state::scheduler::sequence::Phase;

use super::planning::MAX_CANDIDATES;
use super::{Carried, Next, Scheduler};

/// Admissions after which the waiting requests' prefixes are touched once, so that they are not the oldest ones.
const TOUCH_INTERVAL: u64 = 32;
/// Waiting requests whose prefixes are touched then.
const MAX_TOUCHED: usize = 128;

/// What orders the queue besides the policy.
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

impl Scheduler {
    /// Orders the queue by another policy from the next plan on. Without a prefix cache, one that looks at it
    /// becomes `fcfs`.
    ///
    /// # Errors
    /// Names the policies that there are; nothing has changed then.
    pub fn set_policy(&mut self, name: &str) -> Result<(), String> {
        let policy = schedule_policy(name)?;
        let has_prefix_cache = self.limits.queue.eviction_policy.is_some();
        // What is being asked of the cache is of no use to another policy.
        self.next_policy = Some(effective_policy(policy, has_prefix_cache));
        if !self.is_probing {
            self.take_next_policy();
        }
        self.is_dirty = true;
        Ok(())
    }

    /// Evicts by another policy, with the parameters of the present one, from the next plan on.
    ///
    /// # Errors
    /// Names the policies that there are, or says that there is no prefix cache; nothing has changed then.
    pub fn set_eviction_policy(&mut self, name: &str) -> Result<(), String> {
        let Some(present) = self.limits.queue.eviction_policy else {
            return Err("needs the prefix cache, which disable_radix_cache turns off".to_owned());
        };
        let policy = EvictionPolicy::from_name(name).map_err(|unknown| unknown.reason())?;
        let policy = policy.with_parameters(present.parameters());
        self.limits.queue.eviction_policy = Some(policy);
        self.new_eviction_policy = Some(policy);
        self.is_dirty = true;
        Ok(())
    }

    /// The policy that orders the queue from the next plan on.
    pub fn policy_name(&self) -> &'static str {
        self.next_policy.as_ref().unwrap_or(&self.policy).name()
    }

    pub(super) fn take_next_policy(&mut self) {
        if let Some(policy) = self.next_policy.take() {
            self.policy = policy;
        }
    }

    /// What the policy must know before it can order the queue for a plan; one request alone needs no order.
    pub(super) fn probe_due(&self) -> Option<ProbeNeed> {
        let need = self.policy.probe_need()?;
        let n_waiting = self.waiting.len();
        let falls_back = n_waiting > MAX_PROBED && need.crowd == Crowd::FallsBack;
        (n_waiting > 1 && !falls_back && self.looks_at_queue(&self.decode_rows().seqs))
            .then_some(need)
    }

    /// Asks the tree, which settles first: the policy sees what the last step left in the cache.
    pub(super) fn probe(&mut self, need: ProbeNeed) -> Next {
        self.restore_arrival();
        let rules = self.limits.queue;
        if rules.priority != PriorityOrder::Ignored {
            let sequences = &self.sequences;
            let rank = |seq: &SeqId| rules.priority.rank(sequences[*seq].request.priority);
            self.waiting.make_contiguous().sort_by_cached_key(rank);
        }
        let all: Vec<SeqId> = self.waiting.iter().copied().collect();
        self.is_probing = true;
        Next::Probe(Box::new(ProbeRequest {
            step: self.next_step,
            settle: self.take_settlements(),
            keys: all.into_iter().map(|seq| self.probe_key(seq)).collect(),
            kind: need.kind,
        }))
    }

    /// Takes the answer to a probe and goes on with the plan.
    pub fn probed(&mut self, reply: ProbeReply) -> Next {
        debug_assert!(self.is_probing, "the tree answers only what it was asked");
        self.is_probing = false;
        self.cancels_seen.clear();
        self.swept.clear();
        for checkpointed in reply.checkpointed {
            self.take_checkpointed(checkpointed);
        }
        self.carried = Carried {
            pages: reply.returned,
            rows: reply.returned_rows,
        };
        self.is_dirty = self.flushes.are_asked();
        if self.recovering {
            return self.recover();
        }
        self.matches = reply.matches.into_iter().collect();
        self.see_who_left();
        self.open_plan()
    }

    /// Puts those to be admitted first in front of `waiting`.
    pub(super) fn order_queue(&mut self) {
        let mut matches = std::mem::take(&mut self.matches);
        self.restore_arrival();
        let by_arrival = match self.policy.probe_need() {
            Some(_) => matches.is_empty(),
            None => self.policy.keeps_arrival(),
        };
        let priority = self.limits.queue.priority;
        if by_arrival && priority == PriorityOrder::Ignored {
            return;
        }
        let all = self.waiting.iter().map(|seq| {
            let sequence = &self.sequences[*seq];
            let matched = matches.remove(seq);
            let is_known = by_arrival || self.policy.probe_need().is_none() || matched.is_some();
            let waiting = Waiting {
                seq: *seq,
                prompt_tokens: sequence.request.prompt.len(),
                fill_tokens: sequence.request.prompt.len() + sequence.output.len(),
                max_new_tokens: sequence.max_new_tokens(),
                waited_tokens: self.prefilled_tokens - sequence.arrival_prefilled_tokens,
                matched: matched.unwrap_or_default(),
            };
            (is_known, waiting)
        });
        // Those that came too late for the probe stay behind.
        let (known, rest): (Vec<_>, Vec<_>) = all.partition(|(is_known, _)| *is_known);
        let mut known: Vec<Waiting> = known.into_iter().map(|(_, waiting)| waiting).collect();
        if !by_arrival {
            self.policy.order(&mut known);
        }
        let rest = rest.into_iter().map(|(_, waiting)| waiting.seq);
        let mut order: Vec<SeqId> = known.iter().map(|waiting| waiting.seq).collect();
        order.extend(rest);
        if priority != PriorityOrder::Ignored {
            order.sort_by_cached_key(|seq| priority.rank(self.sequences[*seq].request.priority));
        }
        self.waiting = order.into();
        if self.waiting.len() > MAX_CANDIDATES {
            // Others are at the head now than when the plan began.
            self.sweep_cancelled();
        }
    }

    /// Ids grow in order of arrival. Costs one comparison each where nothing is out of place.
    fn restore_arrival(&mut self) {
        self.waiting.make_contiguous().sort_unstable();
    }

    /// First come, first served, with least-recently-used eviction: what waits long would find its prefix evicted, so
    /// it is touched now and then, the head of the queue last.
    pub(super) fn prefixes_to_touch(&mut self) -> Vec<ProbeKey> {
        let is_lru = |policy: EvictionPolicy| policy.name() == EvictionPolicy::default().name();
        if !self.policy.keeps_arrival() || !self.limits.queue.eviction_policy.is_some_and(is_lru) {
            return Vec::new();
        }
        self.admission_passes += 1;
        if !self.admission_passes.is_multiple_of(TOUCH_INTERVAL) {
            return Vec::new();
        }
        let first: Vec<SeqId> = self.waiting.iter().take(MAX_TOUCHED).copied().collect();
        let keys = first.into_iter().rev();
        keys.map(|seq| self.probe_key(seq)).collect()
    }

    fn probe_key(&mut self, seq: SeqId) -> ProbeKey {
        let tokens = self.fill_of(seq);
        let sequence = &self.sequences[seq];
        ProbeKey {
            seq,
            namespace: sequence.request.namespace.clone(),
            match_limit: sequence.match_limit_of(tokens.len()),
            tokens,
        }
    }

    /// Prompt and output of a request: what its prefill computes.
    pub(super) fn fill_of(&mut self, seq: SeqId) -> Arc<[u32]> {
        let sequence = &mut self.sequences[seq];
        let len = sequence.request.prompt.len() + sequence.output.len();
        if sequence.phase == Phase::Waiting && sequence.fill.len() != len {
            sequence.fill = sequence.all_tokens(sequence.output.len());
        }
        sequence.fill.clone()
    }
}
