//! The running batch: decoding sequences, the chunked prefill, and sequences that have just ended.

use super::sequence::Phase;
use crate::plan::token_ratio::NewTokenRatio;
use souffleur_base::ids::SeqId;

pub(super) struct Batch {
    running: Vec<SeqId>,
    chunked: Option<SeqId>,
    /// Sequences with newly planned chunks, which are not published yet.
    extended: Vec<SeqId>,
    /// Ended; the next plan releases their memory.
    ended: Vec<SeqId>,
    /// No memory or rows for another request until a sequence ends.
    is_full: bool,
    /// Decode steps due before the next prefill.
    due_decodes: usize,
    ratio: NewTokenRatio,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PrefillPart {
    /// A chunk that does not complete the prefill.
    Chunk,
    /// The last chunk, or the whole prefill.
    Last,
}

impl Batch {
    pub(super) fn new(ratio: NewTokenRatio) -> Self {
        Self {
            running: Vec::new(),
            chunked: None,
            extended: Vec::new(),
            ended: Vec::new(),
            is_full: false,
            due_decodes: 0,
            ratio,
        }
    }

    /// Sequences whose prefill is planned to its end, in order of admission.
    #[inline]
    pub(super) fn running(&self) -> &[SeqId] {
        &self.running
    }

    #[inline]
    pub(super) fn chunked(&self) -> Option<SeqId> {
        self.chunked
    }

    #[inline]
    pub(super) fn ended(&self) -> &[SeqId] {
        &self.ended
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.running.len() + usize::from(self.chunked.is_some())
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.chunked.is_none()
    }

    /// Adds a sequence whose next chunk is planned.
    #[inline]
    pub(super) fn extend(&mut self, seq: SeqId, part: PrefillPart) {
        match part {
            PrefillPart::Chunk => {
                debug_assert!(
                    self.chunked.is_none_or(|chunked| chunked == seq),
                    "only one prompt may be chunked at a time"
                );
                self.chunked = Some(seq);
            }
            PrefillPart::Last => {
                if self.chunked == Some(seq) {
                    self.chunked = None;
                }
                self.running.push(seq);
            }
        }
        self.extended.push(seq);
    }

    /// Moves a sequence to the ended ones; others can be admitted.
    #[inline]
    pub(super) fn end(&mut self, seq: SeqId, phase: Phase) {
        match phase {
            Phase::Waiting => {}
            Phase::Chunked => {
                if self.chunked == Some(seq) {
                    self.chunked = None;
                }
            }
            Phase::Running => {
                // Sequences that end in one step do so in batch order, so the search is short.
                if let Some(place) = self.running.iter().position(|other| *other == seq) {
                    self.running.remove(place);
                }
            }
        }
        self.is_full = false;
        self.ended.push(seq);
    }

    /// Removes a sequence that will be computed again.
    #[inline]
    pub(super) fn remove(&mut self, seq: SeqId) {
        self.running.retain(|other| *other != seq);
        if self.chunked == Some(seq) {
            self.chunked = None;
        }
        self.extended.retain(|other| *other != seq);
    }

    /// Removes all running sequences, which will be computed again.
    #[inline]
    pub(super) fn clear_running(&mut self) {
        self.running.clear();
        self.chunked = None;
        self.is_full = false;
    }

    #[inline]
    pub(super) fn take_extended(&mut self) -> Vec<SeqId> {
        std::mem::take(&mut self.extended)
    }

    #[inline]
    pub(super) fn take_ended(&mut self) -> Vec<SeqId> {
        std::mem::take(&mut self.ended)
    }

    /// Puts back an ended sequence that releases its memory with a later plan.
    #[inline]
    pub(super) fn keep_ended(&mut self, seq: SeqId) {
        self.ended.push(seq);
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    #[inline]
    pub(super) fn set_full(&mut self, is_full: bool) {
        self.is_full = is_full;
    }

    #[inline]
    pub(super) fn due_decodes(&self) -> usize {
        self.due_decodes
    }

    /// Sets the decode steps due after a prefill step that left out decodable sequences.
    #[inline]
    pub(super) fn set_due_decodes(&mut self, steps: usize) {
        self.due_decodes = steps;
    }

    /// Counts a decode step against the steps due.
    #[inline]
    pub(super) fn count_decode(&mut self) {
        self.due_decodes = self.due_decodes.saturating_sub(1);
    }

    #[inline]
    pub(super) fn ratio(&self) -> &NewTokenRatio {
        &self.ratio
    }

    #[inline]
    pub(super) fn ratio_mut(&mut self) -> &mut NewTokenRatio {
        &mut self.ratio
    }
}
