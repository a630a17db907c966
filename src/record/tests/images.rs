//! Tests that the log of an engine that encodes images is replayed without pixels and vectors.

use super::*;
use souffleur_executor::fake::fake_tower_work;
use souffleur_state::prompt_images::{
    ImageDigest, ImageGrid, ImageInput, PromptImage, PromptImages,
};
use souffleur_state::prompt_vectors::PromptVectors;
use souffleur_state::scheduler::vision::VisionLimits;
use souffleur_state::vision::{Encodings, VisionOrder};

/// An image has a vector for each of its patches.
const GRID: ImageGrid = ImageGrid {
    rows: 3,
    columns: 4,
};
const N_VECTORS: u32 = GRID.rows * GRID.columns;
/// Two images at once.
const MAX_VECTORS: usize = 2 * N_VECTORS as usize;
const PAD: u32 = VOCAB;
/// A picture that comes with its vectors.
const GIVEN: u8 = 254;
/// A picture that the tower cannot encode.
const BROKEN: u8 = 255;

#[derive(Debug)]
struct Pixels(u8);

impl ImageInput for Pixels {
    fn n_views(&self) -> usize {
        1
    }

    fn grid(&self, _: usize) -> ImageGrid {
        GRID
    }

    fn patches(&self, _: usize) -> Vec<f32> {
        let value = match self.0 {
            BROKEN => f32::NAN,
            picture => f32::from(picture),
        };
        vec![value; N_VECTORS as usize]
    }

    fn bytes(&self) -> usize {
        1
    }
}

fn image(picture: u8, first: u32) -> PromptImage {
    let is_given = picture == GIVEN;
    let vectors = PromptVectors::new(2, vec![f32::from(picture); 2 * N_VECTORS as usize]);
    PromptImage {
        positions: first..first + N_VECTORS,
        pad: PAD,
        digest: ImageDigest([picture; 32]),
        grid: GRID,
        vectors: is_given.then(|| Arc::new(vectors.expect("valid vectors"))),
        input: (!is_given).then(|| Arc::new(Pixels(picture)) as Arc<dyn ImageInput>),
    }
}

/// Submits a text with pictures in it.
fn submit(engine: &mut Engine, pictures: &[u8], question: u32, max_new_tokens: u32) -> CancelFlag {
    engine.n_submitted += 1;
    let number = engine.n_submitted;
    let mut ids = vec![1, 2, 3, 4, 5];
    let mut images = Vec::new();
    for picture in pictures {
        images.push(image(*picture, ids.len() as u32));
        ids.extend([PAD; N_VECTORS as usize]);
    }
    ids.extend([question, 7]);
    let images = PromptImages::new(&ids, &images).expect("valid images");
    let prompt = images.keyed(&ids, |image| {
        let picture = u32::from(image.digest().0[0]);
        move |offset: u32, _: Option<u32>| (picture << 12) | offset
    });
    let flag = CancelFlag::default();
    let sampling = SamplingParams {
        max_new_tokens,
        sampling_seed: Some(number),
        ..SamplingParams::default()
    };
    engine.states.scheduler.submit(Submission {
        rid: RequestId::new(format!("r{number}")),
        intake: IntakeId::new(number),
        prompt,
        namespace: Namespace::default(),
        sampling: Arc::new(sampling),
        logprobs: None,
        opening: Arc::default(),
        grammar: None,
        vectors: None,
        images: Some(Arc::new(images)),
        bypasses_cache: false,
        pooling: None,
        anchors: Arc::default(),
        priority: None,
        cancel: flag.clone(),
        submitted_s: 0.5,
        timeouts: RequestTimeouts::default(),
        draft_texts: Default::default(),
    });
    engine.drive();
    flag
}

/// Carries orders, news and encoded images until there are none.
fn exchange(engine: &mut Engine, encodings: &mut Encodings) {
    loop {
        for image in engine.executor.take_encoded() {
            encodings.encoded(image.job, image.result);
        }
        for order in engine.states.scheduler.take_vision_orders() {
            match order {
                VisionOrder::Encode { ticket, image } => {
                    encodings.encode(ticket, image, |input| {
                        fake_tower_work(input.expect("the pixels"))
                    });
                }
                VisionOrder::Release { ticket } => encodings.release(ticket),
            }
        }
        let news = encodings.take_news();
        if news.is_empty() {
            return;
        }
        for news in news {
            engine.states.scheduler.vision_told(news);
        }
        engine.drive();
    }
}

