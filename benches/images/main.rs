//! Measures how long streams wait while the engine encodes an image, compared with the prefill of a long text.
//!
//! In each round there are new streams: first alone, then with a long prompt of text, then with a large image. The model
//! has random weights; those of the tower take 0.9 GB in a temporary folder. By default a round takes about a minute on
//! two cores. The program fails if a step with a part of the image takes longer than 1.2 times the longest prefill step.
//!
//! ```text
//! cargo bench --bench images
//! cargo bench --bench images -- --rounds 1 --side 32 --tower-layers 12
//! ```

#![allow(clippy::print_stdout, reason = "a benchmark prints its results")]

mod model;
mod report;
mod steps;
mod streams;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Parser;
use souffleur::config::EngineConfig;
use souffleur::engine::{Engine, EngineHandle, EngineParts, Progress};
use souffleur::error::LoadError;
use souffleur::executor::Executor;
use souffleur::model::loader::LoadFormat;
use souffleur::request::{
    Event, GenerateRequest, ImageDigest, ImageGrid, ImageInput, ImagePrompt, Prompt, PromptImage,
};
use tempfile::TempDir;

use model::{MERGE, PAD, PATCH_VALUES};
use report::Phase;
use steps::{Measured, Steps};
use streams::Streams;

const STREAM_PROMPT_TOKENS: usize = 64;
/// Longest output of a stream: none ends by itself.
const STREAM_TOKENS: u32 = 2000;
/// Tokens of each stream before it is measured.
const WARM_TOKENS: usize = 8;
/// The time in which the streams are alone.
const ALONE: Duration = Duration::from_secs(3);
/// Text before an image and after it.
const AROUND_IMAGE: usize = 16;

/// Measures how long streams wait while the engine encodes an image.
#[derive(Parser)]
struct Arguments {
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    #[arg(long, default_value_t = 4)]
    streams: usize,
    /// Tokens of the long text.
    #[arg(long, default_value_t = 2048)]
    prompt_tokens: usize,
    /// Patches of a side of the image, which have 16 pixels each.
    #[arg(long, default_value_t = 64)]
    side: u32,
    #[arg(long, default_value_t = 27)]
    tower_layers: usize,
    /// Compute threads; 0 for the engine's default.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Cargo adds this flag.
    #[arg(long = "bench", hide = true)]
    _bench: bool,
}

/// Random patches, in place of a picture's.
#[derive(Debug)]
struct Noise {
    side: u32,
    seed: u64,
}

impl ImageInput for Noise {
    fn n_views(&self) -> usize {
        1
    }

    fn grid(&self, _: usize) -> ImageGrid {
        ImageGrid {
            rows: self.side,
            columns: self.side,
        }
    }

    fn patches(&self, _: usize) -> Vec<f32> {
        self.patches_in(0, 0..(self.side * self.side) as usize)
    }

    fn patches_in(&self, _: usize, indices: Range<usize>) -> Vec<f32> {
        let values = indices.flat_map(|index| {
            let mut rng = fastrand::Rng::with_seed((self.seed << 32) + index as u64);
            (0..PATCH_VALUES).map(move |_| rng.f32() * 2.0 - 1.0)
        });
        values.collect()
    }

    fn bytes(&self) -> usize {
        size_of::<Self>()
    }
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    ensure!(
        arguments.rounds > 0 && arguments.streams > 0 && arguments.prompt_tokens > 0,
        "--rounds, --streams and --prompt-tokens must be at least 1"
    );
    let side = arguments.side;
    ensure!(
        side.is_multiple_of(MERGE) && (MERGE..=256).contains(&side),
        "--side is {side}, must be even and from {MERGE} to 256"
    );
    let files = TempDir::new().context("cannot make a folder for the model")?;
    model::write(files.path(), arguments.tower_layers)?;
    let (engine, steps) = start(&arguments, files.path())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    println!("{}", report::head());
    let phases = runtime.block_on(measure(&arguments, &engine, &steps));
    runtime.block_on(engine.shutdown(Duration::ZERO));
    println!("\n{}", report::check(&phases?)?);
    Ok(())
}

