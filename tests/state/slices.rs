//! Tests of the slices of images in steps, in virtual time: none takes longer than the longest prefill step may, whatever
//! the speeds of the text model and the tower, and the size of chunks; and each brings its image forward.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use smallvec::smallvec;
use souffleur_base::ids::{IntakeId, RequestId};
use souffleur_request::{CancelFlag, RequestTimeouts};
use souffleur_state::cache::eviction::EvictionPolicy;
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::control::{ControlSetup, ControlStates};
use souffleur_state::pool::pages::PageSize;
use souffleur_state::prompt_images::{ImageDigest, ImageGrid, KEY_BIT, PromptImage, PromptImages};
use souffleur_state::prompt_vectors::PromptVectors;
use souffleur_state::sampling::SamplingParams;
use souffleur_state::scheduler::submission::Submission;
use souffleur_state::scheduler::vision::VisionLimits;
use souffleur_state::scheduler::{BatchRules, QueueRules, SchedulerLimits};
use souffleur_state::step::{RowResult, RowVerdict, RowWork, StepOutput, StepPlan};
use souffleur_state::vision::{Encodings, VisionOrder};

/// Operations of a unit.
const UNIT: u64 = 8_000_000_000;
const VECTORS: u32 = 64;
const MAX_PREFILL_TOKENS: usize = 4096;
/// The fewest tokens of a chunk whose time is bounded.
const LEAST_TOKENS: usize = 16;

#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    /// The time in which the model reads its weights: that of a decode.
    weights_us: u64,
    /// The time of a token of a prefill.
    token_us: u64,
    /// The tower's operations in a microsecond.
    flops_per_us: u64,
    flops_per_token: u64,
    chunk: Option<usize>,
    step_ms: Option<u32>,
}

const TWO_CORES: Case = Case {
    name: "two cores",
    weights_us: 45_000,
    token_us: 3500,
    flops_per_us: 400_000,
    flops_per_token: 1_000_000_000,
    chunk: Some(4096),
    step_ms: Some(500),
};

const CASES: [Case; 8] = [
    TWO_CORES,
    Case {
        name: "eight times slower",
        weights_us: 360_000,
        token_us: 28_000,
        flops_per_us: 50_000,
        ..TWO_CORES
    },
    Case {
        name: "many cores, short chunks",
        weights_us: 5000,
        token_us: 100,
        flops_per_us: 10_000_000,
        chunk: Some(512),
        ..TWO_CORES
    },
    Case {
        name: "short chunks",
        chunk: Some(64),
        ..TWO_CORES
    },
    Case {
        name: "a slow tower",
        flops_per_us: 100_000,
        ..TWO_CORES
    },
    Case {
        name: "time without a limit",
        chunk: Some(256),
        step_ms: None,
        ..TWO_CORES
    },
    Case {
        name: "without chunks",
        chunk: None,
        ..TWO_CORES
    },
    Case {
        name: "unknown operations",
        flops_per_token: 0,
        ..TWO_CORES
    },
];

impl Case {
    fn prefill_us(&self, tokens: usize) -> u64 {
        self.weights_us.max(tokens as u64 * self.token_us)
    }

    /// The longest prefill step while others decode.
    fn longest_prefill_us(&self) -> u64 {
        let whole = self.prefill_us(self.chunk.unwrap_or(MAX_PREFILL_TOKENS));
        let limit = self.step_ms.map_or(u64::MAX, |ms| u64::from(ms) * 1000);
        whole.min(limit.max(self.prefill_us(LEAST_TOKENS)))
    }

    /// The longest step with a slice; it has at least one unit.
    fn bound_us(&self) -> u64 {
        let least = self.weights_us + UNIT / self.flops_per_us;
        least.max(self.longest_prefill_us() * 6 / 5)
    }

