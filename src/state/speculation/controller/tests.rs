use super::*;
use crate::speculation::DraftSource;

/// Relative costs of steps by query tokens: points, with lines between.
type Points = [(f64, f64); 3];

const BF16: Points = [(1.0, 1.0), (8.0, 1.18), (16.0, 1.59)];
const INT8: Points = [(1.0, 1.0), (8.0, 1.75), (16.0, 2.6)];
const Q4: Points = [(1.0, 1.0), (8.0, 1.9), (16.0, 3.6)];
const Q4_AVX2: Points = [(1.0, 1.0), (8.0, 3.02), (16.0, 5.65)];
const MACHINES: [Points; 4] = [BF16, INT8, Q4, Q4_AVX2];

const N_STEPS: usize = 2000;
const N_PROPOSED: usize = 7;
const CONTEXT: usize = 500;

fn cost(points: &Points, n_query_tokens: usize) -> f64 {
    let n = n_query_tokens as f64;
    let [first, middle, last] = points;
    let (low, high) = if n <= middle.0 {
        (first, middle)
    } else {
        (middle, last)
    };
    low.1 + (high.1 - low.1) * (n - low.0) / (high.0 - low.0)
}

/// Tokens of a row on average in a step with `n_drafts` drafts, each accepted with probability `p`.
fn tokens(p: f64, n_drafts: usize) -> f64 {
    (0..=n_drafts).map(|n| p.powi(n as i32)).sum()
}

/// The best ratio to plain decoding of steps with a constant number of drafts.
fn optimum(points: &Points, p: f64, n_rows: usize) -> f64 {
    let plain = cost(points, n_rows);
    let ratios = (0..=n_rows * N_PROPOSED).map(|n_drafts| {
        let (each, rest) = (n_drafts / n_rows, n_drafts % n_rows);
        let more = tokens(p, (each + 1).min(N_PROPOSED)) * rest as f64;
        let n_tokens = more + tokens(p, each) * (n_rows - rest) as f64;
        n_tokens / n_rows as f64 * plain / cost(points, n_rows + n_drafts)
    });
    ratios.fold(0.0, f64::max)
}

struct World {
    controller: Controller,
    points: Points,
    random: u64,
    n_tokens: usize,
    seconds: f64,
    plain_seconds: f64,
}

impl World {
    fn new(points: Points) -> Self {
        Self {
            controller: Controller::new(16),
            points,
            random: 1,
            n_tokens: 0,
            seconds: 0.0,
            plain_seconds: 0.0,
        }
    }

    /// A number from 0 to 1, of the same series on every machine (Knuth's MMIX).
    fn random(&mut self) -> f64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005);
        self.random = self.random.wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as f64 / (1_u64 << 31) as f64
    }

    /// Runs a step of rows whose drafts are accepted with these probabilities. Returns the numbers of drafts.
    fn step(&mut self, probabilities: &[f64], matched: usize) -> Vec<usize> {
        let proposal = Proposal {
            n_tokens: N_PROPOSED,
            source: DraftSource::OwnText,
            matched,
        };
        let candidate = Candidate::new(proposal, N_PROPOSED, RowYield::default());
        let n_rows = probabilities.len();
        let mut candidates = vec![candidate; n_rows];
        self.controller.choose(CONTEXT, &mut candidates);
        let drafts: Vec<usize> = candidates.iter().map(|row| row.n_tokens).collect();
        let n_query_tokens = n_rows + drafts.iter().sum::<usize>();
        let seconds = cost(&self.points, n_query_tokens);
        for ((drafted, p), candidate) in drafts.iter().zip(probabilities).zip(&mut candidates) {
            assert!(*drafted <= N_PROPOSED);
            let mut accepted = 0;
            while accepted < *drafted && self.random() < *p {
                accepted += 1;
            }
            self.n_tokens += 1 + accepted;
            self.controller.note_result(candidate, *drafted, accepted);
        }
        // One of 64 steps is delayed.
        let delay = if self.random() < 1.0 / 64.0 { 3.0 } else { 1.0 };
        self.controller
            .note_time(CONTEXT, n_query_tokens, seconds * delay);
        self.seconds += seconds;
        self.plain_seconds += cost(&self.points, n_rows);
        drafts
    }

    /// Tokens by time, compared with plain decoding, in which a step has one token of each of `n_rows` rows.
    fn speed(&self, n_rows: usize) -> f64 {
        let plain_tokens = (N_STEPS * n_rows) as f64;
        self.n_tokens as f64 / self.seconds * self.plain_seconds / plain_tokens
    }
}

