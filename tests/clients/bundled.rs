//! Tests that the bundled model meets its targets: the loss that training printed, known words, and answers that end.

use std::collections::HashSet;
use std::fs;
use std::sync::Arc;

use serde_json::Value;
use souffleur::config::{DtypeChoice, EngineConfig};
use souffleur::engine::{Engine, EngineHandle, Generation};
use souffleur::request::{ChatPrompt, Event, FinishReason, Finished, GenerateRequest, Prompt};
use souffleur::state::sampling::LogprobWish;

use crate::binary::model;

const LOSS_TOLERANCE: f64 = 0.05;
const MIN_KNOWN_WORDS: f64 = 0.98;
const MIN_ENDED: f64 = 0.90;
const MAX_NEW_TOKENS: u32 = 256;

fn read(file: &str) -> String {
    let path = model().join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).expect("the fixture is JSON")
}

fn rows(file: &str) -> Vec<Value> {
    read(file).lines().map(parse).collect()
}

fn engine(dtype: DtypeChoice) -> EngineHandle {
    let config = EngineConfig {
        model_path: model(),
        dtype,
        ..EngineConfig::default()
    };
    Engine::start(config).unwrap_or_else(|error| panic!("{error}"))
}

async fn finish(mut generation: Generation) -> Finished {
    let mut delta = souffleur::request::Delta::default();
    while let Some(event) = generation.next().await {
        match event {
            Event::Delta(more) => delta.merge(more),
            Event::Finished(end) => {
                delta.merge(end.delta);
                return Finished { delta, ..*end };
            }
            other => panic!("the request did not finish: {other:?}"),
        }
    }
    panic!("the stream ended without a terminal event")
}

/// The answers to all requests, which run concurrently.
fn answers(
    engine: &EngineHandle,
    requests: impl Iterator<Item = GenerateRequest>,
) -> Vec<Finished> {
    let start = |request| {
        engine
            .generate(request)
            .unwrap_or_else(|error| panic!("{error}"))
    };
    let generations: Vec<Generation> = requests.map(start).collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let all = futures_util::future::join_all(generations.into_iter().map(finish));
    runtime.expect("a runtime can be built").block_on(all)
}

/// Words as the corpus counts them: letters and apostrophes, in lower case.
fn words(text: &str) -> impl Iterator<Item = String> {
    let is_in_word = |c: char| c.is_ascii_alphabetic() || c == '\'';
    text.split(move |c| !is_in_word(c))
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
}

fn chat(messages: Value) -> Prompt {
    Prompt::Chat(Arc::new(ChatPrompt {
        messages,
        tools: None,
        template_kwargs: Default::default(),
        add_generation_prompt: true,
        continue_final_message: false,
        known: None,
        images: Vec::new(),
    }))
}

#[test]
fn the_loss_on_held_out_dialogues_is_close_to_the_loss_that_training_printed() {
    let training = parse(&read("training.json"));
    let dialogues = rows("eval/held_out.jsonl");
    for dtype in [DtypeChoice::Auto, DtypeChoice::Float32] {
        let engine = engine(dtype);
        let requests = dialogues.iter().map(|row| {
            let text = row["text"].as_str().expect("a dialogue has a text");
            let mut request = GenerateRequest::new(Prompt::Text(text.into()));
            request.sampling.max_new_tokens = 0;
            request.logprobs = Some(LogprobWish {
                start: Some(0),
                top: 0,
                token_ids: [].into(),
            });
            request
        });
        let scored = answers(&engine, requests);
        let positions = scored.iter().flat_map(|end| &end.delta.input_logprobs);
        let losses: Vec<f64> = positions
            .filter_map(|position| Some(-f64::from(position.logprob?)))
            .collect();
        assert_eq!(
            training["held_out_tokens"],
            losses.len(),
            "predicted tokens"
        );
        let loss = losses.iter().sum::<f64>() / losses.len() as f64;
        let printed = training["held_out_loss"].as_f64().expect("a number");
        let deviation = (loss / printed - 1.0).abs();
        assert!(
            deviation <= LOSS_TOLERANCE,
            "{dtype:?}: loss is {loss:.4}, training printed {printed:.4}"
        );
    }
}

#[test]
fn held_out_dialogues_are_rendered_as_in_training() {
    let text =
        souffleur::model::text::TextModel::load(&model()).unwrap_or_else(|error| panic!("{error}"));
    for row in rows("eval/held_out.jsonl") {
        let prompt = souffleur::model::text::ChatPrompt {
            add_generation_prompt: false,
            ..souffleur::model::text::ChatPrompt::new(&row["messages"])
        };
        let rendered = text
            .render_chat(&prompt)
            .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(row["text"], rendered);
    }
}

#[test]
fn greedy_answers_use_known_words_and_end_by_themselves() {
    let known: HashSet<String> = read("eval/words.txt")
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    let prompts = rows("eval/prompts.jsonl");
    assert_eq!(prompts.len(), 50);
    let requests = prompts.iter().map(|row| {
        let mut request = GenerateRequest::new(chat(row["messages"].clone()));
        request.sampling.temperature = 0.0;
        request.sampling.max_new_tokens = MAX_NEW_TOKENS;
        request
    });
    let answers = answers(&engine(DtypeChoice::Auto), requests);
    let ended = answers
        .iter()
        .filter(|end| matches!(end.reason, FinishReason::StopToken(_)))
        .count();
    assert!(
        ended as f64 >= MIN_ENDED * answers.len() as f64,
        "{ended} of {} ended",
        answers.len()
    );
    let used: Vec<String> = answers
        .iter()
        .flat_map(|end| words(&end.delta.text))
        .collect();
    assert!(
        used.len() > 10 * answers.len(),
        "the answers have only {} words",
        used.len()
    );
    let unknown: Vec<&String> = used.iter().filter(|word| !known.contains(*word)).collect();
    let share = 1.0 - unknown.len() as f64 / used.len() as f64;
    assert!(
        share >= MIN_KNOWN_WORDS,
        "{share:.3} of {} words are known; unknown: {unknown:?}",
        used.len()
    );
}
