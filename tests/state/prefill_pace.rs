//! Tests that a long prefill does not stop a stream. They run the engine's states in virtual time, with two steps in
//! flight, on simulated machines whose steps take a known time.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::smallvec;
use souffleur_base::ids::{IntakeId, RequestId};
use souffleur_request::{CancelFlag, RequestTimeouts};
use souffleur_state::cache::eviction::EvictionPolicy;
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::control::{ControlSetup, ControlStates};
use souffleur_state::pool::pages::PageSize;
use souffleur_state::sampling::{LogprobWish, SamplingParams};
use souffleur_state::scheduler::submission::Submission;
use souffleur_state::scheduler::{BatchRules, MAX_PREFILL_STEP_MS, QueueRules, SchedulerLimits};
use souffleur_state::step::{RowResult, RowVerdict, RowWork, StepOutput, StepPlan};

/// How long steps take, in microseconds.
#[derive(Clone, Copy)]
struct Machine {
    /// The shortest step with any row: the time to read the weights once.
    step: u64,
    /// One row without context.
    row: u64,
    /// Tokens of context that double the time of a row.
    doubles_at: u64,
}

/// Two CPU cores: `SMALL` runs a model of the shape of Qwen3-0.6B, `REAL` runs Qwen2.5-Coder-1.5B in Q4_K_M.
const SMALL: Machine = Machine {
    step: 45_000,
    row: 3500,
    doubles_at: 6000,
};
const REAL: Machine = Machine {
    step: 42_000,
    row: 4900,
    doubles_at: 16_000,
};
/// A slow machine from a report: 34.9 s for 3,529 tokens.
const SLOW: Machine = Machine {
    step: 180_000,
    row: 8900,
    doubles_at: 16_000,
};
/// A GPU.
const FAST: Machine = Machine {
    step: 9000,
    row: 30,
    doubles_at: 30_000,
};

impl Machine {
    fn micros(self, plan: &StepPlan) -> u64 {
        if plan.rows.is_empty() {
            return 0;
        }
        let rows = plan.rows.iter().flat_map(|row| row.work.positions());
        let rows = rows.map(|before| self.row + self.row * u64::from(before) / self.doubles_at);
        self.step.max(rows.sum())
    }
}

fn setup(step_ms: Option<u32>, page_size: u32) -> ControlSetup {
    ControlSetup {
        limits: SchedulerLimits {
            page_size: PageSize::new(page_size).expect("positive"),
            total_pages: 65_536 / page_size as usize,
            total_rows: 64,
            max_prefill_tokens: 16_384,
            chunk_tokens: Some(4096),
            prefix_wait: true,
            rules: BatchRules {
                max_prefill_step_ms: step_ms,
                ..BatchRules::default()
            },
            schedule_conservativeness: 1.0,
            max_pins: 4,
            queue: QueueRules {
                eviction_policy: EvictionPolicy::from_name("lru").ok(),
                ..QueueRules::default()
            },
            eos_token_ids: Arc::default(),
            states: None,
            windows: None,
            tier: None,
            vision: None,
        },
        schedule_policy: "fcfs".to_owned(),
        diagnoses_misses: false,
    }
}

/// The times of a request's submission and of its tokens.
#[derive(Clone, Debug, Default)]
struct RequestTimes {
    submitted: u64,
    tokens: Vec<u64>,
}

impl RequestTimes {
    /// The longest gap between two tokens, among the gaps that end after `from`.
    fn longest_gap(&self, from: u64) -> u64 {
        let gaps = self.tokens.windows(2).filter(|two| two[1] > from);
        gaps.map(|two| two[1] - two[0]).max().unwrap_or(0)
    }

    fn tokens_between(&self, from: u64, to: u64) -> usize {
        let is_between = |at: &&u64| (from..=to).contains(*at);
        self.tokens.iter().filter(is_between).count()
    }

    fn time_to_first_token(&self) -> u64 {
        self.tokens[0] - self.submitted
    }
}

struct World {
    states: ControlStates,
    machine: Machine,
    now: u64,
    in_flight: VecDeque<StepPlan>,
    requests: Vec<RequestTimes>,
    /// Positions of the prefills, and number of decodes, of each step that has begun.
    steps: Vec<(Vec<std::ops::Range<u32>>, usize)>,
}

impl World {
    fn new(machine: Machine, step_ms: Option<u32>) -> Self {
        Self::paged(machine, step_ms, 1)
    }

    fn paged(machine: Machine, step_ms: Option<u32>, page_size: u32) -> Self {
        let states = setup(step_ms, page_size).build();
        Self {
            states: states.expect("the pools are small"),
            machine,
            now: 0,
            in_flight: VecDeque::new(),
            requests: Vec::new(),
            steps: Vec::new(),
        }
    }

