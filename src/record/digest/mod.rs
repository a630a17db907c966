//! Digests of the scheduler's messages, which a replay compares with the recorded ones.
//!
//! A digest has ids, lengths and counts, but of long lists only a checksum. It omits values that the inputs determine,
//! or whose differences appear in another digest.
//!
//! Values are destructured field by field, so that a new field of a plan fails to compile until it is compared or
//! explicitly ignored.

mod answer;
mod plan;
mod step;

use serde::{Deserialize, Serialize};

use souffleur_base::ids::{IntakeId, PageId, SeqId, StepId};
use souffleur_state::scheduler::Next;
use souffleur_state::scheduler::news::{RequestEnd, RequestTokens};

pub use answer::{PlannedDigest, ProbedDigest};
pub use plan::{PlanDigest, ProbeDigest, ReserveDigest};
pub use step::StepDigest;

/// A [`SeqId`] split into its two halves, since small numbers encode in few bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seq {
    /// The number of the request, in order of arrival.
    number: u32,
    slot: u32,
}

impl From<SeqId> for Seq {
    fn from(seq: SeqId) -> Self {
        Self {
            number: (seq.get() >> 32) as u32,
            slot: seq.get() as u32,
        }
    }
}

impl From<Seq> for SeqId {
    fn from(seq: Seq) -> Self {
        Self::new(u64::from(seq.number) << 32 | u64::from(seq.slot))
    }
}

/// A checksum of a list of numbers that the log omits.
#[derive(Clone, Copy, Debug, Default)]
struct Sum(u64);

impl Sum {
    fn of(numbers: impl IntoIterator<Item = u32>) -> u64 {
        let mut sum = Self::default();
        for number in numbers {
            sum.add(u64::from(number));
        }
        sum.0
    }

    fn add(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// Runs of consecutive page ids: first id and length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageRuns(Vec<(PageId, u32)>);

impl FromIterator<PageId> for PageRuns {
    fn from_iter<I: IntoIterator<Item = PageId>>(pages: I) -> Self {
        let mut runs: Vec<(PageId, u32)> = Vec::new();
        for page in pages {
            match runs.last_mut() {
                Some((first, n)) if first.get().checked_add(*n) == Some(page.get()) => *n += 1,
                _ => runs.push((page, 1)),
            }
        }
        Self(runs)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NextDigest {
    Nothing,
    ProbePrefixes(ProbeDigest),
    PlanStep(PlanDigest),
    ReservePages(ReserveDigest),
    RunStep(StepDigest),
}

impl From<&Next> for NextDigest {
    fn from(next: &Next) -> Self {
        match next {
            Next::Nothing => Self::Nothing,
            Next::ProbePrefixes(probe) => Self::ProbePrefixes(probe.as_ref().into()),
            Next::PlanStep(plan) => Self::PlanStep(plan.as_ref().into()),
            Next::ReservePages(reserve) => Self::ReservePages(reserve.as_ref().into()),
            Next::RunStep(plan) => Self::RunStep(plan.as_ref().into()),
        }
    }
}

impl NextDigest {
    pub fn message(&self) -> &'static str {
        match self {
            Self::Nothing => "no message",
            Self::ProbePrefixes(_) => "ProbePrefixes",
            Self::PlanStep(_) => "PlanStep",
            Self::ReservePages(_) => "ReservePages",
            Self::RunStep(_) => "RunStep",
        }
    }

    pub fn step(&self) -> Option<StepId> {
        match self {
            Self::Nothing => None,
            Self::ProbePrefixes(probe) => Some(probe.step()),
            Self::PlanStep(plan) => Some(plan.step()),
            Self::ReservePages(reserve) => Some(reserve.step()),
            Self::RunStep(plan) => Some(plan.step()),
        }
    }
}

fn seqs(seqs: &[SeqId]) -> Vec<Seq> {
    seqs.iter().map(|seq| (*seq).into()).collect()
}

/// Digest of the messages to the Tokenizer: ended requests and their reasons, and a checksum of the tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewsDigest {
    requests: u64,
    tokens_sum: u64,
    ends: Vec<(IntakeId, String)>,
}

impl NewsDigest {
    pub fn ended(&self) -> impl Iterator<Item = IntakeId> + '_ {
        self.ends.iter().map(|(intake, _)| *intake)
    }
}

impl From<&[RequestTokens]> for NewsDigest {
    fn from(batch: &[RequestTokens]) -> Self {
        let mut sum = Sum::default();
        let mut ends = Vec::new();
        for news in batch {
            let RequestTokens {
                intake,
                tokens,
                logprobs: _,
                cached_tokens,
                // Loads appear in the steps.
                loaded_tokens: _,
                num_retractions,
                // Logs leave them out: they change counts only.
                drafts: _,
                end,
            } = news;
            sum.add(intake.get());
            tokens.iter().for_each(|token| sum.add(u64::from(*token)));
            sum.add(u64::from(*cached_tokens) << 32 | u64::from(*num_retractions));
            ends.extend(end.as_ref().map(|end| (*intake, end_text(end))));
        }
        Self {
            requests: batch.len() as u64,
            tokens_sum: sum.0,
            ends,
        }
    }
}

fn end_text(end: &RequestEnd) -> String {
    match end {
        RequestEnd::Finished(reason) => format!("{reason:?}"),
        RequestEnd::Failed(error) => error.to_string(),
    }
}
