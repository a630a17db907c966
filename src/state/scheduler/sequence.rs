//! A live request: its phase, tokens, lengths and memory.

use std::sync::Arc;

use crate::cache::prefix_history::Departure;
use crate::pool::pages::{NodeLock, PageRun, Pages, RowWindows};
use crate::pooling::Pooling;
use crate::sampling::LogprobWish;
use crate::scheduler::row_states::RowStates;
use crate::scheduler::submission::{Resumption, Submission};
use crate::scheduler::tier::SequenceTier;
use crate::scheduler::vision::SequenceVision;
use crate::speculation::MAX_ROOM;
use crate::step::{RowStart, StateStart};
use souffleur_base::ids::{RowId, SeqId, StepId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waits for its first admission, or for readmission after a retraction or preemption.
    Waiting,
    Chunked,
    /// The whole prefill is planned; the sequence decodes if it generates output.
    Running,
}

/// A sequence's memory.
///
/// ```text
/// pages   [0 .. protected_pages)                  owned by the tree, kept by `lock`
///         [protected_pages .. +private.len())     owned by the sequence
/// tokens  [0 .. committed)                        K/V written or planned to be, if all drafts are accepted
/// ```
#[derive(Debug)]
#[repr(C)] // keeps the order, in which the fields that every step touches come first
pub struct SequenceKv {
    /// Tokens whose K/V the steps planned so far write, if they accept all drafts.
    pub committed: usize,
    /// Pages of the row, also while a settlement has some of them.
    pub n_pages: usize,
    /// The most query tokens of the next step, if it decodes the sequence.
    pub room: u32,
    pub row: RowId,
    /// Private pages, after the tree's.
    pub private: Pages,
    pub protected_pages: usize,
    pub lock: NodeLock,
    /// Length of the prefix whose tree nodes have already counted this request as a hit.
    pub inserted_tokens: usize,
    pub states: Option<Box<RowStates>>,
    /// Private window pages after the tree's, without pages that have left the window; `None` without window layers.
    pub windows: Option<Box<RowWindows>>,
    /// Tokens that came from the cache or the KV store at this admission.
    pub reused_tokens: usize,
}

/// A live request. Fields that every step touches come first and close together: each step iterates over a large batch
/// several times, and over as many cache lines as these fields span.
#[derive(Debug)]
#[repr(C)] // keeps this order
pub struct Sequence {
    pub phase: Phase,
    /// The request has ended; the next plan releases its memory.
    pub has_ended: bool,
    /// End-of-sequence and stop tokens end the sequence.
    ends_at_stop_tokens: bool,
    /// The output's first tokens, which its grammar determines, have been reported.
    pub is_opening_sent: bool,
    /// Once ended, the sequence leaves its K/V in the prefix cache.
    pub publish: bool,
    pub rows_in_flight: u32,
    /// Query tokens of the steps in flight that may be rejected drafts.
    pub unsure: u32,
    /// The most query tokens in a step, at least 1. Copied from the request.
    max_room: u32,
    /// Copied from the request, like `ends_at_stop_tokens`, since every plan and every token reads these fields.
    max_new_tokens: u32,
    pub retractions: u32,
    /// Prompt tokens from the cache at the first admission.
    pub cached_tokens: Option<u32>,
    /// Number of output tokens once every planned step is done, if the steps accept all drafts.
    pub planned_output: usize,
    pub output: Vec<u32>,
    /// The last step that writes K/V of this sequence.
    pub last_step: StepId,
    pub kv: Option<SequenceKv>,
    pub request: Submission,
    /// Prompt and output at the (re)admission: the input of the prefill.
    pub fill: Arc<[u32]>,
    /// Prompt positions whose log probabilities were delivered.
    pub input_logprobs_until: u32,
    /// When a timeout check first found the sequence admitted, in seconds of the clock of `submitted_s`.
    pub running_since_s: Option<f64>,
    /// When the caller noted the first admission, in seconds of the clock of `submitted_s`.
    pub admitted_s: Option<f64>,
    /// Number of times that a step with the sequence was lost, or was in flight when an earlier one was lost.
    pub losses: u32,
    /// How often the request was continued after a death.
    pub resumptions: u32,
    /// Number of losses since the sequence was last cleared in which it was alone (see `trials`).
    pub lone_losses: u8,
    /// Number of plans that held the sequence back while another prefill computed its prefix.
    pub waits: u8,
    /// Tokens that the engine had prefilled when the request arrived.
    pub arrival_prefilled_tokens: u64,
    /// Number of valid output tokens of an ended sequence: a stop string may remove some.
    pub kept_output: usize,
    /// Lookup and fetch in the KV store; `None` without a store.
    pub tier: Option<Box<SequenceTier>>,
    /// The images that came without vectors; `None` without any, and without a vision tower.
    pub vision: Option<Box<SequenceVision>>,
    /// Where the prompt diverged from the tree at the first admission, until it is reported.
    pub departure: Option<Box<Departure>>,
}

