//! Decides how many drafts a step has, from the probabilities of drafts and the measured costs of steps.
//!
//! A step with `R` rows and `n` drafts brings `R + s` tokens on average, where `s` is the sum of the drafts'
//! survivals: a draft survives if it and those before it are accepted. The step takes the drafts of the highest
//! survivals, as many as bring the most tokens per time. Costs rise in steps, since products take rows in groups, so
//! all numbers of drafts are compared.
//!
//! Wrong decisions are bounded. Drafts that hardly ever survive are not taken, whatever their cost. One of
//! [`PROBE_INTERVAL`] steps without drafts has one nevertheless, so that a text which begins to repeat is noticed: even
//! if that doubled the step's time, the loss would be below 2 %. And a step without drafts is run now and then, to
//! measure the time that drafts are compared with.

use super::Proposal;
use super::costs::StepCosts;
use super::survival::{RowYield, Survival};

/// Steps without drafts, although some were proposed, until one has a draft.
const PROBE_INTERVAL: u32 = 64;
/// Number of ordinary results that a probe's result counts as, so that a few successes suffice.
const PROBE_WEIGHT: f32 = 4.0;
/// The least survival of a draft.
const MIN_SURVIVAL: f32 = 0.05;
/// The least gain: smaller ones may be noise of the measurements.
const MIN_GAIN: f64 = 1.04;
/// Age in steps from which the time of a step without drafts is measured again.
const MAX_PLAIN_AGE: u32 = 512;
/// The fewest steps between two steps that only measure this time: the numbers of rows may change with every step.
const PLAIN_GAP: u32 = 16;
/// The most drafts that are compared for each row of the executor, on average.
const DRAFTS_PER_ROW: usize = super::MAX_ROOM as usize - 1;

/// A decode row with the drafts that its proposer has for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    pub proposal: Proposal,
    /// Before the choice the number of proposed drafts, 0 for none; after it, the number of drafts to verify.
    pub n_tokens: usize,
    /// What became of the row's earlier drafts.
    pub row: RowYield,
    /// The probability that a draft is accepted, without the row's factor. [`Controller::choose`] sets it.
    pub probability: f32,
}

impl Candidate {
    /// A row with `n_tokens` drafts of a proposal.
    pub fn new(proposal: Proposal, n_tokens: usize, row: RowYield) -> Self {
        Self {
            proposal,
            n_tokens,
            row,
            probability: 0.0,
        }
    }
}

/// Chooses drafts. Its calls allocate nothing.
#[derive(Debug)]
pub struct Controller {
    survival: Survival,
    costs: StepCosts,
    /// Steps without drafts since the last probe.
    n_plain: u32,
    /// Steps since a step that only measured the time without drafts.
    since_plain: u32,
    /// Whether the last choice was a probe.
    is_probe: bool,
    /// The drafts of a step by falling survival; of each draft its row.
    ranked: Vec<(f32, u32)>,
    /// The costs of a step without drafts, with the first of `ranked`, with the first two, and so on.
    curve: Vec<f64>,
    /// The most drafts that are ranked.
    max_drafts: usize,
}

impl Controller {
    /// Makes the controller of an executor whose steps have at most `max_rows` rows.
    pub fn new(max_rows: usize) -> Self {
        let max_drafts = max_rows * DRAFTS_PER_ROW;
        Self {
            survival: Survival::default(),
            costs: StepCosts::new(),
            n_plain: 0,
            since_plain: 0,
            is_probe: false,
            ranked: Vec::with_capacity(max_drafts),
            curve: Vec::with_capacity(max_drafts + 1),
            max_drafts,
        }
    }

