//! Measured costs of decode steps by their number of query tokens.
//!
//! A step's time is kept as its ratio to a prior, so that numbers of tokens without a measurement take the ratio of
//! their neighbours. Only ratios of costs matter, so the prior's unit does not.

/// Numbers of query tokens with separate cells.
const N_EXACT: usize = 64;
/// Query tokens of each further cell.
const WIDE: usize = 16;
const N_CELLS: usize = N_EXACT + 60;
/// Context tokens of the first class; each further class has twice as many.
const FIRST_CONTEXT: usize = 1024;
const N_CONTEXTS: usize = 8;
/// The last measurements of a cell, whose median counts; of two, the lower one.
const N_SAMPLES: usize = 5;
/// The fewest measurements that count: a single one may have been delayed.
const MIN_SAMPLES: u32 = 2;
/// Steps after which measurements no longer count.
const MAX_AGE: u32 = 4096;
/// Products take rows in groups of this.
const GROUP: usize = 8;
/// Factor of the guessed cost of a full group, so that the group is tried: costs rise steeply after it.
const FULL_GROUP: f64 = 0.9;

/// Costs by query tokens, for each class of context lengths.
#[derive(Debug)]
pub(super) struct StepCosts {
    classes: Box<[[Cell; N_CELLS]; N_CONTEXTS]>,
    /// Counts the decode steps.
    now: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    ratios: [f32; N_SAMPLES],
    n_ratios: u32,
    median: f32,
    measured_at: u32,
}

impl StepCosts {
    pub fn new() -> Self {
        Self {
            classes: Box::new([[Cell::default(); N_CELLS]; N_CONTEXTS]),
            now: 0,
        }
    }

    pub fn begin_step(&mut self) {
        self.now = self.now.wrapping_add(1);
    }

    pub fn note(&mut self, context_tokens: usize, n_query_tokens: usize, seconds: f64) {
        if n_query_tokens == 0 || !seconds.is_finite() || seconds <= 0.0 {
            return;
        }
        let class = &mut self.classes[class_of(context_tokens)];
        let ratio = seconds / prior(n_query_tokens);
        class[cell_of(n_query_tokens)].note(ratio as f32, self.now);
    }

    /// Steps since a step of this size was measured; `None` if too few were.
    pub fn age(&self, context_tokens: usize, n_query_tokens: usize) -> Option<u32> {
        let cell = &self.classes[class_of(context_tokens)][cell_of(n_query_tokens)];
        (cell.n_ratios >= MIN_SAMPLES).then(|| self.now.wrapping_sub(cell.measured_at))
    }

    /// Writes the costs of `first` query tokens and of up to `n_more` further ones to `costs`; they never fall.
    ///
    /// A cost above that of more tokens is taken as theirs: other work delays steps, and none makes them faster.
    pub fn fill(&self, context_tokens: usize, first: usize, n_more: usize, costs: &mut Vec<f64>) {
        let class = self.known_class(context_tokens);
        let guess = |n_query_tokens: usize| self.guess(class, n_query_tokens);
        costs.clear();
        costs.extend((first..=first + n_more).map(guess));
        let mut lowest = f64::INFINITY;
        for cost in costs.iter_mut().rev() {
            lowest = lowest.min(*cost);
            *cost = lowest;
        }
    }

    /// The class of a context length; the nearest shorter one, or else a longer one, if the class knows the costs of
    /// fewer than two numbers of tokens.
    fn known_class(&self, context_tokens: usize) -> &[Cell; N_CELLS] {
        let class = class_of(context_tokens);
        let knows = |class: &usize| {
            let known = self.classes[*class]
                .iter()
                .filter(|cell| self.is_known(cell));
            known.take(2).count() == 2
        };
        let nearest = (0..=class).rev().chain(class + 1..N_CONTEXTS).find(knows);
        &self.classes[nearest.unwrap_or(class)]
    }

    fn is_known(&self, cell: &Cell) -> bool {
        cell.n_ratios >= MIN_SAMPLES && self.now.wrapping_sub(cell.measured_at) <= MAX_AGE
    }

    /// The cost: measured, or from the nearest measured cells.
    fn guess(&self, class: &[Cell; N_CELLS], n_query_tokens: usize) -> f64 {
        let cost = prior(n_query_tokens) * self.ratio(class, n_query_tokens);
        let is_full_group = n_query_tokens.is_multiple_of(GROUP);
        if is_full_group && !self.is_known(&class[cell_of(n_query_tokens)]) {
            cost * FULL_GROUP
        } else {
            cost
        }
    }

