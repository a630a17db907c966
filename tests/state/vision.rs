//! Tests of prompts whose images are encoded by the engine, in virtual time with two steps in flight: which images are
//! encoded, and how long streams wait meanwhile.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use smallvec::smallvec;
use souffleur_base::error::StepError;
use souffleur_base::ids::{IntakeId, RequestId, Ticket};
use souffleur_request::{CancelFlag, RequestTimeouts};
use souffleur_state::cache::eviction::EvictionPolicy;
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::control::{ControlSetup, ControlStates};
use souffleur_state::pool::pages::PageSize;
use souffleur_state::prompt_images::{ImageDigest, ImageGrid, KEY_BIT, PromptImage, PromptImages};
use souffleur_state::prompt_vectors::PromptVectors;
use souffleur_state::sampling::SamplingParams;
use souffleur_state::scheduler::live::LiveState;
use souffleur_state::scheduler::news::RequestEnd;
use souffleur_state::scheduler::submission::Submission;
use souffleur_state::scheduler::vision::VisionLimits;
use souffleur_state::scheduler::{BatchRules, QueueRules, SchedulerLimits};
use souffleur_state::step::{RowResult, RowVerdict, RowWork, StepOutput, StepPlan};
use souffleur_state::vision::{Encodings, Found, VisionOrder};

/// Two cores: the model reads its weights in `STEP` microseconds, and takes `ROW` for a row of a prefill.
const STEP: u64 = 45_000;
const ROW: u64 = 3500;
const FLOPS_PER_TOKEN: u64 = 1_200_000_000;
/// Operations of the tower in a microsecond.
const FLOPS_PER_US: u64 = 400_000;
/// A layer of a tower, of which an image has `UNITS`: 100 ms.
const UNIT: u64 = 100_000 * FLOPS_PER_US;
const UNITS: usize = 29;
const STEP_MS: u32 = 500;
const TEXT: u32 = 20;
const VECTORS: u32 = 64;

fn setup(max_vectors: usize) -> ControlSetup {
    ControlSetup {
        limits: SchedulerLimits {
            page_size: PageSize::new(1).expect("positive"),
            total_pages: 8192,
            total_rows: 16,
            max_prefill_tokens: 4096,
            chunk_tokens: Some(1024),
            prefix_wait: true,
            rules: BatchRules {
                max_prefill_step_ms: Some(STEP_MS),
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
                max_vectors,
                flops_per_token: FLOPS_PER_TOKEN,
            }),
        },
        schedule_policy: "fcfs".to_owned(),
        diagnoses_misses: false,
    }
}

/// Text, an image with a mark on each side for each number, and a question.
fn prompt(pictures: &[u8], question: u32) -> (Arc<[u32]>, Option<Arc<PromptImages>>) {
    let mut ids: Vec<u32> = (0..TEXT).collect();
    let mut images = Vec::new();
    for picture in pictures {
        let first = ids.len() as u32;
        ids.push(300);
        ids.extend((0..VECTORS).map(|_| 301));
        ids.push(302);
        images.push(PromptImage {
            positions: first..ids.len() as u32,
            pad: 301,
            digest: ImageDigest([*picture; 32]),
            grid: ImageGrid {
                rows: VECTORS,
                columns: 1,
            },
            vectors: None,
            input: None,
        });
    }
    ids.extend([400 + question, 500 + question]);
    if images.is_empty() {
        return (ids.into(), None);
    }
    let images = PromptImages::new(&ids, &images).expect("valid images");
    let keyed = images.keyed(&ids, |image| {
        let picture = u32::from(image.digest().0[0]);
        move |offset: u32, _: Option<u32>| KEY_BIT | (picture << 12) | offset
    });
    (keyed, Some(Arc::new(images)))
}

#[derive(Debug, Default)]
struct Progress {
    /// The times of the tokens.
    tokens: Vec<u64>,
    end: Option<RequestEnd>,
}

struct World {
    states: ControlStates,
    encodings: Encodings,
    in_flight: VecDeque<StepPlan>,
    now: u64,
    requests: HashMap<IntakeId, Progress>,
    /// Units that the tower has done for its image.
    job: Option<(Ticket, u32)>,
    /// Images that were encoded to their end.
    n_encoded: usize,
    /// The time of each step with a slice, and of each with a prefill.
    slices: Vec<u64>,
    prefills: Vec<u64>,
    /// Steps with a slice to lose.
    faults: usize,
}

impl World {
    fn new(max_vectors: usize) -> Self {
        Self::of(&setup(max_vectors))
    }

