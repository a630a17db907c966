//! Tests of rows with images: the bits of their logits for every cut of their positions, the positions of M-RoPE, and
//! plans that are refused.

use std::ops::Range;
use std::sync::Arc;

use souffleur_base::error::StepError;
use souffleur_base::ids::PageId;
use souffleur_executor::Executor;
use souffleur_executor::cpu::{CpuExecutor, CpuOptions};
use souffleur_kernels::dtype::Dtype;
use souffleur_request::{ImageDigest, ImageGrid, PromptImage, PromptVectors};
use souffleur_state::pool::pages::PageRun;
use souffleur_state::prompt_images::{KEY_BIT, PromptImages};
use souffleur_state::step::{RowStart, StepPlan};

use crate::common::{
    all_positions, append, decode, fixture, greedy, load, options, plan, prefill, start, tokens,
};
use crate::embeddings::embeddings;
use crate::invariance::{Bits, observe};
use crate::kernel_paths::repeats_floats;

pub const ROW: u32 = 7;
const DECODES: u32 = 3;
const VOCAB: u32 = 288;
const PAD: u32 = 250;
/// Marks, which the model looks up.
const BEGIN: u32 = 251;
const END: u32 = 252;
/// A model whose images have vectors for its first layers.
const DEEPSTACK: &str = "qwen3-vl";

/// A prompt of text, an image, text, an image and text.
pub struct Prompt {
    /// True ids.
    pub tokens: Vec<u32>,
    /// The prompt with the tokens whose embeddings are the images' vectors.
    as_text: Vec<u32>,
    pub images: Vec<PromptImage>,
}

/// The embeddings of these tokens, with the further vectors of a model that has them for its first two layers.
fn vectors_of(model: &str, tokens: &[u32]) -> Arc<PromptVectors> {
    let embedded = embeddings(&fixture(model), tokens);
    if model != DEEPSTACK {
        return embedded;
    }
    let width = embedded.width();
    let vectors = embedded.values(0..embedded.len()).chunks_exact(width);
    let values = vectors.flat_map(|vector| {
        let second = vector.iter().rev().map(|x| x / 2.0);
        let third = vector.iter().map(|x| -0.75 * x);
        let all = vector.iter().copied().chain(second).chain(third);
        all.collect::<Vec<f32>>()
    });
    let vectors = PromptVectors::new(3 * width, values.collect());
    Arc::new(vectors.expect("finite numbers"))
}

/// `grids` are rows and columns of the images.
pub fn prompt(model: &str, grids: [(u32, u32); 2]) -> Prompt {
    let text = tokens(1, 12, 240);
    let (mut prompt, mut as_text) = (text[..5].to_vec(), text[..5].to_vec());
    let mut images = Vec::new();
    for (number, (rows, columns)) in (0_u8..).zip(grids) {
        let (first, n_vectors) = (prompt.len() as u32, (rows * columns) as usize);
        let pixels = tokens(10 + u64::from(number), n_vectors, 240);
        prompt.push(BEGIN);
        prompt.extend(std::iter::repeat_n(PAD, n_vectors));
        prompt.push(END);
        as_text.push(BEGIN);
        as_text.extend(&pixels);
        as_text.push(END);
        images.push(PromptImage {
            positions: first..prompt.len() as u32,
            pad: PAD,
            digest: ImageDigest([number; 32]),
            grid: ImageGrid { rows, columns },
            vectors: Some(vectors_of(model, &pixels)),
            input: None,
        });
        let from = 5 + 3 * usize::from(number);
        prompt.extend(&text[from..from + 3]);
        as_text.extend(&text[from..from + 3]);
    }
    Prompt {
        tokens: prompt,
        as_text,
        images,
    }
}

impl Prompt {
    pub fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    pub fn start(&self) -> RowStart {
        begin(&self.tokens, &self.images)
    }
}

/// The start of a row with these true ids and images.
pub fn begin(tokens: &[u32], images: &[PromptImage]) -> RowStart {
    if images.is_empty() {
        return start(ROW, tokens, tokens.len(), &greedy());
    }
    let table = PromptImages::new(tokens, images).expect("valid images");
    let keyed = table.keyed(tokens, |image| {
        let name = u32::from(image.digest().0[0]) << 16;
        move |offset: u32, _: Option<u32>| name | offset
    });
    let mut begun = start(ROW, &keyed, keyed.len(), &greedy());
    begun.images = Some(Arc::new(table));
    begun
}