/// Ends all requests.
fn drain(mut engine: Engine, encodings: &mut Encodings) {
    exchange(&mut engine, encodings);
    while !engine.steps.is_empty() {
        engine.end_step();
        exchange(&mut engine, encodings);
    }
    engine.drain();
    assert_eq!(engine.states.scheduler.wanted_vectors(), (0, 0));
}

/// An engine with a tower.
fn engine(sink: &Arc<LogSink>, setup: &ControlSetup) -> Engine {
    let mut engine = Engine::with_setup(setup, Some(sink.recorder(1)));
    let executor = FakeExecutor::new(FakeOptions {
        page_size: 1,
        n_pages: setup.limits.total_pages,
        vocab_size: VOCAB,
        verify: true,
        n_states: 0,
        hidden_size: 0,
        faults: Vec::new(),
    });
    engine.executor = executor.with_tower(2);
    engine
}

fn run_with_images(sink: &Arc<LogSink>, setup: &ControlSetup) {
    let mut engine = engine(sink, setup);
    let mut encodings = Encodings::new(0);
    let mut random = fastrand::Rng::with_seed(5);
    for round in 0..60_u8 {
        let picture = random.u8(0..40);
        let question = random.u32(50..90);
        let flag = submit(&mut engine, &[picture], question, random.u32(1..8));
        if round % 7 == 3 {
            flag.raise();
        }
        if round == 30 {
            exchange(&mut engine, &mut encodings);
            let step = engine.steps.pop_front().expect("a step is running").step;
            let lost = Err(StepError::Lost("as the test requires".to_owned()));
            engine.states.scheduler.step_done(step, lost);
            engine.drive();
        }
        for _ in 0..random.u32(0..7) {
            exchange(&mut engine, &mut encodings);
            engine.end_step();
        }
    }
    drain(engine, &mut encodings);
}

fn setup_with_tower() -> ControlSetup {
    let mut setup = setup();
    setup.limits.vision = Some(VisionLimits {
        max_vectors: MAX_VECTORS,
        // A slice has one of an image's three units.
        flops_per_token: 500_000,
    });
    setup
}

#[test]
fn the_place_of_an_image_that_fails_is_replayed() {
    let setup = setup_with_tower();
    let log = log_with(&setup, NO_LIMIT, |sink| {
        let (mut engine, mut encodings) = (engine(sink, &setup), Encodings::new(0));
        submit(&mut engine, &[1, GIVEN, BROKEN], 50, 4);
        drain(engine, &mut encodings);
    });
    let entries = entries_of(&log);
    let is_failed = |entry: &Entry| matches!(entry, Entry::NotEncoded { .. });
    assert!(entries.iter().any(is_failed));
    // The request's end names the third image.
    let replayed = replay_of(&log).expect("it can be replayed");
    assert_eq!(replayed.difference, None);
}

#[test]
fn a_log_with_images_replays_without_pixels() {
    let setup = setup_with_tower();
    let log = log_with(&setup, NO_LIMIT, |sink| run_with_images(sink, &setup));
    let replayed = replay_of(&log).expect("it can be replayed");
    assert_eq!(replayed.difference, None);
    assert!(replayed.counts.requests >= 60 && replayed.counts.steps > 100);
    let entries = entries_of(&log);
    let encoded = entries
        .iter()
        .filter(|entry| matches!(entry, Entry::Encoded { .. }));
    assert!(encoded.count() > 10);
    // With room for one more image, images are encoded at other times.
    let larger = |setup: &ControlSetup| {
        let mut setup = setup.clone();
        setup.limits.vision = setup.limits.vision.map(|limits| VisionLimits {
            max_vectors: limits.max_vectors + N_VECTORS as usize,
            ..limits
        });
        setup.build()
    };
    let replayed = replay(log.as_slice(), &larger).expect("it can be replayed");
    assert!(replayed.difference.is_some());
}