    fn of(setup: &ControlSetup) -> Self {
        Self {
            states: setup.build().expect("the pools are small"),
            encodings: Encodings::new(1 << 20),
            in_flight: VecDeque::new(),
            now: 0,
            requests: HashMap::new(),
            job: None,
            n_encoded: 0,
            slices: Vec::new(),
            prefills: Vec::new(),
            faults: 0,
        }
    }

    fn submit(&mut self, pictures: &[u8], question: u32, max_new_tokens: u32) -> IntakeId {
        let intake = IntakeId::new(self.requests.len() as u64);
        let (prompt, images) = prompt(pictures, question);
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

    fn cancel(&mut self, intake: IntakeId) {
        let rid = RequestId::new(intake.to_string());
        self.states.scheduler.cancel(&rid, None);
    }

    /// Carries orders and news between the scheduler and the queue of images; false if there are none.
    fn exchange(&mut self) -> bool {
        let mut has_any = false;
        loop {
            for order in self.states.scheduler.take_vision_orders() {
                match order {
                    VisionOrder::Encode { ticket, image } => {
                        let found = self
                            .encodings
                            .encode(ticket, image, |_| [UNIT; UNITS].into());
                        assert_ne!(found, Found::Refused);
                    }
                    VisionOrder::Release { ticket } => self.encodings.release(ticket),
                }
            }
            let news = self.encodings.take_news();
            if news.is_empty() {
                return has_any;
            }
            has_any = true;
            for news in news {
                self.states.scheduler.vision_told(news);
            }
        }
    }

    fn plan(&mut self) {
        loop {
            while let Some(plan) = self.states.advance() {
                for start in &plan.starts {
                    let images = start.images.as_ref();
                    let until = images.map_or(0, |images| images.cached_until());
                    let cached = start.prefix.len() as u32;
                    assert!(until <= cached, "{until} lack vectors, {cached} are cached");
                }
                self.in_flight.push_back(*plan);
            }
            if !self.exchange() {
                return;
            }
        }
    }

    /// Runs the next step; returns false if there is none.
    fn step(&mut self) -> bool {
        self.plan();
        let Some(plan) = self.in_flight.pop_front() else {
            self.take_news();
            return false;
        };
        let micros = self.micros(&plan);
        self.now += micros;
        let is_lost = plan.vision.is_some() && self.faults > 0;
        if is_lost {
            self.faults -= 1;
            self.job = None;
            let error = StepError::Lost("the tower panicked".to_owned());
            self.states.scheduler.step_done(plan.step, Err(error));
        } else {
            let is_timed = self.states.scheduler.wants_time_of(plan.step);
            assert!(is_timed || plan.vision.is_none());
            self.run_slice(&plan);
            self.states.scheduler.step_took(plan.step, micros);
            let output = Self::results(&plan);
            self.states.scheduler.step_done(plan.step, Ok(output));
        }
        self.take_news();
        true
    }

    fn take_news(&mut self) {
        for news in self.states.scheduler.take_news() {
            let progress = self.requests.entry(news.intake).or_default();
            progress.tokens.extend(news.tokens.iter().map(|_| self.now));
            if let Some(end) = news.end {
                progress.end = Some(*end);
            }
        }
    }

    fn micros(&mut self, plan: &StepPlan) -> u64 {
        let works = plan.rows.iter().map(|row| &row.work);
        let prefilled = works.map(|work| match work {
            RowWork::Prefill { positions } => positions.len() as u64,
            RowWork::Decode { .. } => 0,
        });
        let prefilled: u64 = prefilled.sum();
        let rows = match plan.rows.len() {
            0 => 0,
            _ => STEP.max(prefilled * ROW),
        };
        let slice = plan.vision.as_ref().map(|slice| slice.units.len() as u64);
        let micros = rows + slice.unwrap_or(0) * UNIT / FLOPS_PER_US;
        if slice.is_some() {
            assert_eq!(prefilled, 0, "a step has tokens to prefill or a slice");
            self.slices.push(micros);
        } else if prefilled > 0 {
            self.prefills.push(micros);
        }
        micros
    }

    fn run_slice(&mut self, plan: &StepPlan) {
        let Some(slice) = &plan.vision else {
            return;
        };
        let done = match self.job {
            Some((job, done)) if job == slice.job => done,
            // Another image, or one whose units before were lost.
            _ if slice.units.start > 0 => return,
            _ => 0,
        };
        assert_eq!((slice.units.start, slice.n_units), (done, UNITS as u32));
        assert!(!slice.units.is_empty());
        self.job = Some((slice.job, slice.units.end));
        if slice.units.end == slice.n_units {
            let vectors = PromptVectors::new(2, vec![0.5; 2 * VECTORS as usize]);
            let vectors = Arc::new(vectors.expect("valid vectors"));
            let is_wanted = self.encodings.encoded(slice.job, Ok(vectors));
            self.n_encoded += usize::from(is_wanted);
        }
    }

    fn results(plan: &StepPlan) -> StepOutput {
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
        StepOutput {
            step: plan.step,
            rows: rows.collect(),
        }
    }

    fn run(&mut self) {
        for _ in 0..10_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the requests do not end");
    }

    /// Checks that all requests have ended, and that they hold nothing.
    fn assert_idle(&mut self) {
        self.plan();
        for (intake, progress) in &self.requests {
            assert!(progress.end.is_some(), "{intake}");
        }
        let stats = self.states.scheduler.stats();
        assert!(stats.is_idle_and_whole(), "{stats:?}");
        assert_eq!(self.encodings.n_waiting(), 0);
        // Everything that is still held may be dropped.
        let (n_held, _) = self.encodings.held();
        assert!(n_held <= 4096);
    }

    fn n_tokens(&self, intake: IntakeId) -> usize {
        self.requests[&intake].tokens.len()
    }

    /// The longest time between two tokens of a request.
    fn longest_gap(&self, intake: IntakeId) -> u64 {
        let times = &self.requests[&intake].tokens;
        let gaps = times.windows(2).map(|two| two[1] - two[0]);
        gaps.max().expect("several tokens")
    }
}

#[test]
fn a_second_question_encodes_nothing() {
    let mut world = World::new(4096);
    let first = world.submit(&[1], 1, 4);
    world.run();
    assert_eq!((world.n_tokens(first), world.n_encoded), (4, 1));
    let n_slices = world.slices.len();
    let second = world.submit(&[1], 2, 4);
    world.run();
    assert_eq!((world.n_tokens(second), world.n_encoded), (4, 1));
    assert_eq!(world.slices.len(), n_slices);
    // After another image the first one is not cached in the tree, but its vectors are.
    let third = world.submit(&[2, 1], 3, 4);
    world.run();
    assert_eq!((world.n_tokens(third), world.n_encoded), (4, 2));
    world.assert_idle();
}

#[test]
fn requests_with_one_image_share_its_encoding() {
    let mut world = World::new(4096);
    let all: Vec<IntakeId> = (0..5).map(|at| world.submit(&[3], at, 4)).collect();
    let twice = world.submit(&[3, 3], 9, 4);
    world.run();
    assert_eq!(world.n_encoded, 1);
    for intake in all {
        assert_eq!(world.n_tokens(intake), 4);
    }
    assert_eq!(world.n_tokens(twice), 4);
    world.assert_idle();
}

#[test]
fn streams_wait_for_at_most_one_slice() {
    let mut world = World::new(4096);
    let stream = world.submit(&[], 1, 400);
    while world.n_tokens(stream) < 5 {
        assert!(world.step());
    }
    let picture = world.submit(&[1], 2, 4);
    // A prompt of text comes while the image is encoded, and shares the time with it.
    while world.slices.len() < 2 {
        assert!(world.step());
    }
    let text = world.submit(&[], 3, 2);
    world.run();
    assert_eq!((world.n_tokens(picture), world.n_tokens(text)), (4, 2));
    let longest = world.longest_gap(stream);
    let bound = u64::from(STEP_MS) * 1200 + STEP;
    assert!(longest <= bound, "{longest} us, at most {bound}");
    // The first two are planned before any was measured. The others fill the time of a step, but for the last.
    let filled = &world.slices[2..world.slices.len() - 1];
    assert!(filled.iter().all(|us| *us >= 300_000), "{filled:?}");
    world.assert_idle();
}

#[test]
fn a_cancelled_request_holds_no_room_closed() {
    let mut world = World::new(2 * VECTORS as usize);
    let first = world.submit(&[1], 1, 2);
    let large = world.submit(&[2, 3], 2, 2);
    let small = world.submit(&[4], 3, 2);
    assert!(world.step());
    let one = (VECTORS as usize, 1);
    assert_eq!(world.states.scheduler.wanted_vectors(), one);
    world.cancel(large);
    // Of the first image's slices, only a few have been computed.
    for _ in 0..3 {
        assert!(world.step());
    }
    let both = (2 * VECTORS as usize, 2);
    assert_eq!(world.states.scheduler.wanted_vectors(), both);
    world.run();
    assert_eq!((world.n_tokens(first), world.n_tokens(small)), (2, 2));
    world.assert_idle();
}

#[test]
fn slices_grow_without_a_time_bound_of_steps() {
    // By the text model's operations the rest of the image is one slice; by the default time, several units are.
    for (flops_per_token, most) in [(FLOPS_PER_TOKEN, 3), (0, 12)] {
        let mut setup = setup(4096);
        setup.limits.rules.max_prefill_step_ms = None;
        setup.limits.vision = Some(VisionLimits {
            max_vectors: 4096,
            flops_per_token,
        });
        let mut world = World::of(&setup);
        let picture = world.submit(&[1], 1, 2);
        world.run();
        assert_eq!(world.n_tokens(picture), 2);
        assert!(world.slices.len() <= most, "{:?}", world.slices);
        world.assert_idle();
    }
}

#[test]
fn a_long_prefill_and_an_image_take_turns() {
    // The second request's image is encoded while the first one's prompt is prefilled in chunks.
    let mut world = World::new(4096);
    let stream = world.submit(&[], 1, 300);
    while world.n_tokens(stream) < 5 {
        assert!(world.step());
    }
    let first = world.submit(&[1, 2, 3, 4, 5, 6, 7, 8], 2, 2);
    while world.n_encoded < 8 {
        assert!(world.step());
    }
    let second = world.submit(&[9], 3, 2);
    world.run();
    assert_eq!((world.n_tokens(first), world.n_tokens(second)), (2, 2));
    assert_eq!(world.n_encoded, 9);
    assert!(world.prefills.len() >= 5, "{:?}", world.prefills);
    let bound = u64::from(STEP_MS) * 1200 + STEP;
    assert!(world.longest_gap(stream) <= bound);
    world.assert_idle();
}

#[test]
fn cancelled_requests_leave_nothing() {
    for n_steps in 0..40 {
        let mut world = World::new(4096);
        let stays = world.submit(&[], 1, 10);
        let cancelled = world.submit(&[1, 2], 2, 10);
        let shares = world.submit(&[2], 3, 3);
        for _ in 0..n_steps {
            if !world.step() {
                break;
            }
        }
        world.cancel(cancelled);
        world.run();
        assert_eq!((world.n_tokens(stays), world.n_tokens(shares)), (10, 3));
        // The image that no request waits for is encoded only if this ended before.
        assert!((1..=2).contains(&world.n_encoded), "{n_steps} steps");
        world.assert_idle();
    }
}

#[test]
fn lost_steps_lose_no_request_and_no_vectors() {
    // A request survives one loss while it is alone.
    for (n_faults, n_failed) in [(1, 0), (2, 0), (10, 1)] {
        let mut world = World::new(4096);
        let text = world.submit(&[], 1, 30);
        let picture = world.submit(&[1], 2, 3);
        world.faults = n_faults;
        world.run();
        assert_eq!(world.n_tokens(text), 30);
        let failed = world.requests.values();
        let failed = failed.filter(|it| matches!(it.end, Some(RequestEnd::Failed(_))));
        assert_eq!(failed.count(), n_failed, "{n_faults} faults");
        if n_failed == 0 {
            assert_eq!((world.n_tokens(picture), world.n_encoded), (3, 1));
        }
        world.assert_idle();
    }
}

#[test]
fn waiting_requests_hold_a_bounded_number_of_vectors() {
    let mut world = World::new(2 * VECTORS as usize);
    let all: Vec<IntakeId> = (0..8).map(|at| world.submit(&[at], 1, 2)).collect();
    // More than the limit, alone.
    let large = world.submit(&[20, 21, 22, 23], 1, 2);
    let mut most = 0;
    while world.step() {
        let (live, _) = world.states.scheduler.live_requests(0.0, 100);
        let encoding = live.iter().filter(|it| it.state == LiveState::Encoding);
        let encoding: Vec<&str> = encoding.map(|it| it.rid.as_str()).collect();
        if encoding != ["8"] {
            most = most.max(encoding.len());
        }
    }
    assert!(
        (1..=2).contains(&most),
        "{most} waited for their images at once"
    );
    for intake in all.into_iter().chain([large]) {
        assert_eq!(world.n_tokens(intake), 2);
    }
    assert_eq!(world.n_encoded, 12);
    world.assert_idle();
}
