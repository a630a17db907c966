//! Tests that outputs end at the same token with and without drafts, at each place of a step's drafts, whatever ends them,
//! with the same text, log probabilities and usage.

use std::path::Path;
use std::sync::Arc;

use souffleur_config::EngineConfig;
use souffleur_engine::{Engine, EngineParts, Generation, Progress};
use souffleur_request::{Delta, Event, FinishReason, GenerateRequest, Prompt, Usage};
use souffleur_state::grammar::Constraint;
use souffleur_state::sampling::{LogprobWish, TokenLogprobs};

use crate::scripted_drafts::{Script, ScriptedDrafts};
use crate::speculating::{PLACES, learn, start};
use crate::world::{World, within};

/// The output tokens of a request that nothing ends earlier.
const OUTPUT: u32 = 24;
/// Ends are tested at the first tokens of the output.
const ENDS: u32 = 9;
const PROMPT: u32 = 20;
const CONTEXT: u32 = 96;
/// Drafts have the ids of bytes, which every vocabulary has.
const VOCAB: u32 = 256;

#[derive(Debug, PartialEq)]
struct Observed {
    tokens: Vec<u32>,
    text: String,
    reason: FinishReason,
    output_logprobs: Vec<TokenLogprobs>,
    input_logprobs: Vec<TokenLogprobs>,
    /// Tokens of the prompt, of the completion, of its reasoning, and from the cache.
    usage: [u32; 4],
}

async fn observe(mut generation: Generation) -> Observed {
    let mut whole = Delta::default();
    loop {
        let event = within(generation.next()).await;
        let (delta, reason) = match event.expect("the stream ends with a terminal event") {
            Event::Delta(delta) => (delta, None),
            Event::Finished(end) => (end.delta, Some(end.reason)),
            other => panic!("ended with {other:?}"),
        };
        whole.merge(delta);
        let Some(reason) = reason else {
            continue;
        };
        let Usage {
            prompt_tokens,
            completion_tokens,
            reasoning_tokens,
            cached_tokens,
            ..
        } = whole.usage;
        return Observed {
            tokens: whole.tokens,
            text: whole.text,
            reason,
            output_logprobs: whole.output_logprobs,
            input_logprobs: whole.input_logprobs,
            usage: [
                prompt_tokens,
                completion_tokens,
                reasoning_tokens,
                cached_tokens,
            ],
        };
    }
}

fn config() -> EngineConfig {
    EngineConfig {
        model_path: Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .join("models/souffleur-tiny"),
        max_total_tokens: Some(4096),
        max_running_requests: Some(4),
        context_length: Some(CONTEXT as usize),
        page_size: 4,
        threads: 1,
        ..EngineConfig::default()
    }
}

fn prompt(tokens: u32) -> Prompt {
    let tokens = (0..tokens).map(|i| 97 + i * 7 % 26);
    Prompt::Tokens(tokens.collect())
}

/// A request without an early end: greedy if `end` is even, otherwise seeded, with penalties and a bias.
fn base(end: u32) -> GenerateRequest {
    let mut request = GenerateRequest::new(prompt(PROMPT));
    request.logprobs = Some(LogprobWish {
        start: Some(0),
        top: 2,
        token_ids: [5].into(),
    });
    let sampling = &mut request.sampling;
    sampling.max_new_tokens = OUTPUT;
    sampling.ignore_eos = true;
    sampling.sampling_seed = Some(u64::from(end));
    if end.is_multiple_of(2) {
        sampling.temperature = 0.0;
    } else {
        sampling.top_p = 0.95;
        sampling.repetition_penalty = 1.1;
        sampling.presence_penalty = 0.2;
        sampling.logit_bias = [(101, 1.5)].into();
    }
    request
}

/// A request like [`base`], edited, and its name.
fn case(
    end: u32,
    what: &str,
    edit: impl FnOnce(&mut GenerateRequest),
) -> (String, GenerateRequest) {
    let mut request = base(end);
    edit(&mut request);
    (format!("{what} at {end}"), request)
}