impl Sequence {
    pub fn new(request: Submission) -> Self {
        Self {
            fill: initial_fill(&request),
            max_new_tokens: request.sampling.max_new_tokens,
            max_room: max_room(&request),
            ends_at_stop_tokens: !request.sampling.ignore_eos,
            phase: Phase::Waiting,
            output: request.opening.to_vec(),
            planned_output: request.opening.len(),
            is_opening_sent: request.opening.is_empty(),
            request,
            rows_in_flight: 0,
            unsure: 0,
            kv: None,
            last_step: StepId::new(0),
            cached_tokens: None,
            input_logprobs_until: 0,
            running_since_s: None,
            admitted_s: None,
            retractions: 0,
            losses: 0,
            lone_losses: 0,
            resumptions: 0,
            waits: 0,
            arrival_prefilled_tokens: 0,
            has_ended: false,
            tier: None,
            vision: None,
            departure: None,
            kept_output: 0,
            publish: false,
        }
    }

    /// A sequence that continues after the tokens that its client was told. Its times are on the clock of `now_s`.
    pub fn resumed(resumption: Resumption, now_s: f64) -> Self {
        let Resumption {
            mut submission,
            told,
            input_logprobs,
            cached_tokens,
            retractions,
            resumptions,
            age_s,
            running_s,
        } = resumption;
        submission.submitted_s = now_s - age_s;
        let was_told = !told.is_empty();
        if was_told {
            submission.opening = told;
        }
        let mut sequence = Self::new(submission);
        sequence.is_opening_sent |= was_told;
        sequence.cached_tokens = cached_tokens;
        sequence.retractions = retractions;
        sequence.resumptions = resumptions;
        sequence.running_since_s = running_s.map(|running_s| now_s - running_s);
        sequence.admitted_s = sequence.running_since_s;
        if input_logprobs > 0 {
            sequence.count_input_logprobs(input_logprobs as usize);
        }
        sequence
    }

    /// Prompt tokens among the first `tokens`; the rest are a grammar's opening tokens, cached with the prompt.
    pub fn prompt_tokens_in(&self, tokens: usize) -> usize {
        tokens.min(self.request.prompt.len())
    }

    pub fn max_new_tokens(&self) -> usize {
        self.max_new_tokens as usize
    }

    pub fn ends_at_stop_tokens(&self) -> bool {
        self.ends_at_stop_tokens
    }

    pub fn remaining_new_tokens(&self) -> usize {
        self.max_new_tokens().saturating_sub(self.planned_output)
    }

    /// The most query tokens that the next step can use: all but one are drafts.
    pub fn usable_room(&self) -> u32 {
        let remaining = u32::try_from(self.remaining_new_tokens()).unwrap_or(u32::MAX);
        self.max_room.min(remaining).max(1)
    }

    /// The largest room of a step of this sequence.
    pub fn max_room(&self) -> u32 {
        self.max_room
    }