    /// Submits a request whose prompt shares no prefix with other requests.
    fn submit(&mut self, prompt_tokens: u32, max_new_tokens: u32, wants_logprobs: bool) -> usize {
        let number = self.requests.len();
        let sampling = SamplingParams {
            max_new_tokens,
            ignore_eos: true,
            sampling_seed: Some(0),
            ..SamplingParams::default()
        };
        let logprobs = || Arc::new(LogprobWish::default());
        let first = 1000 * number as u32;
        self.states.scheduler.submit(Submission {
            rid: RequestId::new(number.to_string()),
            intake: IntakeId::new(number as u64),
            prompt: (0..prompt_tokens).map(|at| first + at % 991).collect(),
            namespace: Namespace::default(),
            sampling: Arc::new(sampling),
            logprobs: wants_logprobs.then(logprobs),
            opening: Arc::default(),
            anchors: Arc::default(),
            grammar: None,
            vectors: None,
            images: None,
            bypasses_cache: false,
            pooling: None,
            priority: None,
            cancel: CancelFlag::default(),
            submitted_s: 0.0,
            timeouts: RequestTimeouts::default(),
            draft_texts: Default::default(),
        });
        self.requests.push(RequestTimes {
            submitted: self.now,
            ..RequestTimes::default()
        });
        number
    }

    fn plan(&mut self) {
        while let Some(plan) = self.states.advance() {
            let rows = plan.rows.iter().map(|row| &row.work);
            let prefills = rows.filter_map(|work| match work {
                RowWork::Prefill { positions } => Some(positions.clone()),
                RowWork::Decode { .. } => None,
            });
            let prefills: Vec<_> = prefills.collect();
            let n_decodes = plan.rows.len() - prefills.len();
            self.steps.push((prefills, n_decodes));
            self.in_flight.push_back(*plan);
        }
    }

    /// Runs the next step; returns false if there is none.
    fn step(&mut self) -> bool {
        self.plan();
        let Some(plan) = self.in_flight.pop_front() else {
            return false;
        };
        let micros = self.machine.micros(&plan);
        self.now += micros;
        let rows = plan.rows.iter().map(|row| RowResult {
            seq: row.seq,
            tokens: if row.sample {
                smallvec![7]
            } else {
                smallvec![]
            },
            accepted: row.work.positions().len() as u32,
            logprobs: None,
            verdict: RowVerdict::Open,
            drafts: Default::default(),
        });
        let output = StepOutput {
            step: plan.step,
            rows: rows.collect(),
        };
        let scheduler = &mut self.states.scheduler;
        scheduler.step_took(plan.step, micros);
        scheduler.step_done(plan.step, Ok(output));
        scheduler.take_first_admissions();
        for news in scheduler.take_news() {
            let request = &mut self.requests[news.intake.index()];
            request.tokens.extend(news.tokens.iter().map(|_| self.now));
        }
        self.plan();
        true
    }

    fn drain(&mut self) {
        while self.step() {}
        assert!(self.states.scheduler.is_idle());
    }
}

impl Drop for World {
    /// The tree's pages are dropped with the pool, so the ledger must not count them as lost.
    fn drop(&mut self) {
        self.states.ledger.close();
    }
}

/// Starts a stream, submits a prompt of `prompt_tokens` after its first tokens, and runs until both are done.
fn stream_and_prompt(mut world: World, prompt_tokens: u32, wants_logprobs: bool) -> (World, Span) {
    let stream = world.submit(20, 4000, wants_logprobs);
    for _ in 0..10 {
        world.step();
    }
    let prompt = world.submit(prompt_tokens, 2, false);
    let from = world.now;
    while world.requests[prompt].tokens.is_empty() {
        world.step();
    }
    let span = Span {
        stream,
        from,
        to: world.now,
    };
    world.drain();
    (world, span)
}

/// The time in which a prompt was prefilled.
#[derive(Clone, Copy)]
struct Span {
    stream: usize,
    from: u64,
    to: u64,
}

impl Span {
    fn micros(self) -> u64 {
        self.to - self.from
    }
}

const CONFIGURED: Option<u32> = Some(MAX_PREFILL_STEP_MS);

#[test]
fn a_prompt_of_8000_tokens_stops_no_stream_for_more_than_a_second_and_a_half() {
    for (machine, wants_logprobs) in [
        (SMALL, false),
        (REAL, false),
        (SLOW, false),
        (FAST, false),
        (REAL, true),
    ] {
        let world = World::new(machine, CONFIGURED);
        let (world, span) = stream_and_prompt(world, 8000, wants_logprobs);
        let stream = &world.requests[span.stream];
        let longest = stream.longest_gap(span.from);
        assert!(longest <= 1_500_000, "{longest}");
        let tokens = stream.tokens_between(span.from, span.to) as u64;
        assert!(tokens * 1_500_000 >= span.micros(), "{tokens} tokens");
    }
    // Without the limit, one chunk takes more than ten seconds.
    let (world, span) = stream_and_prompt(World::new(REAL, None), 8000, false);
    assert!(world.requests[span.stream].longest_gap(span.from) > 10_000_000);
}

