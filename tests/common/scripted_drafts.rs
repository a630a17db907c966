//! Proposers that know a row's output from an earlier run without drafts, and are wrong where a script says so.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use souffleur_executor::speculation::{MakeProposer, Speculation};
use souffleur_state::speculation::{MAX_ROOM, Proposal, Proposer};
use souffleur_state::step::{RowResult, RowStart};

/// Which drafts are right.
#[derive(Clone, Copy, Debug)]
pub enum Script {
    /// Each one with this probability.
    Random(f64),
    /// All but the one at this place of each step.
    WrongAt(usize),
}

/// The outputs of rows by their prompt and seed, and the script of their drafts.
pub struct ScriptedDrafts(Arc<Rows>);

struct Rows {
    script: Script,
    seed: u64,
    vocab: u32,
    outputs: Mutex<Outputs>,
}

/// Outputs by prompt and sampling seed.
type Outputs = BTreeMap<(Vec<u32>, u64), Arc<[u32]>>;

impl ScriptedDrafts {
    /// Token ids are below `vocab`; `seed` decides which drafts of [`Script::Random`] are right.
    pub fn new(script: Script, seed: u64, vocab: u32) -> Self {
        Self(Arc::new(Rows {
            script,
            seed,
            vocab,
            outputs: Mutex::default(),
        }))
    }

    /// Rows with this prompt (any prompt if it is empty) and sampling seed have this output; rows without a known output
    /// have no drafts.
    pub fn learn(&self, prompt: &[u32], sampling_seed: u64, output: &[u32]) {
        let mut outputs = self
            .0
            .outputs
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        outputs.insert((prompt.to_vec(), sampling_seed), output.into());
    }

    /// What an executor takes to verify these drafts, all of them.
    pub fn speculation(&self) -> Speculation {
        Speculation {
            proposers: self.0.clone(),
            is_controlled: false,
        }
    }
}

impl MakeProposer for Rows {
    fn make(&self, start: &RowStart) -> Option<Box<dyn Proposer>> {
        let (prompt, output) = start.tokens.split_at(start.prompt_tokens as usize);
        let sampling_seed = start.sampling.sampling_seed.unwrap_or(0);
        let outputs = self.outputs.lock().unwrap_or_else(PoisonError::into_inner);
        let of_prompt = outputs.get(&(prompt.to_vec(), sampling_seed));
        let known = of_prompt.or_else(|| outputs.get(&(Vec::new(), sampling_seed)));
        let known = known?.clone();
        Some(Box::new(Scripted {
            output: known,
            n_known: output.len(),
            script: self.script,
            random: mixed(self.seed ^ mixed(sampling_seed)),
            vocab: self.vocab,
        }))
    }
}

struct Scripted {
    /// The output of the run without drafts.
    output: Arc<[u32]>,
    /// Number of output tokens that the row has.
    n_known: usize,
    script: Script,
    random: u64,
    vocab: u32,
}

impl Scripted {
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.random)
    }

    fn is_right(&mut self, place: usize) -> bool {
        match self.script {
            Script::WrongAt(wrong) => place != wrong,
            Script::Random(probability) => {
                let share = (self.random() >> 11) as f64 / (1u64 << 53) as f64;
                share < probability
            }
        }
    }
}

impl Proposer for Scripted {
    fn extend(&mut self, tokens: &[u32]) {
        self.n_known += tokens.len();
    }

    /// Proposes `max` tokens, also beyond the end of the output.
    fn propose(&mut self, max: usize, drafts: &mut Vec<u32>) -> Proposal {
        for place in 0..max {
            let right = self.output.get(self.n_known + place).copied();
            let is_right = self.is_right(place);
            // Differs from the right token, and is smaller than the vocabulary.
            let other = 1 + (self.random() % u64::from(self.vocab - 1)) as u32;
            drafts.push(match (right, is_right) {
                (Some(right), true) => right,
                (right, _) => (right.unwrap_or(0) + other) % self.vocab,
            });
        }
        Proposal {
            n_tokens: max,
            ..Proposal::default()
        }
    }
}

/// The finaliser of SplitMix64 (Steele et al. 2014).
fn mixed(seed: u64) -> u64 {
    let mut bits = seed;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Numbers of accepted and of rejected drafts by their place in a step.
pub struct Tally {
    accepted: [AtomicU64; MAX_ROOM as usize],
    rejected: [AtomicU64; MAX_ROOM as usize],
}

impl Default for Tally {
    fn default() -> Self {
        let zeros = || std::array::from_fn(|_| AtomicU64::new(0));
        Self {
            accepted: zeros(),
            rejected: zeros(),
        }
    }
}

impl Tally {
    /// Counts the drafts of a row's step. Those after a rejected one count as neither.
    pub fn add(&self, row: &RowResult) {
        let n_drafts = row.drafts.n_tokens as usize;
        let n_accepted = row.tokens.len().saturating_sub(1);
        assert!(n_accepted <= n_drafts, "{row:?}");
        for place in &self.accepted[..n_accepted] {
            place.fetch_add(1, Ordering::Relaxed);
        }
        if n_drafts > n_accepted {
            self.rejected[n_accepted].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn merge(&self, other: &Self) {
        for (own, other) in self.places().zip(other.places()) {
            own.0
                .fetch_add(other.0.load(Ordering::Relaxed), Ordering::Relaxed);
            own.1
                .fetch_add(other.1.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// The numbers of all accepted and of all rejected drafts.
    pub fn totals(&self) -> (u64, u64) {
        self.places().fold((0, 0), |(accepted, rejected), place| {
            let of_place = (
                place.0.load(Ordering::Relaxed),
                place.1.load(Ordering::Relaxed),
            );
            (accepted + of_place.0, rejected + of_place.1)
        })
    }

    /// Panics unless a draft was accepted and one was rejected at each of the first `places` places of a step.
    #[track_caller]
    pub fn assert_both_at_each(&self, places: usize, what: &str) {
        for (place, counts) in self.places().take(places).enumerate() {
            let [accepted, rejected] =
                [counts.0, counts.1].map(|count| count.load(Ordering::Relaxed));
            assert!(
                accepted > 0 && rejected > 0,
                "{what}: {accepted} drafts accepted and {rejected} rejected at place {place}"
            );
        }
    }

    fn places(&self) -> impl Iterator<Item = (&AtomicU64, &AtomicU64)> {
        self.accepted.iter().zip(&self.rejected)
    }
}