    /// Chooses the drafts of the next step. `candidates` are all rows of the step, which is a decode step.
    ///
    /// `context_tokens` is the number of tokens that the rows attend to, all together.
    pub fn choose(&mut self, context_tokens: usize, candidates: &mut [Candidate]) {
        self.costs.begin_step();
        self.since_plain = self.since_plain.saturating_add(1);
        self.is_probe = false;
        for candidate in candidates.iter_mut() {
            candidate.probability = self.survival.of(&candidate.proposal);
        }
        let likeliest = self.rank(candidates);
        let mut n_taken = self.n_worthwhile(context_tokens, candidates.len());
        if n_taken > 0 && self.is_plain_due(context_tokens, candidates.len()) {
            self.since_plain = 0;
            n_taken = 0;
        } else if n_taken == 0 && likeliest.is_some() {
            self.n_plain += 1;
            self.is_probe = self.n_plain >= PROBE_INTERVAL;
        }
        for candidate in candidates.iter_mut() {
            candidate.n_tokens = 0;
        }
        for (_, row) in &self.ranked[..n_taken] {
            candidates[*row as usize].n_tokens += 1;
        }
        if let Some(row) = likeliest.filter(|_| self.is_probe) {
            self.n_plain = 0;
            candidates[row].n_tokens = 1;
        }
    }

    /// Notes that the last chosen step has verified `drafted` drafts of a row and accepted the first `accepted` of them.
    pub fn note_result(&mut self, candidate: &mut Candidate, drafted: usize, accepted: usize) {
        let weight = if self.is_probe { PROBE_WEIGHT } else { 1.0 };
        self.survival
            .note(&candidate.proposal, drafted, accepted, weight);
        let counts = (drafted, accepted);
        candidate.row.note(candidate.probability, counts, weight);
    }

    /// Notes the time of a decode step, with drafts or without.
    pub fn note_time(&mut self, context_tokens: usize, n_query_tokens: usize, seconds: f64) {
        self.costs.note(context_tokens, n_query_tokens, seconds);
    }

    /// Ranks the drafts that may survive. Returns the row of the likeliest first draft.
    fn rank(&mut self, candidates: &[Candidate]) -> Option<usize> {
        self.ranked.clear();
        let mut likeliest: Option<(f32, usize)> = None;
        for (row, candidate) in candidates.iter().enumerate() {
            if candidate.n_tokens == 0 {
                continue;
            }
            let probability = candidate.probability * candidate.row.factor();
            if likeliest.is_none_or(|(highest, _)| probability > highest) {
                likeliest = Some((probability, row));
            }
            let mut survival = probability;
            for _ in 0..candidate.n_tokens {
                if survival < MIN_SURVIVAL || self.ranked.len() == self.max_drafts {
                    break;
                }
                self.ranked.push((survival, row as u32));
                survival *= probability;
            }
        }
        self.ranked
            .sort_unstable_by(|(a, row), (b, other)| b.total_cmp(a).then(row.cmp(other)));
        likeliest.map(|(_, row)| row)
    }

    /// The number of ranked drafts with which a step brings the most tokens per time; 0 if the gain is too small.
    fn n_worthwhile(&mut self, context_tokens: usize, n_rows: usize) -> usize {
        if self.ranked.is_empty() {
            return 0;
        }
        let n_drafts = self.ranked.len();
        self.costs
            .fill(context_tokens, n_rows, n_drafts, &mut self.curve);
        let mut n_tokens = n_rows as f64;
        let mut best = (0, MIN_GAIN * n_tokens / self.curve[0]);
        let costs = &self.curve[1..];
        for (index, ((survival, _), cost)) in self.ranked.iter().zip(costs).enumerate() {
            n_tokens += f64::from(*survival);
            let rate = n_tokens / cost;
            if rate > best.1 {
                best = (index + 1, rate);
            }
        }
        best.0
    }

    /// Whether the time of a step of `n_rows` rows without drafts must be measured again.
    fn is_plain_due(&self, context_tokens: usize, n_rows: usize) -> bool {
        let age = self.costs.age(context_tokens, n_rows);
        self.since_plain >= PLAIN_GAP && age.is_none_or(|age| age > MAX_PLAIN_AGE)
    }
}

#[cfg(test)]
mod tests;