    /// The ratio of a step's time to the prior: measured, or between those of the nearest measured cells.
    fn ratio(&self, class: &[Cell; N_CELLS], n_query_tokens: usize) -> f64 {
        let cell = cell_of(n_query_tokens);
        let known = |cell: usize| self.is_known(&class[cell]).then_some(cell);
        let below = (0..=cell).rev().find_map(known);
        let above = (cell..N_CELLS).find_map(known);
        let median = |cell: usize| f64::from(class[cell].median);
        match (below, above) {
            (Some(below), Some(above)) if below < above => {
                let part = (cell - below) as f64 / (above - below) as f64;
                median(below) + (median(above) - median(below)) * part
            }
            (Some(known), _) | (None, Some(known)) => median(known),
            (None, None) => 1.0,
        }
    }
}

impl Cell {
    fn note(&mut self, ratio: f32, now: u32) {
        // Measurements before a long pause are of another time.
        if now.wrapping_sub(self.measured_at) > MAX_AGE {
            self.n_ratios = 0;
        }
        self.ratios[self.n_ratios as usize % N_SAMPLES] = ratio;
        self.n_ratios = self.n_ratios.wrapping_add(1).max(1);
        self.measured_at = now;
        let mut sorted = self.ratios;
        let known = &mut sorted[..N_SAMPLES.min(self.n_ratios as usize)];
        known.sort_unstable_by(f32::total_cmp);
        self.median = known[(known.len() - 1) / 2];
    }
}

/// The cost before any measurement, which rises less than most machines' do: costs that are guessed too low are tried
/// and measured.
fn prior(n_query_tokens: usize) -> f64 {
    let n_more = n_query_tokens.saturating_sub(1);
    1.0 + 0.08 * n_more as f64 + 0.2 * (n_more / GROUP) as f64
}

fn cell_of(n_query_tokens: usize) -> usize {
    match n_query_tokens {
        0 => 0,
        1..=N_EXACT => n_query_tokens - 1,
        _ => (N_EXACT + (n_query_tokens - N_EXACT - 1) / WIDE).min(N_CELLS - 1),
    }
}

fn class_of(context_tokens: usize) -> usize {
    let doublings = (context_tokens / FIRST_CONTEXT).checked_ilog2();
    doublings.map_or(0, |n| (n as usize + 1).min(N_CONTEXTS - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(known: &[(usize, f64)]) -> StepCosts {
        let mut costs = StepCosts::new();
        for (n_query_tokens, seconds) in known {
            note_twice(&mut costs, 100, *n_query_tokens, *seconds);
        }
        costs
    }

    fn note_twice(costs: &mut StepCosts, context_tokens: usize, n_tokens: usize, seconds: f64) {
        for _ in 0..2 {
            costs.note(context_tokens, n_tokens, seconds);
        }
    }

    fn curve(costs: &StepCosts, context_tokens: usize) -> Vec<f64> {
        let mut curve = Vec::new();
        costs.fill(context_tokens, 1, 99, &mut curve);
        curve
    }

    #[test]
    fn the_curve_passes_through_measurements_and_never_falls() {
        let known = [
            (1, 2.0),
            (8, 3.0),
            (16, 8.0),
            (17, 7.5),
            (24, 8.5),
            (60, 9.0),
        ];
        let costs = costs(&known);
        let curve = curve(&costs, 100);
        assert_eq!(curve.len(), 100);
        assert!(curve.is_sorted());
        for (n_query_tokens, expected) in [(1, 2.0), (8, 3.0), (16, 7.5), (17, 7.5)] {
            let found: f64 = curve[n_query_tokens - 1];
            assert!((found - expected).abs() < 1e-5, "{found} {expected}");
        }
        assert!(curve[3] > 2.0 && curve[3] < 3.0);
    }

    #[test]
    fn one_slow_step_changes_no_median() {
        let mut costs = costs(&[(1, 2.0), (8, 3.0)]);
        for seconds in [2.0, 2.1, 90.0, 2.0] {
            costs.note(100, 1, seconds);
        }
        costs.note(100, 1, f64::NAN);
        costs.note(100, 0, 1.0);
        assert!((curve(&costs, 100)[0] - 2.0).abs() < 1e-5);
    }

    #[test]
    fn an_unmeasured_context_takes_the_nearest_curve() {
        let mut costs = costs(&[(1, 2.0), (8, 3.0)]);
        assert_eq!(curve(&costs, 9000), curve(&costs, 100));
        note_twice(&mut costs, 9000, 1, 4.0);
        assert_eq!(curve(&costs, 9000), curve(&costs, 100));
        note_twice(&mut costs, 9000, 4, 5.0);
        assert!((curve(&costs, 9000)[0] - 4.0).abs() < 1e-5);
    }

    #[test]
    fn old_measurements_no_longer_count() {
        let mut costs = costs(&[(1, 2.0), (8, 30.0)]);
        for _ in 0..=MAX_AGE {
            costs.begin_step();
        }
        note_twice(&mut costs, 100, 1, 2.0);
        assert!(curve(&costs, 100)[7] < 5.0);
    }
}
