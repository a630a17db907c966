//! One request inside the engine: its tokens, its lengths, its hold on memory.

use std::sync::Arc;

use crate::ids::{RowId, SeqId, StepId};
use crate::state::cache::prefix_history::Departure;
use crate::state::pool::pages::{NodeLock, Pages, RowWindows};
use crate::state::pooling::Pooling;
use crate::state::scheduler::row_states::RowStates;
use crate::state::scheduler::submission::Submission;
use crate::state::scheduler::tier::SequenceTier;

/// Where a sequence stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waits for its first admission, or for the next after a retraction.
    Waiting,
    /// Its prefill is cut into chunks and not at its end.
    Chunked,
    /// Its prefill is planned to its end; it decodes.
    Running,
}

/// A sequence's hold on memory.
///
/// ```text
/// pages   [0 .. protected_pages)                  owned by the tree, kept by `lock`
///         [protected_pages .. +private.len())     owned here
/// tokens  [0 .. committed)                        K/V written or planned to be
/// ```
#[derive(Debug)]
#[repr(C)] // as in `Sequence`
pub struct SequenceKv {
    /// Tokens whose K/V is written by the steps planned so far.
    pub committed: usize,
    /// Row of the page table.
    pub row: RowId,
    /// Pages behind those that the tree owns.
    pub private: Pages,
    /// Pages that the tree owns.
    pub protected_pages: usize,
    /// Keeps the tree's part of the pages.
    pub lock: NodeLock,
    /// Tokens of this request that counted as a cache hit.
    pub inserted_tokens: usize,
    /// Its states, where layers keep any.
    pub states: Option<Box<RowStates>>,
    /// Window pages behind those that the tree owns, as far as they are seen; `None` where layers have no windows.
    pub windows: Option<Box<RowWindows>>,
}

/// One request inside the engine. Fields that every step touches come first and close together: a large batch is walked through
/// several times a step, and so are as many cache lines as these parts lie on.
#[derive(Debug)]
#[repr(C)] // in this order
pub struct Sequence {
    /// Where it stands.
    pub phase: Phase,
    /// Its memory is given back by the next plan.
    pub has_ended: bool,
    /// Some tokens end it.
    heeds_stops: bool,
    /// The tokens that its output begins with were told.
    pub is_opening_told: bool,
    /// Publishes what it computed when it gives its memory back.
    pub publish: bool,
    /// Rows of this sequence in steps that are not done.
    pub rows_in_flight: u32,
    /// Taken from the request, as `heeds_stops`: every plan and every token asks for them.
    max_new_tokens: u32,
    /// Times retracted.
    pub retractions: u32,
    /// Prompt tokens that came from the cache at the first admission.
    pub cached_tokens: Option<u32>,
    /// Output tokens known once every planned step is done.
    pub planned_output: usize,
    /// Output tokens known.
    pub output: Vec<u32>,
    /// The last step that writes K/V of this sequence.
    pub last_step: StepId,
    /// The hold on memory while admitted.
    pub kv: Option<SequenceKv>,
    /// The request's parameters.
    pub request: Submission,
    /// Prompt and output at the (re)admission: what the prefill computes.
    pub fill: Arc<[u32]>,
    /// Prompt positions whose log probabilities have been delivered.
    pub input_logprobs_until: u32,
    /// Since when it is known to have been admitted, in seconds of the clock of `submitted_s`.
    pub running_since_s: Option<f64>,
    /// Times a step that held it was lost.
    pub losses: u32,
    /// Plans it was held back for a prefix in flight.
    pub waits: u8,
    /// Prompt tokens that the engine had prefilled when it arrived.
    pub arrival_prefilled_tokens: u64,
    /// Output tokens that count, once ended (a stop string may trim).
    pub kept_output: usize,
    /// The part that the store has of it; `None` without a store.
    pub tier: Option<Box<SequenceTier>>,
    /// What the tree saw at the first admission, until it is told.
    pub departure: Option<Box<Departure>>,
}

impl Sequence {
    /// A sequence that waits for its first admission.
    pub fn new(request: Submission) -> Self {
        Self {
            fill: opened(&request),
            max_new_tokens: request.sampling.max_new_tokens,
            heeds_stops: !request.sampling.ignore_eos,
            phase: Phase::Waiting,
            output: request.opening.to_vec(),
            planned_output: request.opening.len(),
            is_opening_told: request.opening.is_empty(),
            request,
            rows_in_flight: 0,
            kv: None,
            last_step: StepId::new(0),
            cached_tokens: None,
            input_logprobs_until: 0,
            running_since_s: None,
            retractions: 0,
            losses: 0,
            waits: 0,
            arrival_prefilled_tokens: 0,
            has_ended: false,
            tier: None,
            departure: None,
            kept_output: 0,
            publish: false,
        }
    }

    /// Returns how many of its first `tokens` are the prompt's: an output that a grammar opens follows the prompt in the
    /// first prefill, and may be cached as well.
    pub fn of_prompt(&self, tokens: usize) -> usize {
        tokens.min(self.request.prompt.len())
    }

    /// Most tokens it may generate.
    pub fn max_new_tokens(&self) -> usize {
        self.max_new_tokens as usize
    }

    /// Whether end-of-sequence tokens and the request's stop tokens end it.
    pub fn heeds_stops(&self) -> bool {
        self.heeds_stops
    }

    /// Tokens it may still generate, counting planned ones as generated.
    pub fn remaining_new_tokens(&self) -> usize {
        self.max_new_tokens().saturating_sub(self.planned_output)
    }

