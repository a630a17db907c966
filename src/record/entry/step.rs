//! The message log's form of a step's results.

use serde::{Deserialize, Serialize};

use crate::digest::Seq;
use souffleur_base::ids::{SeqId, StepId};
use souffleur_state::grammar::GrammarFailure;
use souffleur_state::sampling::{RowLogprobs, TokenLogprobs};
use souffleur_state::step::{RowResult, RowVerdict, StepOutput};

/// The largest number of prompt log probabilities that a replay accepts per row and step.
const MAX_INPUT_LOGPROBS: u32 = 1 << 20;

/// The log's form of a [`StepOutput`]. It has only the number of log probabilities, since no decision depends on them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRows {
    step: StepId,
    rows: Vec<RowEntry>,
    /// The tokens of all rows, concatenated.
    tokens: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct RowEntry {
    seq: Seq,
    n_tokens: u32,
    accepted: u32,
    /// Number of prompt tokens with log probabilities, if requested.
    input_logprobs: Option<u32>,
    verdict: VerdictEntry,
}

/// The log's form of a [`RowVerdict`]. The first two variants encode like the boolean of older logs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum VerdictEntry {
    Open,
    NanLogits,
    GrammarDone,
    GrammarNoToken,
    GrammarTooComplex,
}

impl From<RowVerdict> for VerdictEntry {
    fn from(verdict: RowVerdict) -> Self {
        match verdict {
            RowVerdict::Open => Self::Open,
            RowVerdict::NanLogits => Self::NanLogits,
            RowVerdict::GrammarDone => Self::GrammarDone,
            RowVerdict::GrammarFailed(GrammarFailure::NoToken) => Self::GrammarNoToken,
            RowVerdict::GrammarFailed(GrammarFailure::TooComplex) => Self::GrammarTooComplex,
        }
    }
}

impl From<VerdictEntry> for RowVerdict {
    fn from(verdict: VerdictEntry) -> Self {
        match verdict {
            VerdictEntry::Open => Self::Open,
            VerdictEntry::NanLogits => Self::NanLogits,
            VerdictEntry::GrammarDone => Self::GrammarDone,
            VerdictEntry::GrammarNoToken => Self::GrammarFailed(GrammarFailure::NoToken),
            VerdictEntry::GrammarTooComplex => Self::GrammarFailed(GrammarFailure::TooComplex),
        }
    }
}

impl From<&StepOutput> for StepRows {
    fn from(output: &StepOutput) -> Self {
        let mut tokens = Vec::with_capacity(output.rows.len());
        let rows = output.rows.iter().map(|row| {
            let RowResult {
                seq,
                tokens: sampled,
                accepted,
                logprobs,
                verdict,
                drafts: _,
            } = row;
            tokens.extend_from_slice(sampled);
            RowEntry {
                seq: (*seq).into(),
                n_tokens: sampled.len() as u32,
                accepted: *accepted,
                input_logprobs: logprobs
                    .as_ref()
                    .map(|logprobs| logprobs.input.len() as u32),
                verdict: (*verdict).into(),
            }
        });
        Self {
            step: output.step,
            rows: rows.collect(),
            tokens,
        }
    }
}

impl StepRows {
    pub fn n_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Converts back to an output, with empty log probabilities.
    ///
    /// # Errors
    /// The counts are inconsistent or exceed the limit.
    pub fn output(&self) -> Result<StepOutput, String> {
        let mut tokens = self.tokens.as_slice();
        let mut rows = Vec::with_capacity(self.rows.len());
        for row in &self.rows {
            let n_tokens = row.n_tokens as usize;
            let (sampled, rest) = tokens.split_at_checked(n_tokens).ok_or_else(|| {
                format!("step {} has fewer tokens than its rows declare", self.step)
            })?;
            tokens = rest;
            let n_input = row.input_logprobs.unwrap_or(0);
            if n_input > MAX_INPUT_LOGPROBS {
                return Err(format!(
                    "a row has {n_input} prompt log probabilities, the limit is {MAX_INPUT_LOGPROBS}"
                ));
            }
            let logprobs = |n: u32| {
                Box::new(RowLogprobs {
                    input: vec![TokenLogprobs::default(); n as usize],
                    output: Vec::new(),
                    embedding: None,
                })
            };
            rows.push(RowResult {
                seq: SeqId::from(row.seq),
                tokens: sampled.into(),
                accepted: row.accepted,
                logprobs: row.input_logprobs.map(logprobs),
                verdict: row.verdict.into(),
                drafts: Default::default(),
            });
        }
        Ok(StepOutput {
            step: self.step,
            rows,
        })
    }
}
