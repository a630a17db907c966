//! Decodes of the fake executor, with drafts of which some are right.
//!
//! The slots of rejected drafts get hashes that belong to no tokens, so a step that reads one of them before it is
//! overwritten fails.

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::hashes::{garbage, mix};
use super::refusal::rejected;
use super::scores::output_scores;
use super::{FakeExecutor, FakeRow};
use souffleur_base::error::StepError;
use souffleur_base::ids::{SeqId, StepId};
use souffleur_state::sampling::RowLogprobs;
use souffleur_state::speculation::{DraftSource, RowDrafts};
use souffleur_state::step::{RowResult, RowVerdict, StateSave, StepRow};

/// Drafts for decodes with room for them.
#[derive(Clone, Debug)]
pub struct FakeDrafts {
    /// The probability that a draft is right.
    pub accept: f64,
    pub seed: u64,
    /// Tokens that end the output of each request that does not ignore EOS.
    pub eos_token_ids: Arc<[u32]>,
}

impl FakeDrafts {
    /// Whether the draft at a position of a sequence is right, in whatever step.
    pub fn is_right(&self, seq: SeqId, position: usize) -> bool {
        let hash = mix(self.seed ^ seq.get(), position as u32);
        ((hash >> 11) as f64) < self.accept * (1_u64 << 53) as f64
    }
}

/// The position and the room of a decode's plan.
#[derive(Clone, Copy)]
pub(super) struct DecodePlan {
    pub(super) step: StepId,
    pub(super) position: u32,
    pub(super) room: u32,
}

/// The accepted part of a decode.
#[derive(Default)]
struct Walk {
    tokens: SmallVec<[u32; 2]>,
    verdict: RowVerdict,
    logprobs: Option<Box<RowLogprobs>>,
}

impl FakeExecutor {
    /// Lets decodes with room have drafts.
    pub fn with_drafts(self, drafts: FakeDrafts) -> Self {
        Self {
            drafts: Some(drafts),
            ..self
        }
    }

    /// Feeds the row's last token and its drafts at the row's own position.
    pub(super) fn decode(
        &mut self,
        row: &mut FakeRow,
        work: &StepRow,
        plan: DecodePlan,
    ) -> Result<RowResult, StepError> {
        let first = self.check_decode(row, plan)?;
        let n_drafts = self.n_drafts(row, plan.room);
        self.verify(row, first)?;
        self.states.verify(&row.until(first), first)?;
        let Walk {
            tokens,
            verdict,
            logprobs,
        } = self.walk(row, work, first..first + 1 + n_drafts)?;
        let end = first + tokens.len();
        let saves = if row.speculates() || plan.room > 1 {
            self.tail_save(row, work, first..end)?
        } else {
            work.saves.clone()
        };
        self.states.feed(&row.until(end), first, &saves)?;
        self.attend_windows(row, first as u32..end as u32)?;
        self.spoil(row, end..first + 1 + n_drafts)?;
        Ok(RowResult {
            seq: work.seq,
            accepted: tokens.len() as u32,
            tokens,
            logprobs,
            verdict,
            drafts: RowDrafts {
                n_tokens: n_drafts as u32,
                source: DraftSource::OwnText,
            },
        })
    }

    /// Checks the bounds of a decode, and returns the row's own position.
    fn check_decode(&self, row: &FakeRow, plan: DecodePlan) -> Result<usize, StepError> {
        let DecodePlan {
            step,
            position,
            room,
        } = plan;
        let known = row.tokens.len();
        let own = known.saturating_sub(1);
        // Only the tokens of the previous step may be unknown to a plan, and only their number.
        let is_previous = step.get() <= row.last_step.get() + 1;
        let most = if row.speculates() && is_previous {
            row.last_sampled
        } else {
            0
        };
        let lag = own.checked_sub(position as usize);
        if room == 0 || lag.is_none_or(|lag| lag > most) {
            return Err(StepError::Rejected(format!(
                "cannot decode position {position}: the row has {known} tokens"
            )));
        }
        let last = own + room as usize - 1;
        self.slot(row, last)?;
        let n_windows = row.window_pages.len() * self.options.page_size;
        if self.windows.is_some() && n_windows <= last {
            let reason = format!("has no window page for position {last}");
            return Err(rejected(row.seq, &reason));
        }
        Ok(own)
    }