    /// The start of the sequence's row after cached pages.
    pub fn row_start(
        &self,
        (row, seq): (RowId, SeqId),
        prefix: PageRun,
        state: Option<StateStart>,
    ) -> RowStart {
        let request = &self.request;
        RowStart {
            row,
            seq,
            tokens: self.fill.clone(),
            prompt_tokens: request.prompt.len() as u32,
            sampling: request.sampling.clone(),
            grammar: request.grammar.clone(),
            vectors: request.vectors.clone(),
            images: self.row_images(),
            pooling: request.pooling,
            draft_texts: request.draft_texts.clone(),
            prefix,
            state,
        }
    }

    /// Counts a planned decode of the admitted sequence. Returns the least number of tokens with K/V before it, and its
    /// room.
    pub fn plan_decode(&mut self) -> (usize, u32) {
        let unsure = self.unsure as usize;
        let kv = self.held_kv_mut();
        let (certain, room) = (kv.committed - unsure, std::mem::replace(&mut kv.room, 1));
        kv.committed += room as usize;
        self.unsure += room - 1;
        self.planned_output += room as usize;
        (certain, room)
    }

    /// Takes the query tokens of a decode with this room that the executor did not accept. A retracted sequence has
    /// none to take back.
    pub fn give_back(&mut self, room: u32, accepted: u32) {
        let rejected = room.saturating_sub(accepted) as usize;
        if let Some(kv) = &mut self.kv
            && rejected > 0
        {
            kv.committed -= rejected;
            self.planned_output -= rejected;
        }
    }

    /// True if the sequence can decode: its last token is known or planned, and its length limit is not reached, even if
    /// the steps in flight accept all drafts.
    pub fn can_decode(&self) -> bool {
        self.phase == Phase::Running && !self.has_ended && self.remaining_new_tokens() > 0
    }

    /// True for a request without output (`max_new_tokens` is 0) once its last prefill chunk is done.
    pub fn is_prefill_only_done(&self) -> bool {
        self.max_new_tokens() == 0 && self.phase == Phase::Running && self.rows_in_flight == 0
    }

    /// # Panics
    /// If the sequence is not admitted.
    pub fn held_kv(&self) -> &SequenceKv {
        let kv = self.kv.as_ref();
        kv.expect("an admitted sequence holds memory")
    }

    pub fn held_kv_mut(&mut self) -> &mut SequenceKv {
        let kv = self.kv.as_mut();
        kv.expect("an admitted sequence holds memory")
    }

    pub fn private_pages(&self) -> usize {
        self.kv.as_ref().map_or(0, |kv| kv.private.len())
    }

    pub fn private_windows(&self) -> usize {
        let windows = self.kv.as_ref().and_then(|kv| kv.windows.as_ref());
        windows.map_or(0, |windows| windows.pages.len())
    }

    pub fn states(&self) -> usize {
        let states = self.kv.as_ref().and_then(|kv| kv.states.as_ref());
        states.map_or(0, |states| states.count())
    }

    /// Upper bound of the prefix from the cache, for this many tokens: at least one token is computed for its logits,
    /// and input log probabilities need logits from their start on.
    pub fn match_limit_of(&self, fill_tokens: usize) -> usize {
        // Mean pooling needs each token's hidden state, and the cache has only K/V.
        if self.request.bypasses_cache || self.request.pooling == Some(Pooling::Mean) {
            return 0;
        }
        let limit = fill_tokens.saturating_sub(1);
        match self.undelivered_input_start() {
            Some(start) => limit.min(start as usize),
            None => limit,
        }
    }

    /// First prompt position whose input log probabilities are requested and not delivered yet.
    pub fn undelivered_input_start(&self) -> Option<u32> {
        let start = self
            .request
            .logprobs
            .as_ref()?
            .start?
            .max(self.input_logprobs_until);
        ((start as usize + 1) < self.request.prompt.len()).then_some(start)
    }

    /// The log probabilities that a prefill row requests. Those of input tokens begin after the ones already delivered.
    pub fn prefill_logprobs(&self) -> Option<Arc<LogprobWish>> {
        let requested = self.request.logprobs.as_ref()?;
        let start = self.undelivered_input_start();
        if requested.start == start {
            return Some(requested.clone());
        }
        Some(Arc::new(LogprobWish {
            start,
            ..LogprobWish::clone(requested)
        }))
    }

