//! Compares speculation with plain decoding on given texts, whatever the weights.
//!
//! | part | role |
//! |---|---|
//! | [`args`] | the flags |
//! | [`texts`] | reads the texts |
//! | [`adversary`] | makes texts whose drafts are wrong |
//! | [`groups`] | the texts of a kind, with prompts of a length |
//! | [`measure`] | runs the loads in alternating rounds |
//! | [`report`] | record and table |

mod adversary;
pub mod args;
mod groups;
mod measure;
mod report;
mod texts;

use std::path::Path;
use std::sync::Arc;

use actix_web::rt::System;
use souffleur::config::{Device, EngineConfig};
use souffleur::engine::{Engine, EngineParts};
use souffleur::error::LoadError;
use souffleur::executor::Executor;
use souffleur::executor::taught::Teacher;
use souffleur::model::text::TextModel;

use super::STOP_DEADLINE;
use super::args::OfflineArgs;
use super::subject::Subject;
use crate::cli::failure::Failure;
use crate::cli::output::record::publish;
use crate::cli::progress;
use groups::Group;
use measure::Rounds;
use report::TaughtRecord;

/// Runs the measurement of `--taught FILE`.
pub fn run(
    args: &OfflineArgs,
    config: EngineConfig,
    file: &Path,
    seed: u64,
    json: Option<&Path>,
) -> Result<(), Failure> {
    check(&config)?;
    let subject = Subject::read(&config)?;
    let mut parts = EngineParts::from_model(&config, progress::weights_bar())?;
    let tokenizer = tokenizer(args.taught.tokenizer.as_deref(), &config, &parts)?;
    let vocab_size = u32::try_from(parts.info.vocab_size).unwrap_or(u32::MAX);
    let texts = texts::read(file, vocab_size, &|text: &str| {
        encode(tokenizer.as_deref(), text)
    })?;
    let mut record = TaughtRecord::new(args, &parts.info, &subject, (file, seed))?;
    let groups = groups::make(args, &texts, &parts.info, seed, &mut record.skipped)?;
    let teacher = Arc::new(teacher(&groups, &parts));
    teach(&mut parts, &teacher);
    let engine = Engine::start_with(config, parts)?;
    let bar = progress::spinner();
    System::new().block_on(async {
        let rounds = Rounds {
            engine: &engine,
            teacher: &teacher,
            bar: &bar,
            output_tokens: args.output_tokens,
        };
        let measured = rounds.run(args, &groups, &mut record, json).await;
        engine.shutdown(STOP_DEADLINE).await;
        measured
    })?;
    bar.finish_and_clear();
    publish(&record, json, || record.print())
}

fn check(config: &EngineConfig) -> Result<(), Failure> {
    let reason = match config.device {
        Device::Cuda(_) => "--taught measures only on the CPU: remove --device".to_owned(),
        _ if config.tp_size > 1 => format!(
            "--taught measures a single rank, but --tp-size is {}: remove it",
            config.tp_size
        ),
        // Invalid settings of speculation are refused when the model is opened.
        _ if config.speculation().is_ok_and(|wish| wish.is_none()) => {
            "--taught compares decoding with drafts: set --speculative-algorithm NGRAM".to_owned()
        }
        _ => return Ok(()),
    };
    Err(Failure::Usage(reason))
}

/// The tokenizer at a path, or else the model's; `None` if the configuration skips the tokenizer.
fn tokenizer(
    path: Option<&Path>,
    config: &EngineConfig,
    parts: &EngineParts,
) -> Result<Option<Arc<TextModel>>, Failure> {
    let Some(path) = path else {
        return Ok(parts.text.clone());
    };
    let config = EngineConfig {
        model_path: path.to_owned(),
        skip_tokenizer_init: false,
        ..config.clone()
    };
    Ok(EngineParts::text_model_of(&config)?.map(Arc::new))
}

fn encode(tokenizer: Option<&TextModel>, text: &str) -> Result<Vec<u32>, Failure> {
    let Some(tokenizer) = tokenizer else {
        let reason = "the texts need a tokenizer: set --tokenizer, or give lists of token ids";
        return Err(Failure::Usage(reason.to_owned()));
    };
    // As a rendered chat, in which an output follows its prompt without a further mark.
    tokenizer.encode_chat(text).map_err(Failure::failed)
}

fn teacher(groups: &[Group], parts: &EngineParts) -> Teacher {
    let texts = groups.iter().flat_map(|group| &group.texts);
    let pairs = texts.map(|text| (text.prompt.clone(), text.output.clone()));
    let eos_token_id = parts.info.eos_token_ids.first().copied();
    Teacher::new(pairs, eos_token_id.unwrap_or_default())
}

/// Makes the engine's executors take the outputs of `teacher`.
fn teach(parts: &mut EngineParts, teacher: &Arc<Teacher>) {
    let (make, teacher) = (parts.executor.clone(), teacher.clone());
    let file = parts.info.model_path.clone();
    parts.executor = Arc::new(move || -> Result<Box<dyn Executor>, LoadError> {
        let mut executor = make()?;
        if executor.teach(teacher.clone()) {
            return Ok(executor);
        }
        Err(LoadError::Format {
            file: file.clone(),
            reason: "the executor of this model cannot take given outputs: remove --taught"
                .to_owned(),
        })
    });
}