/// Requests whose outputs end near token `end`, counted from 1, given the output that does not.
fn cases(end: u32, whole: &Observed, eos: u32) -> Vec<(String, GenerateRequest)> {
    let mut all = Vec::new();
    let last = whole.tokens[end as usize - 1];
    for least in [0, end, end + 3] {
        all.push(case(end, &format!("stop token after {least}"), |request| {
            // Stop tokens are ignored with EOS.
            request.sampling.ignore_eos = false;
            request.sampling.stop_token_ids = [last].into();
            request.sampling.min_new_tokens = least;
        }));
        all.push(case(end, &format!("EOS after {least}"), |request| {
            request.sampling.ignore_eos = false;
            request.sampling.min_new_tokens = least;
            request.sampling.logit_bias = [(eos, 9.0)].into();
        }));
    }
    let letters: Vec<char> = whole.text.chars().collect();
    let at = (end as usize * 2).min(letters.len().saturating_sub(2));
    let stop: String = letters[at..].iter().take(2).collect();
    all.push(case(end, "stop string", |request| {
        request.sampling.stop = [stop].into();
    }));
    all.push(case(end, "length", |request| {
        request.sampling.max_new_tokens = end;
    }));
    all.push(case(end, "context", |request| {
        request.prompt = prompt(CONTEXT - 1 - end);
    }));
    all.push(case(end, "grammar", |request| {
        let regex = format!("[a-z]{{{end}}}");
        request.constraint = Some(Arc::new(Constraint::Regex(regex.into())));
    }));
    all.push(case(end, "choice", |request| {
        let words: Vec<String> = (1..=end).map(|n| "ab".repeat(n as usize)).collect();
        request.constraint = Some(Arc::new(Constraint::Choice(words.into())));
        request.sampling.min_new_tokens = end / 2;
    }));
    all
}

/// An engine without speculation, and the id of EOS.
fn start_plain() -> (World, u32) {
    let parts = EngineParts::from_model(&config(), Progress::silent()).expect("the model is whole");
    let eos = parts.info.eos_token_ids[0];
    let engine = Engine::start_with(config(), parts).expect("the model loads");
    (World { engine }, eos)
}

fn name(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::StopToken(_) => "stop token",
        FinishReason::StopString(_) => "stop string",
        FinishReason::Grammar => "grammar",
        FinishReason::Length { .. } => "length",
        FinishReason::Abort => "abort",
    }
}

#[tokio::test]
async fn outputs_end_at_the_same_token_at_each_place_of_the_drafts() {
    let (plain, eos) = start_plain();
    let drafts = ScriptedDrafts::new(Script::Random(0.85), 3, VOCAB);
    let (speculating, tally) = start(config(), &drafts, None);
    let mut ends = std::collections::BTreeSet::new();
    for end in 1..=ENDS {
        let whole = observe(plain.generate(base(end))).await;
        learn(&drafts, &base(end), &whole.tokens);
        let same = observe(speculating.generate(base(end))).await;
        assert_eq!(same, whole, "no early end, seed {end}");
        for (what, request) in cases(end, &whole, eos) {
            let expected = observe(plain.generate(request.clone())).await;
            // Drafts continue beyond the end.
            let mut output = expected.tokens.clone();
            output.extend(whole.tokens.iter().skip(output.len()));
            learn(&drafts, &request, &output);
            let got = observe(speculating.generate(request)).await;
            assert_eq!(got, expected, "{what}");
            ends.insert((name(&expected.reason), expected.tokens.len().min(8)));
        }
    }
    tally.assert_both_at_each(PLACES, "early ends");
    for reason in ["stop token", "stop string", "grammar", "length"] {
        let places = ends.iter().filter(|(name, _)| *name == reason).count();
        assert!(
            places > 2,
            "{reason} ended outputs at {places} lengths: {ends:?}"
        );
    }
    for world in [plain, speculating] {
        world.assert_no_leaks().await;
        world.stop().await;
    }
}