    fn setup(&self) -> ControlSetup {
        ControlSetup {
            limits: SchedulerLimits {
                page_size: PageSize::new(1).expect("positive"),
                total_pages: 16_384,
                total_rows: 16,
                max_prefill_tokens: MAX_PREFILL_TOKENS,
                chunk_tokens: self.chunk,
                prefix_wait: true,
                rules: BatchRules {
                    max_prefill_step_ms: self.step_ms,
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
                vision: Some(VisionLimits {
                    max_vectors: 4096,
                    flops_per_token: self.flops_per_token,
                }),
            },
            schedule_policy: "fcfs".to_owned(),
            diagnoses_misses: false,
        }
    }
}

/// Text whose tokens begin with `first`, and an image if there is a picture.
fn prompt(
    first: u32,
    n_tokens: u32,
    picture: Option<u8>,
) -> (Arc<[u32]>, Option<Arc<PromptImages>>) {
    let mut ids: Vec<u32> = (first..first + n_tokens).collect();
    let Some(picture) = picture else {
        return (ids.into(), None);
    };
    let begin = ids.len() as u32;
    ids.push(300);
    ids.extend((0..VECTORS).map(|_| 301));
    ids.push(302);
    let image = PromptImage {
        positions: begin..ids.len() as u32,
        pad: 301,
        digest: ImageDigest([picture; 32]),
        grid: ImageGrid {
            rows: VECTORS,
            columns: 1,
        },
        vectors: None,
        input: None,
    };
    ids.push(400);
    let images = PromptImages::new(&ids, &[image]).expect("valid images");
    let keyed = images.keyed(&ids, |image| {
        let picture = u32::from(image.digest().0[0]);
        move |offset: u32, _: Option<u32>| KEY_BIT | (picture << 12) | offset
    });
    (keyed, Some(Arc::new(images)))
}

/// The tokens of a request, and whether it has ended.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    n_tokens: usize,
    has_ended: bool,
}

struct World {
    case: Case,
    states: ControlStates,
    encodings: Encodings,
    in_flight: VecDeque<StepPlan>,
    requests: HashMap<IntakeId, Progress>,
    /// Units of each image to come.
    n_units: usize,
    /// The time of each step with a slice.
    slices: Vec<u64>,
}

impl Drop for World {
    /// Streams still run at the end of a test.
    fn drop(&mut self) {
        self.states.ledger.close();
    }
}

impl World {
    fn new(case: Case, n_units: usize) -> Self {
        Self {
            case,
            states: case.setup().build().expect("the pools are small"),
            encodings: Encodings::new(1 << 20),
            in_flight: VecDeque::new(),
            requests: HashMap::new(),
            n_units,
            slices: Vec::new(),
        }
    }

    fn submit(&mut self, n_tokens: u32, picture: Option<u8>, max_new_tokens: u32) -> IntakeId {
        let intake = IntakeId::new(self.requests.len() as u64);
        let first = 10_000 * (1 + self.requests.len() as u32);
        let (prompt, images) = prompt(first, n_tokens, picture);
        let sampling = SamplingParams {
            max_new_tokens,
            ignore_eos: true,
            sampling_seed: Some(0),
            ..SamplingParams::default()
        };
        self.states.scheduler.submit(Submission {
            rid: RequestId::new(intake.to_string()),
            intake,
            prompt,
            namespace: Namespace::default(),
            sampling: Arc::new(sampling),
            logprobs: None,
            opening: Arc::default(),
            anchors: Arc::default(),
            grammar: None,
            vectors: None,
            images,
            bypasses_cache: false,
            pooling: None,
            priority: None,
            cancel: CancelFlag::default(),
            submitted_s: 0.0,
            timeouts: RequestTimeouts::default(),
            draft_texts: Default::default(),
        });
        self.requests.insert(intake, Progress::default());
        intake
    }

    /// Carries orders and news between the scheduler and the queue of images; false if there are none.
    fn exchange(&mut self) -> bool {
        let work: Arc<[u64]> = vec![UNIT; self.n_units].into();
        for order in self.states.scheduler.take_vision_orders() {
            match order {
                VisionOrder::Encode { ticket, image } => {
                    self.encodings.encode(ticket, image, |_| work.clone());
                }
                VisionOrder::Release { ticket } => self.encodings.release(ticket),
            }
        }
        let news = self.encodings.take_news();
        let has_any = !news.is_empty();
        for news in news {
            self.states.scheduler.vision_told(news);
        }
        has_any
    }