    /// Can take part in a decode: its last token is known or will be, and the length does not end it.
    pub fn can_decode(&self) -> bool {
        self.phase == Phase::Running && !self.has_ended && self.remaining_new_tokens() > 0
    }

    /// True for a request that generates nothing, once the last chunk of its prefill is back.
    pub fn is_prefill_alone_done(&self) -> bool {
        self.max_new_tokens() == 0 && self.phase == Phase::Running && self.rows_in_flight == 0
    }

    /// The hold on memory of a sequence that is admitted.
    ///
    /// # Panics
    /// If it holds none.
    pub fn held_kv(&self) -> &SequenceKv {
        let kv = self.kv.as_ref();
        kv.expect("an admitted sequence holds memory")
    }

    /// As [`held_kv`](Self::held_kv).
    pub fn held_kv_mut(&mut self) -> &mut SequenceKv {
        let kv = self.kv.as_mut();
        kv.expect("an admitted sequence holds memory")
    }

    /// Pages that are its own.
    pub fn private_pages(&self) -> usize {
        self.kv.as_ref().map_or(0, |kv| kv.private.len())
    }

    /// Window pages that are its own.
    pub fn private_windows(&self) -> usize {
        let windows = self.kv.as_ref().and_then(|kv| kv.windows.as_ref());
        windows.map_or(0, |windows| windows.pages.len())
    }

    /// States that it holds.
    pub fn states(&self) -> usize {
        let states = self.kv.as_ref().and_then(|kv| kv.states.as_ref());
        states.map_or(0, |states| states.count())
    }

    /// Longest prefix of so many tokens that may come from the cache: one token at least is computed for its logits, and input log
    /// probabilities need the logits from their start on.
    pub fn match_limit_of(&self, fill_tokens: usize) -> usize {
        // A mean needs the state of each token, and the cache has keys and values only.
        if self.request.bypasses_cache || self.request.pooling == Some(Pooling::Mean) {
            return 0;
        }
        let limit = fill_tokens.saturating_sub(1);
        match self.wished_input_start() {
            Some(start) => limit.min(start as usize),
            None => limit,
        }
    }

    /// First prompt position whose logits are still wanted for input log probabilities.
    pub fn wished_input_start(&self) -> Option<u32> {
        let start = self
            .request
            .logprobs
            .as_ref()?
            .start?
            .max(self.input_logprobs_until);
        ((start as usize + 1) < self.request.prompt.len()).then_some(start)
    }

    /// Tokens from the beginning on that the store has.
    pub fn stored_tokens(&self) -> usize {
        let tier = self.tier.as_ref();
        tier.map_or(0, |tier| tier.stored_tokens())
    }

    /// Prompt tokens that came from the store at the first admission.
    pub fn loaded_tokens(&self) -> u32 {
        self.tier.as_ref().map_or(0, |tier| tier.loaded_tokens())
    }

    /// Prompt and output as one slice's worth of tokens.
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

    /// Counts input log probabilities as delivered.
    pub fn count_input_logprobs(&mut self, n: usize) {
        if let Some(start) = self.request.logprobs.as_ref().and_then(|wish| wish.start) {
            self.input_logprobs_until = self.input_logprobs_until.max(start) + n as u32;
        }
    }

    /// Gives up the row and starts over as a waiting sequence that keeps its output.
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
    /// Takes a sequence in.
    pub fn insert(&mut self, sequence: Sequence) -> SeqId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("admission bounds the sequences")
        });
        self.next_generation += 1;
        let seq = SeqId::new(self.next_generation << 32 | u64::from(slot));
        self.slots[slot as usize] = Some((seq, sequence));
        seq
    }

    /// The sequence, if it is live.
    pub fn get(&self, seq: SeqId) -> Option<&Sequence> {
        match self.slots.get(slot_of(seq)) {
            Some(Some((id, sequence))) if *id == seq => Some(sequence),
            _ => None,
        }
    }

    /// The sequence, if it is live.
    pub fn get_mut(&mut self, seq: SeqId) -> Option<&mut Sequence> {
        match self.slots.get_mut(slot_of(seq)) {
            Some(Some((id, sequence))) if *id == seq => Some(sequence),
            _ => None,
        }
    }

    /// Takes a sequence out.
    pub fn remove(&mut self, seq: SeqId) -> Option<Sequence> {
        self.get(seq)?;
        self.free.push(slot_of(seq) as u32);
        self.slots[slot_of(seq)]
            .take()
            .map(|(_, sequence)| sequence)
    }

    /// All live sequences.
    pub fn iter(&self) -> impl Iterator<Item = (SeqId, &Sequence)> {
        self.slots
            .iter()
            .flatten()
            .map(|(seq, sequence)| (*seq, sequence))
    }

    /// Number of live sequences.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// True when none is live.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl std::ops::Index<SeqId> for SequenceTable {
    type Output = Sequence;

    /// # Panics
    /// If the sequence is not live: the scheduler's lists hold live ones only.
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

/// The prompt and what the output begins with.
fn opened(request: &Submission) -> Arc<[u32]> {
    if request.opening.is_empty() {
        return request.prompt.clone();
    }
    let tokens = request.prompt.iter().chain(request.opening.iter());
    tokens.copied().collect()
}

fn slot_of(seq: SeqId) -> usize {
    (seq.get() & u64::from(u32::MAX)) as usize
}