fn speed(points: Points, p: f64, n_rows: usize) -> f64 {
    let mut world = World::new(points);
    for _ in 0..N_STEPS {
        world.step(&vec![p; n_rows], 3);
    }
    world.speed(n_rows)
}

#[test]
fn drafts_that_are_always_wrong_cost_two_percent_at_most() {
    for points in MACHINES {
        for n_rows in [1, 4, 16] {
            let found = speed(points, 0.0, n_rows);
            assert!(found >= 0.98, "{points:?}, {n_rows} rows: {found}");
        }
    }
}

#[test]
fn most_of_the_best_speed_is_reached() {
    for points in MACHINES {
        for n_rows in [1, 4, 16] {
            for p in [0.3, 0.5, 0.7, 0.9, 0.97] {
                let (found, best) = (speed(points, p, n_rows), optimum(&points, p, n_rows));
                let least = (0.85 * best).max(0.96);
                assert!(
                    found >= least,
                    "{points:?}, {n_rows} rows, p = {p}: {found} of {best}"
                );
            }
        }
    }
}

#[test]
fn a_text_that_begins_to_repeat_is_noticed() {
    let mut world = World::new(BF16);
    for _ in 0..1000 {
        world.step(&[0.0], 3);
    }
    let n_plain = world.step(&[0.0], 3).iter().sum::<usize>();
    assert!(n_plain <= 1);
    for _ in 0..1000 {
        world.step(&[0.95], 3);
    }
    let (tokens, steps) = (world.n_tokens, 200);
    for _ in 0..steps {
        world.step(&[0.95], 3);
    }
    assert!(world.n_tokens - tokens > 4 * steps);
}

#[test]
fn likelier_drafts_are_taken_first() {
    let mut controller = Controller::new(2);
    for (n_query_tokens, seconds) in [(2, 1.0), (3, 1.1), (4, 1.2), (6, 1.3), (9, 2.5)] {
        for _ in 0..3 {
            controller.note_time(CONTEXT, n_query_tokens, seconds);
        }
    }
    let candidate = |matched: usize| {
        let proposal = Proposal {
            n_tokens: 7,
            source: DraftSource::Prediction,
            matched,
        };
        Candidate::new(proposal, 7, RowYield::default())
    };
    let mut candidates = [candidate(2), candidate(40)];
    controller.choose(CONTEXT, &mut candidates);
    let [unlikely, likely] = candidates.map(|candidate| candidate.n_tokens);
    assert!(unlikely <= 1 && likely >= 4, "{unlikely} {likely}");
}

#[test]
fn rows_without_proposals_have_no_drafts() {
    let mut controller = Controller::new(2);
    let none = Candidate::new(Proposal::default(), 0, RowYield::default());
    for _ in 0..200 {
        let mut candidates = [none; 2];
        controller.choose(CONTEXT, &mut candidates);
        assert_eq!(candidates.map(|candidate| candidate.n_tokens), [0; 2]);
    }
    controller.choose(0, &mut []);
}

#[test]
fn choices_allocate_nothing() {
    let mut controller = Controller::new(3);
    let (ranked, curve) = (controller.ranked.capacity(), controller.curve.capacity());
    let proposal = Proposal {
        n_tokens: 63,
        source: DraftSource::Grammar,
        matched: 50,
    };
    let candidate = Candidate::new(proposal, 63, RowYield::default());
    for _ in 0..100 {
        controller.note_result(&mut { candidate }, 63, 63);
        controller.note_time(CONTEXT, 200, 1.0);
        let mut candidates = [candidate; 4];
        controller.choose(CONTEXT, &mut candidates);
    }
    assert_eq!(controller.ranked.capacity(), ranked);
    assert_eq!(controller.curve.capacity(), curve);
}