    /// Runs the next step; false if there is none.
    fn step(&mut self) -> bool {
        loop {
            while let Some(plan) = self.states.advance() {
                self.in_flight.push_back(*plan);
            }
            if !self.exchange() {
                break;
            }
        }
        let Some(plan) = self.in_flight.pop_front() else {
            self.take_news();
            return false;
        };
        let micros = self.micros(&plan);
        if let Some(slice) = &plan.vision {
            self.slices.push(micros);
            if slice.units.end == slice.n_units {
                let vectors = PromptVectors::new(2, vec![0.5; 2 * VECTORS as usize]);
                let vectors = Arc::new(vectors.expect("valid vectors"));
                assert!(self.encodings.encoded(slice.job, Ok(vectors)));
            }
        }
        self.states.scheduler.step_took(plan.step, micros);
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
        self.states.scheduler.step_done(plan.step, Ok(output));
        self.take_news();
        true
    }

    fn micros(&self, plan: &StepPlan) -> u64 {
        let prefilled = plan.rows.iter().map(|row| match &row.work {
            RowWork::Prefill { positions } => positions.len(),
            RowWork::Decode { .. } => 0,
        });
        let prefilled: usize = prefilled.sum();
        let rows = match plan.rows.len() {
            0 => 0,
            _ => self.case.prefill_us(prefilled),
        };
        let slice = plan.vision.as_ref().map_or(0, |slice| {
            assert!(!slice.units.is_empty(), "{}", self.case.name);
            assert_eq!(prefilled, 0, "{}", self.case.name);
            slice.units.len() as u64 * UNIT / self.case.flops_per_us
        });
        rows + slice
    }

    fn take_news(&mut self) {
        for news in self.states.scheduler.take_news() {
            let progress = self.requests.entry(news.intake).or_default();
            progress.n_tokens += news.tokens.len();
            progress.has_ended |= news.end.is_some();
        }
    }

    fn run_until(&mut self, is_done: impl Fn(&Self) -> bool) {
        for _ in 0..5000 {
            if is_done(self) {
                return;
            }
            assert!(self.step(), "{}: nothing runs", self.case.name);
        }
        panic!("{}: no progress", self.case.name);
    }

    fn run_to_end_of(&mut self, intake: IntakeId) {
        self.run_until(|world| world.requests[&intake].has_ended);
    }
}

#[test]
fn no_step_with_a_slice_takes_longer_than_the_longest_prefill_step() {
    for case in CASES {
        let mut world = World::new(case, 300);
        let stream = world.submit(20, None, 5000);
        world.run_until(|world| world.requests[&stream].n_tokens >= 3);
        let text = world.submit(700, None, 1);
        world.run_to_end_of(text);
        let picture = world.submit(20, Some(1), 2);
        world.run_to_end_of(picture);
        assert!(!world.requests[&stream].has_ended, "{}", case.name);
        let longest = world.slices.iter().max().expect("the image is encoded");
        let bound = case.bound_us();
        assert!(
            *longest <= bound,
            "{}: {longest} us, at most {bound}",
            case.name
        );
        // The first ones are planned before any was measured, and the last one is the rest.
        let usual = &world.slices[4..world.slices.len() - 1];
        let least = case.longest_prefill_us() / 5;
        assert!(
            usual.iter().all(|us| *us >= least),
            "{}: at least {least} us: {usual:?}",
            case.name
        );
    }
}

#[test]
fn an_image_is_encoded_alone_in_few_steps() {
    for case in CASES {
        let mut world = World::new(case, 300);
        let picture = world.submit(20, Some(1), 2);
        world.run_to_end_of(picture);
        let whole_us = 300 * UNIT / case.flops_per_us;
        let slices: u64 = world.slices.iter().sum();
        assert_eq!(slices, whole_us, "{}", case.name);
        let longest = world.slices.iter().max().expect("the image is encoded");
        assert!(*longest <= case.bound_us(), "{}: {longest} us", case.name);
    }
    // A small image: two units for each of 27 layers.
    let mut world = World::new(TWO_CORES, 300);
    let first = world.submit(20, Some(1), 2);
    world.run_to_end_of(first);
    world.slices.clear();
    world.n_units = 54;
    let small = world.submit(20, Some(2), 2);
    world.run_to_end_of(small);
    assert!(world.slices.len() <= 5, "{:?}", world.slices);
}