#[test]
fn chunks_fill_their_time_and_each_step_includes_a_decode() {
    let (world, span) = stream_and_prompt(World::new(REAL, CONFIGURED), 8000, false);
    let stream = &world.requests[span.stream];
    let tokens = stream.tokens_between(span.from, span.to) as u64;
    // The first chunks are shorter, because few steps have been measured.
    assert!(tokens <= span.micros() / 400_000, "{tokens}");
    let cut = world
        .steps
        .iter()
        .filter(|(prefills, _)| !prefills.is_empty());
    assert!(cut.skip(1).all(|(_, decodes)| *decodes == 1));
    assert!(world.states.scheduler.stats().mixed_steps > 0);
}

#[test]
fn a_prefill_during_a_stream_loses_at_most_a_twentieth_of_its_rate() {
    for machine in [SMALL, REAL, SLOW, FAST] {
        let spans = [CONFIGURED, None].map(|step_ms| {
            let (_, span) = stream_and_prompt(World::new(machine, step_ms), 8000, false);
            span.micros()
        });
        assert!(spans[0] * 20 <= spans[1] * 21, "{spans:?}");
    }
}

#[test]
fn chunks_are_unchanged_while_no_request_decodes() {
    let steps = [CONFIGURED, None].map(|step_ms| {
        let mut world = World::new(REAL, step_ms);
        for _ in 0..3 {
            world.submit(10_000, 1, false);
            world.drain();
        }
        std::mem::take(&mut world.steps)
    });
    assert_eq!(steps[0], steps[1]);
    assert!(
        steps[0]
            .iter()
            .any(|(prefills, _)| prefills[0].len() == 4096)
    );
}

#[test]
fn a_machine_that_computes_a_whole_chunk_in_time_gets_whole_unmixed_chunks() {
    let machine = Machine { row: 10, ..FAST };
    let steps = [CONFIGURED, None].map(|step_ms| {
        let mut world = World::new(machine, step_ms);
        // Measures the machine before any request decodes.
        world.submit(3000, 1, false);
        world.drain();
        std::mem::take(&mut stream_and_prompt(world, 8000, false).0.steps)
    });
    assert_eq!(steps[0], steps[1]);
}

#[test]
fn a_short_prompt_does_not_wait_for_the_long_one_that_came_with_it() {
    let mut world = World::new(REAL, CONFIGURED);
    world.submit(500, 1, false);
    world.drain();
    let short = world.submit(50, 20, false);
    world.submit(3000, 1, false);
    world.drain();
    let first = world.requests[short].time_to_first_token();
    assert!(first <= 1_000_000, "{first}");
    let gap = world.requests[short].longest_gap(0);
    assert!(gap <= 1_000_000, "{gap}");
}

#[test]
fn the_first_chunks_of_an_engine_without_measurements_are_small() {
    let mut world = World::new(SLOW, CONFIGURED);
    let stream = world.submit(5, 100, false);
    world.plan();
    // Both steps in flight are planned before anything is measured.
    world.submit(4000, 1, false);
    world.drain();
    let gap = world.requests[stream].longest_gap(0);
    assert!(gap <= 1_500_000, "{gap}");
}

#[test]
fn chunks_get_shorter_as_the_context_gets_longer() {
    let deep = Machine {
        doubles_at: 500,
        ..REAL
    };
    let mut world = World::new(deep, CONFIGURED);
    // Measures only the beginning of a context.
    world.submit(600, 1, false);
    world.drain();
    let (world, span) = stream_and_prompt(world, 6000, false);
    let gap = world.requests[span.stream].longest_gap(span.from);
    assert!(gap <= 1_500_000, "{gap}");
    let lengths = world.steps.iter().flat_map(|(prefills, _)| prefills);
    let lengths: Vec<usize> = lengths.map(|positions| positions.len()).collect();
    let middle = lengths.len() / 2;
    assert!(lengths[middle..].iter().max() < lengths[..middle].iter().max());
}

#[test]
fn chunks_that_are_cut_by_time_end_with_a_page() {
    for page_size in [16, 64, 256] {
        let world = World::paged(REAL, CONFIGURED, page_size);
        let (world, span) = stream_and_prompt(world, 8000, false);
        let cut = world.steps.iter().flat_map(|(prefills, _)| prefills);
        let ends: Vec<u32> = cut.map(|positions| positions.end).collect();
        let inner = ends.iter().filter(|end| ![20, 8000].contains(*end));
        assert!(inner.clone().count() > 4);
        assert!(inner.copied().all(|end| end % page_size == 0), "{ends:?}");
        let gap = world.requests[span.stream].longest_gap(span.from);
        assert!(gap <= 2_500_000, "{gap}");
    }
}

#[test]
fn a_prefill_stops_none_of_forty_streams_for_more_than_a_second_and_a_half() {
    let mut world = World::new(SLOW, CONFIGURED);
    let streams: Vec<usize> = (0..40).map(|_| world.submit(8, 400, false)).collect();
    for _ in 0..20 {
        world.step();
    }
    let from = world.now;
    world.submit(4000, 1, false);
    world.drain();
    for stream in streams {
        let gap = world.requests[stream].longest_gap(from);
        assert!(gap <= 1_500_000, "{gap}");
    }
}
