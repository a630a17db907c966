//! What an executor needs to verify drafts: proposers for its rows, and a controller.

use std::fmt;
use std::sync::Arc;

use souffleur_state::prompt_images::KEY_BIT;
use souffleur_state::speculation::{Proposer, TextLimits, TextProposer};
use souffleur_state::step::RowStart;

/// How an executor speculates.
#[derive(Clone)]
pub struct Speculation {
    pub proposers: Arc<dyn MakeProposer>,
    /// Whether steps have drafts only where measured times show that they pay. Otherwise each step has all proposed
    /// drafts, as tests need them.
    pub is_controlled: bool,
}

/// Makes the proposers of rows.
pub trait MakeProposer: Send + Sync {
    /// The proposer of a row that starts; `None` for a row without drafts.
    fn make(&self, start: &RowStart) -> Option<Box<dyn Proposer>>;
}

impl fmt::Debug for Speculation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Speculation")
            .field("is_controlled", &self.is_controlled)
            .finish_non_exhaustive()
    }
}

/// Makes proposers that search the row's prompt and output and its draft texts: prompt lookup decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NgramProposers {
    /// Occurrences that share more tokens than this with the end of a row's text count as equally long.
    pub max_match: usize,
    /// The most tokens of a row's text that are searched, and of its draft texts: up to 16 bytes of memory each.
    pub capacity: usize,
    pub vocab_size: usize,
}

impl MakeProposer for NgramProposers {
    fn make(&self, start: &RowStart) -> Option<Box<dyn Proposer>> {
        let n_query_tokens = start.sampling.speculative_num_draft_tokens;
        let has_drafts = n_query_tokens.is_some_and(|n| n > 1);
        // A prompt of vectors has placeholders as tokens, and an embedding request has no output.
        if !has_drafts || start.vectors.is_some() || start.pooling.is_some() {
            return None;
        }
        let (prompt, output) = start.tokens.split_at(start.prompt_tokens as usize);
        let most_tokens = prompt.len() + start.sampling.max_new_tokens as usize;
        let limits = TextLimits {
            own_tokens: self.capacity.min(most_tokens),
            other_tokens: self.capacity,
            max_match: self.max_match,
            n_ids: self.vocab_size.min(KEY_BIT as usize) as u32,
        };
        let mut proposer = TextProposer::new(prompt, &start.draft_texts, limits);
        proposer.extend(output);
        Some(Box::new(proposer))
    }
}

#[cfg(test)]
mod tests;