/// The bits of the logits at each position that is computed, in chunks between `cuts`, and of some decodes.
pub fn run(executor: &mut CpuExecutor, begun: RowStart, pages: Range<u32>, cuts: &[u32]) -> Bits {
    let mut bits = Bits::new();
    let n_tokens = begun.tokens.len() as u32;
    let chunks = cuts.windows(2).map(|ends| {
        let mut work = prefill(ROW, ends[0]..ends[1], ends[1] == n_tokens);
        work.logprobs = all_positions();
        work
    });
    let decodes = (0..DECODES).map(|at| decode(ROW, n_tokens + at));
    let mut begun = Some(begun);
    for (turn, work) in (0..).zip(chunks.chain(decodes)) {
        let mut step = plan(turn);
        if let Some(begun) = begun.take() {
            step.starts = vec![begun];
            step.table = vec![append(ROW, pages.clone())];
        }
        step.rows = vec![work];
        observe(executor, &step, &mut bits);
    }
    bits
}

pub fn first_pages(n: u32) -> PageRun {
    let pages: Arc<[PageId]> = (1..=n).map(PageId::new).collect();
    let mut run = PageRun::empty();
    run.push(&pages, 0..n);
    run
}

#[test]
fn chunks_end_at_any_position_of_an_image() {
    if repeats_floats() {
        return;
    }
    for model in ["llama", "qwen3-5", DEEPSTACK] {
        let prompt = prompt(model, [(2, 3), (1, 4)]);
        let n_tokens = prompt.len();
        let mut executor = load(model, &options());
        let expected = run(&mut executor, prompt.start(), 1..40, &[0, n_tokens]);
        assert_eq!(expected.len() as u32, n_tokens + DECODES, "{model}");
        for cut in 1..n_tokens {
            let got = run(&mut executor, prompt.start(), 50..90, &[0, cut, n_tokens]);
            assert!(got == expected, "{model}, cut at {cut}");
        }
    }
}

#[test]
fn a_cached_prefix_ends_at_any_position_of_an_image() {
    if repeats_floats() {
        return;
    }
    for model in ["llama", DEEPSTACK] {
        let mut prompt = prompt(model, [(2, 3), (1, 4)]);
        let n_tokens = prompt.len();
        let mut executor = load(model, &options());
        let expected = run(&mut executor, prompt.start(), 1..40, &[0, n_tokens]);
        for cut in 1..n_tokens {
            // An image whose vectors are all before the cut needs none.
            for image in &mut prompt.images {
                if image.positions.end - 1 <= cut {
                    image.vectors = None;
                }
            }
            let mut begun = prompt.start();
            begun.prefix = first_pages(cut);
            let got = run(&mut executor, begun, 50..90, &[cut, n_tokens]);
            let expected: Bits = expected.clone().split_off(&cut);
            assert!(got == expected, "{model}, cut at {cut}");
        }
    }
}

#[test]
fn vectors_for_the_first_layers_change_the_tokens_from_the_image_on() {
    let mut executor = load(DEEPSTACK, &options());
    let mut prompt = prompt(DEEPSTACK, [(2, 3), (1, 4)]);
    let n_tokens = prompt.len();
    let expected = run(&mut executor, prompt.start(), 1..40, &[0, n_tokens]);
    let vectors = prompt.images[0].vectors.take().expect("it has vectors");
    let mut values = vectors.values(0..vectors.len()).to_vec();
    let width = vectors.width();
    // The last value that is added after the second layer, at the third vector of the image.
    values[3 * width - 1] += 1.0;
    let vectors = PromptVectors::new(width, values).expect("finite numbers");
    prompt.images[0].vectors = Some(vectors.into());
    let changed = run(&mut executor, prompt.start(), 50..90, &[0, n_tokens]);
    // The image's mark is at position 5, its first vector at 6.
    for (position, bits) in &changed {
        assert_eq!(bits == &expected[position], *position < 8, "{position}");
    }
}