    /// Leading tokens that the KV store has.
    pub fn stored_tokens(&self) -> usize {
        let tier = self.tier.as_ref();
        tier.map_or(0, |tier| tier.stored_tokens())
    }

    pub fn loaded_tokens(&self) -> u32 {
        self.tier.as_ref().map_or(0, |tier| tier.loaded_tokens())
    }

    pub fn all_tokens(&self, n_output: usize) -> Arc<[u32]> {
        if n_output == 0 {
            return self.request.prompt.clone();
        }
        self.request
            .prompt
            .iter()
            .chain(&self.output[..n_output])
            .copied()
            .collect()
    }

    pub fn count_input_logprobs(&mut self, n: usize) {
        if let Some(start) = self.request.logprobs.as_ref().and_then(|spec| spec.start) {
            self.input_logprobs_until = self.input_logprobs_until.max(start) + n as u32;
        }
    }

    /// Makes the sequence wait again; it keeps its output.
    pub fn restart(&mut self) {
        self.phase = Phase::Waiting;
        self.planned_output = self.output.len();
        self.waits = 0;
    }
}

/// Live sequences by id: a slab whose ids are never reused (slot in the low half, generation in the high half).
#[derive(Debug, Default)]
pub struct SequenceTable {
    slots: Vec<Option<(SeqId, Sequence)>>,
    free: Vec<u32>,
    next_generation: u64,
}

impl SequenceTable {
    /// Assigns only ids that a table in which at most `n` sequences were inserted has not assigned.
    pub fn begin_after(&mut self, n: u64) {
        self.next_generation = self.next_generation.max(n);
    }

    pub fn insert(&mut self, sequence: Sequence) -> SeqId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("admission bounds the number of sequences")
        });
        self.next_generation += 1;
        let seq = SeqId::new(self.next_generation << 32 | u64::from(slot));
        self.slots[slot as usize] = Some((seq, sequence));
        seq
    }

    pub fn get(&self, seq: SeqId) -> Option<&Sequence> {
        match self.slots.get(slot_of(seq)) {
            Some(Some((id, sequence))) if *id == seq => Some(sequence),
            _ => None,
        }
    }

    pub fn get_mut(&mut self, seq: SeqId) -> Option<&mut Sequence> {
        match self.slots.get_mut(slot_of(seq)) {
            Some(Some((id, sequence))) if *id == seq => Some(sequence),
            _ => None,
        }
    }

    pub fn remove(&mut self, seq: SeqId) -> Option<Sequence> {
        self.get(seq)?;
        self.free.push(slot_of(seq) as u32);
        self.slots[slot_of(seq)]
            .take()
            .map(|(_, sequence)| sequence)
    }

    pub fn iter(&self) -> impl Iterator<Item = (SeqId, &Sequence)> {
        self.slots
            .iter()
            .flatten()
            .map(|(seq, sequence)| (*seq, sequence))
    }

    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl std::ops::Index<SeqId> for SequenceTable {
    type Output = Sequence;

    /// # Panics
    /// If the sequence is not live: the scheduler's lists contain only live ones.
    fn index(&self, seq: SeqId) -> &Sequence {
        self.get(seq)
            .expect("the scheduler's lists hold live sequences")
    }
}

impl std::ops::IndexMut<SeqId> for SequenceTable {
    fn index_mut(&mut self, seq: SeqId) -> &mut Sequence {
        self.get_mut(seq)
            .expect("the scheduler's lists hold live sequences")
    }
}

fn max_room(request: &Submission) -> u32 {
    let wanted = request.sampling.speculative_num_draft_tokens;
    wanted.unwrap_or(1).clamp(1, MAX_ROOM)
}

/// The prompt, then the opening tokens of the output.
fn initial_fill(request: &Submission) -> Arc<[u32]> {
    if request.opening.is_empty() {
        return request.prompt.clone();
    }
    let tokens = request.prompt.iter().chain(request.opening.iter());
    tokens.copied().collect()
}

fn slot_of(seq: SeqId) -> usize {
    (seq.get() & u64::from(u32::MAX)) as usize
}
