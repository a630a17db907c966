//! Digests of the scheduler's requests to the radix tree and the page pools.

use serde::{Deserialize, Serialize};

use super::{PageRuns, Seq, Sum, seqs};
use souffleur_base::ids::{RowId, StepId};
use souffleur_state::plan::probe::{ProbeKey, ProbePrefixes};
use souffleur_state::plan::{
    AdmitRequest, Candidate, DecodeDemand, Demand, PinDemand, PlanStep, PublishKey, ReservePages,
    Settle, SettleCheckpoint, SettleRelease,
};
use souffleur_state::pool::pages::RowWindows;
use souffleur_state::pool::state_pool::SavedState;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanDigest {
    step: StepId,
    settle: Vec<SettleDigest>,
    flush: bool,
    eviction_policy: Option<String>,
    returned: PageRuns,
    returned_rows: Vec<RowId>,
    returned_windows: PageRuns,
    pins: Vec<u64>,
    touch: Vec<Seq>,
    admit: Option<AdmitDigest>,
    growing: Option<Vec<Seq>>,
    evict_tokens: u64,
    free_pages: u64,
    free_rows: u64,
}

impl PlanDigest {
    pub fn step(&self) -> StepId {
        self.step
    }
}

impl From<&PlanStep> for PlanDigest {
    fn from(request: &PlanStep) -> Self {
        let PlanStep {
            step,
            settle,
            flush,
            eviction_policy,
            returned,
            returned_rows,
            // Returned and free states appear in the grants.
            returned_states: _,
            returned_windows,
            max_pinned_states: _,
            pins,
            touch,
            admit,
            decode_demand,
            evict_tokens,
            free_pages,
            free_rows,
            free_states: _,
            free_windows: _,
            // In the log's header.
            has_windows: _,
            // Saves appear in the step.
            saves: _,
        } = request;
        let pin_of = |demand: &PinDemand| demand.pin;
        let growing = |DecodeDemand { growing }: &DecodeDemand| seqs(growing);
        Self {
            step: *step,
            settle: settle.iter().map(SettleDigest::from).collect(),
            flush: *flush,
            eviction_policy: eviction_policy.map(|policy| policy.name().to_owned()),
            returned: returned.ids().iter().copied().collect(),
            returned_rows: returned_rows.clone(),
            returned_windows: returned_windows.ids().iter().copied().collect(),
            touch: touch.iter().map(|key| key.seq.into()).collect(),
            pins: pins.iter().map(pin_of).collect(),
            admit: admit.as_ref().map(AdmitDigest::from),
            growing: decode_demand.as_ref().map(growing),
            evict_tokens: *evict_tokens as u64,
            free_pages: *free_pages as u64,
            free_rows: *free_rows as u64,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeDigest {
    step: StepId,
    settle: Vec<SettleDigest>,
    keys: Vec<Seq>,
    keys_sum: u64,
    kind: String,
}

impl ProbeDigest {
    pub fn step(&self) -> StepId {
        self.step
    }
}

impl From<&ProbePrefixes> for ProbeDigest {
    fn from(request: &ProbePrefixes) -> Self {
        let ProbePrefixes {
            step,
            settle,
            keys,
            kind,
        } = request;
        let mut sum = Sum::default();
        for key in keys {
            let ProbeKey {
                seq: _,
                intake: _,
                namespace: _,
                tokens,
                match_limit,
            } = key;
            sum.add(tokens.len() as u64);
            sum.add(*match_limit as u64);
        }
        Self {
            step: *step,
            settle: settle.iter().map(SettleDigest::from).collect(),
            keys: keys.iter().map(|key| key.seq.into()).collect(),
            keys_sum: sum.0,
            kind: format!("{kind:?}"),
        }
    }
}

/// Digest of an [`AdmitRequest`], without the adder's reservations, which appear in the admissions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct AdmitDigest {
    candidates: Vec<Seq>,
    candidates_sum: u64,
    max_new_rows: u64,
    prefix_wait: bool,
    mixes: bool,
}

impl From<&AdmitRequest> for AdmitDigest {
    fn from(request: &AdmitRequest) -> Self {
        let AdmitRequest {
            adder: _,
            candidates,
            max_new_rows,
            prefix_wait,
            mixes,
            // Appears in the victims.
            preemption: _,
            // In the log's header.
            states: _,
            // Appears in the admissions.
            windows: _,
            // In the log's header.
            block_tokens: _,
        } = request;
        let mut sum = Sum::default();
        for candidate in candidates {
            let Candidate {
                seq: _,
                intake: _,
                namespace: _,
                tokens,
                match_limit,
                max_new_tokens,
                ignore_eos,
                waits,
                continues_at,
                rank: _,
                wants_logprobs,
                anchors,
                bypasses_cache,
                kv_tokens,
                // Inputs in the log; their effect appears in the step.
                stored: _,
                unencoded: _,
                whole: _,
            } = candidate;
            sum.add(tokens.len() as u64);
            sum.add(*match_limit as u64);
            sum.add(*max_new_tokens as u64);
            let flags = u64::from(*ignore_eos)
                | u64::from(*wants_logprobs) << 1
                | u64::from(*bypasses_cache) << 2;
            sum.add(flags << 8 | u64::from(*waits));
            sum.add(continues_at.map_or(0, |at| at as u64 + 1));
            // Empty without recurrent and window layers.
            anchors.iter().for_each(|at| sum.add(u64::from(*at)));
            if *kv_tokens > 0 {
                sum.add(*kv_tokens as u64);
            }
        }
        Self {
            candidates: candidates
                .iter()
                .map(|candidate| candidate.seq.into())
                .collect(),
            candidates_sum: sum.0,
            max_new_rows: *max_new_rows as u64,
            prefix_wait: *prefix_wait,
            mixes: *mixes,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum SettleDigest {
    Checkpoint {
        seq: Seq,
        publish: PublishDigest,
        protected_pages: u64,
        private: PageRuns,
        windows: PageRuns,
    },
    Release {
        seq: Seq,
        row: Option<RowId>,
        publish: Option<PublishDigest>,
        protected_pages: u64,
        private: PageRuns,
        windows: PageRuns,
    },
    Unlock,
}

impl From<&Settle> for SettleDigest {
    fn from(settle: &Settle) -> Self {
        match settle {
            Settle::Checkpoint(checkpoint) => {
                let SettleCheckpoint {
                    seq,
                    intake: _,
                    key,
                    protected_pages,
                    private,
                    lock: _,
                    states,
                    windows,
                } = checkpoint.as_ref();
                Self::Checkpoint {
                    seq: (*seq).into(),
                    publish: PublishDigest::of(key, states),
                    protected_pages: *protected_pages as u64,
                    private: private.ids().iter().copied().collect(),
                    windows: own_windows(windows.as_deref()),
                }
            }
            Settle::Release(release) => {
                let SettleRelease {
                    seq,
                    intake: _,
                    row,
                    key,
                    protected_pages,
                    private,
                    lock: _,
                    states,
                    returned_states: _,
                    windows,
                } = release.as_ref();
                Self::Release {
                    seq: (*seq).into(),
                    row: *row,
                    publish: key.as_ref().map(|key| PublishDigest::of(key, states)),
                    protected_pages: *protected_pages as u64,
                    private: private.ids().iter().copied().collect(),
                    windows: own_windows(windows.as_deref()),
                }
            }
            Settle::Unlock(_) | Settle::Unpin(_) => Self::Unlock,
        }
    }
}

fn own_windows(windows: Option<&RowWindows>) -> PageRuns {
    let pages = windows.into_iter().flat_map(|own| own.pages.ids());
    pages.copied().collect()
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PublishDigest {
    len: u64,
    tokens_sum: u64,
    prompt_len: u64,
    inserted_tokens: u64,
    priority: i64,
    written_by: StepId,
}

impl PublishDigest {
    fn of(key: &PublishKey, states: &[SavedState]) -> Self {
        let PublishKey {
            namespace: _,
            tokens,
            len,
            prompt_len,
            inserted_tokens,
            priority,
            written_by,
            // Derived from the submission.
            boundaries: _,
            // Saves appear in the steps.
            stored_tokens: _,
        } = key;
        let saved = states
            .iter()
            .flat_map(|saved| [saved.position as u32, saved.state.slot().get()]);
        Self {
            len: *len as u64,
            tokens_sum: Sum::of(tokens.iter().take(*len).copied().chain(saved)),
            prompt_len: *prompt_len as u64,
            inserted_tokens: *inserted_tokens as u64,
            priority: *priority,
            written_by: *written_by,
        }
    }
}

/// Digest of a [`ReservePages`] sent by the scheduler: it returns only window pages, and its verdict is empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReserveDigest {
    step: StepId,
    demands: u64,
    demands_sum: u64,
}

impl ReserveDigest {
    pub fn step(&self) -> StepId {
        self.step
    }
}

impl From<&ReservePages> for ReserveDigest {
    fn from(request: &ReservePages) -> Self {
        let ReservePages {
            step,
            returned: _,
            evicted: _,
            returned_rows: _,
            returned_states: _,
            returned_windows,
            demands,
            growing,
            verdict: _,
        } = request;
        let mut sum = Sum::default();
        for demand in demands {
            let Demand {
                seq,
                intake: _,
                pages,
                row,
                states: _,
            } = *demand;
            sum.add(seq.get());
            sum.add(u64::from(pages) << 1 | u64::from(row));
        }
        for seq in growing {
            sum.add(seq.get());
            sum.add(1 << 1);
        }
        let windows = returned_windows.ids().iter();
        windows.for_each(|page| sum.add(u64::from(page.get())));
        Self {
            step: *step,
            demands: (demands.len() + growing.len()) as u64,
            demands_sum: sum.0,
        }
    }
}