#[test]
fn vectors_without_those_for_the_first_layers_are_refused() {
    let mut prompt = prompt(DEEPSTACK, [(2, 3), (1, 4)]);
    let vectors = PromptVectors::new(64, vec![0.5; 6 * 64]).expect("valid vectors");
    prompt.images[0].vectors = Some(vectors.into());
    let mut executor = load(DEEPSTACK, &options());
    let reason = refused(&mut executor, prompt.start());
    assert!(
        reason.contains("vectors of size 64, expected 192"),
        "{reason}"
    );
}

#[test]
fn vectors_and_marks_replace_the_tokens_that_they_embed() {
    // Without M-RoPE images of any grid are a sequence; with it, only an image of one vector is.
    for (model, grids) in [("llama", [(2, 3), (1, 4)]), ("qwen3-5", [(1, 1), (1, 1)])] {
        let prompt = prompt(model, grids);
        let n_tokens = prompt.len();
        let mut executor = load(model, &options());
        let got = run(&mut executor, prompt.start(), 1..40, &[0, n_tokens]);
        let as_text = start(ROW, &prompt.as_text, prompt.as_text.len(), &greedy());
        let expected = run(&mut executor, as_text, 50..90, &[0, n_tokens]);
        assert!(got == expected, "{model}");
    }
}

#[test]
fn m_rope_distinguishes_grids_of_the_same_vectors() {
    let options = CpuOptions {
        dtype: Some(Dtype::F32),
        ..options()
    };
    let mut executor = load("qwen3-5", &options);
    let mut of_grid = |grid| {
        let prompt = prompt("qwen3-5", [grid, (1, 1)]);
        let n_tokens = prompt.len();
        run(&mut executor, prompt.start(), 1..40, &[0, n_tokens])
    };
    let (wide, tall, line) = (of_grid((2, 3)), of_grid((3, 2)), of_grid((1, 6)));
    // The third vector, at position 8, is the first with another row and column in the tall image.
    for position in 0..8 {
        let [wide, tall, line] = [&wide, &tall, &line].map(|bits| &bits[&position]);
        assert!(wide == tall && wide == line, "position {position}");
    }
    for position in 9..wide.len() as u32 {
        let [wide, tall, line] = [&wide, &tall, &line].map(|bits| &bits[&position]);
        let all_differ = wide != tall && tall != line && line != wide;
        assert!(all_differ, "position {position}");
    }
}

fn refused(executor: &mut CpuExecutor, begun: RowStart) -> String {
    let end = begun.tokens.len() as u32;
    let mut step: StepPlan = plan(0);
    step.starts = vec![begun];
    step.table = vec![append(ROW, 1..40)];
    step.rows = vec![prefill(ROW, 0..end, true)];
    match executor.run(&step) {
        Err(StepError::Rejected(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn contradictory_images_are_refused() {
    let mut executor = load("llama", &options());
    let grids = [(2, 3), (1, 4)];
    type Edit = fn(&mut Prompt);
    let cases: [(&str, Edit); 3] = [
        ("has the mark 288", |prompt| prompt.tokens[5] = VOCAB),
        ("vectors of size 2, expected 64", |prompt| {
            let vectors = PromptVectors::new(2, vec![0.5; 12]).expect("valid vectors");
            prompt.images[0].vectors = Some(vectors.into());
        }),
        ("expected 21 or later", |prompt| {
            prompt.images[1].vectors = None
        }),
    ];
    for (expected, edit) in cases {
        let mut prompt = prompt("llama", grids);
        edit(&mut prompt);
        let reason = refused(&mut executor, prompt.start());
        assert!(reason.contains(expected), "{reason}, expected {expected}");
    }
    let prompt = prompt("llama", grids);
    let mut begun = prompt.start();
    begun.prompt_tokens = 20;
    let reason = refused(&mut executor, begun);
    assert!(reason.contains("of a prompt of 20 tokens"), "{reason}");
    // A key outside of the images.
    let mut begun = prompt.start();
    let mut tokens = begun.tokens.to_vec();
    tokens[0] = KEY_BIT + 1;
    begun.tokens = tokens.into();
    let reason = refused(&mut executor, begun);
    assert!(reason.contains("vocabulary size is 288"), "{reason}");
    let mut begun = prompt.start();
    begun.vectors = prompt.images[0].vectors.clone();
    let reason = refused(&mut executor, begun);
    assert!(reason.contains("prompt embeddings and images"), "{reason}");
}