    /// The number of drafts: none whose successor would exceed the output's limit.
    fn n_drafts(&self, row: &FakeRow, room: u32) -> usize {
        if self.drafts.is_none() {
            return 0;
        }
        let n_output = row.tokens.len() - row.prompt_tokens;
        let n_left = (row.sampling.max_new_tokens as usize).saturating_sub(n_output + 1);
        n_left.min(room as usize - 1)
    }

    /// Computes and samples positions up to the first one whose sampled token ends the row or differs from its draft.
    fn walk(
        &mut self,
        row: &mut FakeRow,
        work: &StepRow,
        positions: Range<usize>,
    ) -> Result<Walk, StepError> {
        let vocab_size = self.options.vocab_size;
        let mut walk = Walk {
            logprobs: work.logprobs.as_ref().map(|_| Box::default()),
            ..Walk::default()
        };
        let first = positions.start;
        for position in positions {
            let hash = self.compute(row, position)?;
            let (token, verdict) = row.sample(hash, vocab_size);
            if position > first && matches!(verdict, RowVerdict::GrammarFailed(_)) {
                // The next step computes this position again, and reports the failure.
                row.tokens.pop();
                break;
            }
            walk.tokens.push(token);
            walk.verdict = verdict;
            if let (Some(wish), Some(logprobs)) = (&work.logprobs, &mut walk.logprobs) {
                let scores = output_scores(hash, token, vocab_size, wish);
                logprobs.output.push(scores);
            }
            if self.ends(row, token, verdict) || !self.is_right(row.seq, position + 1) {
                break;
            }
        }
        Ok(walk)
    }

    fn is_right(&self, seq: SeqId, position: usize) -> bool {
        let drafts = self.drafts.as_ref();
        drafts.is_some_and(|drafts| drafts.is_right(seq, position))
    }

    /// Whether a row's output ends with its last token.
    fn ends(&self, row: &FakeRow, token: u32, verdict: RowVerdict) -> bool {
        let n_output = row.tokens.len() - row.prompt_tokens;
        let eos = self
            .drafts
            .iter()
            .flat_map(|drafts| drafts.eos_token_ids.iter());
        let script = row.answer.iter().filter_map(|answer| answer.last());
        let is_stop = || {
            let mut ends = eos.chain(script).chain(row.sampling.stop_token_ids.iter());
            ends.any(|end| *end == token)
        };
        verdict != RowVerdict::Open
            || n_output >= row.sampling.max_new_tokens as usize
            || (!row.sampling.ignore_eos && is_stop())
    }

    /// The copy of the state at the last page end that the accepted `positions` cross, if the step is to make one.
    fn tail_save(
        &self,
        row: &FakeRow,
        work: &StepRow,
        positions: Range<usize>,
    ) -> Result<SmallVec<[StateSave; 1]>, StepError> {
        let page_size = self.options.page_size;
        let wish = match work.saves.as_slice() {
            [] => return Ok(smallvec![]),
            [_] if row.state.is_none() => {
                return Err(rejected(row.seq, "saves a state that it does not have"));
            }
            [wish] if (wish.position as usize).is_multiple_of(page_size) => wish,
            [_] => return Err(rejected(row.seq, "saves a state within a page")),
            _ => return Err(rejected(row.seq, "saves two states in a decode")),
        };
        let end = positions.end / page_size * page_size;
        let crossed = (end > positions.start).then_some(StateSave {
            position: end as u32,
            slot: wish.slot,
        });
        Ok(crossed.into_iter().collect())
    }

    /// Writes the K/V of rejected drafts.
    fn spoil(&mut self, row: &FakeRow, positions: Range<usize>) -> Result<(), StepError> {
        for position in positions.clone() {
            let slot = self.slot(row, position)?;
            self.kv[slot] = garbage(row.seq.get(), position);
        }
        match &mut self.windows {
            Some(windows) => windows.spoil(row.seq, &row.window_pages, positions),
            None => Ok(()),
        }
    }
}