/// Starts an engine whose steps are measured.
fn start(arguments: &Arguments, model_path: &Path) -> anyhow::Result<(EngineHandle, Steps)> {
    let n_vectors = (arguments.side / MERGE).pow(2);
    let of_streams = arguments.streams * (STREAM_PROMPT_TOKENS + STREAM_TOKENS as usize);
    let others = arguments.prompt_tokens + n_vectors as usize + 4096;
    let config = EngineConfig {
        model_path: model_path.to_owned(),
        load_format: LoadFormat::Dummy,
        skip_tokenizer_init: true,
        threads: arguments.threads,
        max_total_tokens: Some(of_streams + others),
        max_running_requests: Some(arguments.streams + 2),
        image_max_tokens: Some(n_vectors),
        ..EngineConfig::default()
    };
    let mut parts = EngineParts::from_model(&config, Progress::silent())?;
    ensure!(
        parts.vision.is_some(),
        "the engine has no vision tower: it must run on a CPU"
    );
    let (make, steps) = (parts.executor.clone(), Steps::default());
    let of_executor = steps.clone();
    parts.executor = Arc::new(move || -> Result<Box<dyn Executor>, LoadError> {
        Ok(Box::new(Measured {
            inner: make()?,
            steps: of_executor.clone(),
        }))
    });
    Ok((Engine::start_with(config, parts)?, steps))
}

async fn measure(
    arguments: &Arguments,
    engine: &EngineHandle,
    steps: &Steps,
) -> anyhow::Result<Vec<Phase>> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut phases = Vec::new();
    for round in 1..=arguments.rounds {
        let began = Instant::now();
        let prompts = (0..arguments.streams).map(|_| text(&mut random, STREAM_PROMPT_TOKENS));
        let requests = prompts.map(|prompt| request(Prompt::Tokens(prompt.into()), STREAM_TOKENS));
        let streams = Streams::start(engine, requests.collect())?;
        streams.more(WARM_TOKENS, began).await?;
        let long = text(&mut random, arguments.prompt_tokens);
        let long = request(Prompt::Tokens(long.into()), 1);
        let image = request(image(&mut random, arguments.side).into(), 1);
        let n_patches = arguments.side * arguments.side;
        for (what, request) in [
            ("streams alone".to_owned(), None),
            (
                format!("{} tokens of text", arguments.prompt_tokens),
                Some(long),
            ),
            (format!("an image of {n_patches} patches"), Some(image)),
        ] {
            let from = Instant::now();
            match request {
                None => tokio::time::sleep(ALONE).await,
                Some(request) => answer(engine, request).await?,
            }
            let to = Instant::now();
            streams.more(1, to).await?;
            let phase = Phase {
                name: format!("{round}: {what}"),
                took: to - from,
                gap: streams.longest_gap(from, to),
                steps: steps.since(from),
            };
            println!("{}", phase.line());
            phases.push(phase);
        }
        streams.stop().await;
    }
    Ok(phases)
}

/// Random tokens of text.
fn text(random: &mut fastrand::Rng, n_tokens: usize) -> Vec<u32> {
    (0..n_tokens).map(|_| random.u32(..PAD)).collect()
}

/// A square of random patches, with text before and after it.
fn image(random: &mut fastrand::Rng, side: u32) -> ImagePrompt {
    let mut tokens = text(random, AROUND_IMAGE);
    let first = tokens.len() as u32;
    let across = side / MERGE;
    tokens.extend((0..across * across).map(|_| PAD));
    let positions = first..tokens.len() as u32;
    tokens.extend(text(random, AROUND_IMAGE));
    let seed = random.u64(..);
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&seed.to_le_bytes());
    ImagePrompt {
        tokens: tokens.into(),
        images: vec![PromptImage {
            positions,
            pad: PAD,
            digest: ImageDigest(digest),
            grid: ImageGrid {
                rows: across,
                columns: across,
            },
            vectors: None,
            input: Some(Arc::new(Noise { side, seed })),
        }],
    }
}

/// A request whose output has exactly this length.
fn request(prompt: Prompt, output_tokens: u32) -> GenerateRequest {
    let mut request = GenerateRequest::new(prompt);
    request.sampling.temperature = 0.0;
    request.sampling.ignore_eos = true;
    request.sampling.max_new_tokens = output_tokens;
    request
}

/// Waits for the end of a request.
async fn answer(engine: &EngineHandle, request: GenerateRequest) -> anyhow::Result<()> {
    let mut generation = engine.generate(request)?;
    loop {
        let event = generation.next().await;
        match event.context("a request has no end")? {
            Event::Delta(_) => {}
            Event::Finished(_) => return Ok(()),
            end @ (Event::Cancelled(_) | Event::Failed(_)) => bail!("a request ended: {end:?}"),
        }
    }
}
