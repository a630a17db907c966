//! Requests that end early: no step feeds a row whose output has ended, though the step was planned before the end was
//! known. Counted in the executor.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::Receiver;
use souffleur_base::error::StepError;
use souffleur_config::EngineConfig;
use souffleur_engine::{Engine, EngineParts};
use souffleur_executor::Executor;
use souffleur_executor::fake::FakeOptions;
use souffleur_executor::scripted::{Script, ScriptedExecutor};
use souffleur_request::{Event, FinishReason, GenerateRequest, Prompt};
use souffleur_state::step::{RowWork, StepOutput, StepPlan};

use crate::scripted;
use crate::world::{Build, EOS, VOCAB, World, collect, request, within};

/// Tokens of an answer, the last one of which ends it.
const ANSWER: u32 = 36;

/// Counts of the rows that steps have fed.
#[derive(Default)]
struct Fed {
    /// Steps with a row.
    steps: AtomicUsize,
    decodes: AtomicUsize,
}

impl Fed {
    fn steps(&self) -> usize {
        self.steps.load(Ordering::SeqCst)
    }

    fn decodes(&self) -> usize {
        self.decodes.load(Ordering::SeqCst)
    }
}

struct Counting {
    inner: Box<dyn Executor>,
    fed: Arc<Fed>,
    gate: Option<Receiver<()>>,
}

impl Executor for Counting {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        let is_decode = |work: &RowWork| matches!(work, RowWork::Decode { .. });
        let decodes = plan.rows.iter().filter(|row| is_decode(&row.work)).count();
        self.fed.decodes.fetch_add(decodes, Ordering::SeqCst);
        if !plan.rows.is_empty() {
            self.fed.steps.fetch_add(1, Ordering::SeqCst);
            if let Some(gate) = &self.gate {
                // A dropped gate is open.
                let _ = gate.recv();
            }
        }
        self.inner.run(plan)
    }
}

/// The same parts on a counting executor.
fn counted(mut parts: EngineParts, gate: Option<Receiver<()>>) -> (EngineParts, Arc<Fed>) {
    let fed = Arc::new(Fed::default());
    let (inner, counts) = (parts.executor.clone(), fed.clone());
    parts.executor = Arc::new(move || {
        Ok(Box::new(Counting {
            inner: inner()?,
            fed: counts.clone(),
            gate: gate.clone(),
        }))
    });
    (parts, fed)
}

/// An engine whose answers count up, with as many tokens as the prompt's first token says.
fn start(gate: Option<Receiver<()>>) -> (World, Arc<Fed>) {
    let build = Build::default();
    let mut parts = build.parts();
    let options = FakeOptions {
        page_size: build.config.page_size as usize,
        n_pages: build.n_pages,
        vocab_size: VOCAB,
        verify: true,
        n_states: 0,
        hidden_size: 0,
        faults: Vec::new(),
    };
    let script = Script::new(EOS, |prompt| (1..prompt[0]).collect());
    parts.executor = Arc::new(move || {
        let executor = ScriptedExecutor::new(options.clone(), script.clone());
        Ok(Box::new(executor))
    });
    let (parts, fed) = counted(parts, gate);
    let engine = Engine::start_with(build.config, parts).expect("the engine starts");
    (World { engine }, fed)
}

fn ask(answer_tokens: u32) -> GenerateRequest {
    request(&[answer_tokens, 1, 2, 3], 200, 7)
}

fn reason(event: &Event) -> FinishReason {
    match event {
        Event::Finished(end) => end.reason.clone(),
        other => panic!("ended with {other:?}"),
    }
}

#[tokio::test]
async fn an_answer_of_36_tokens_takes_36_steps_whatever_ends_it() {
    let mut by_stop_token = ask(100);
    by_stop_token.sampling.stop_token_ids = [ANSWER].into();
    let mut by_length = ask(100);
    by_length.sampling.max_new_tokens = ANSWER;
    let max_new_tokens = ANSWER;
    for (asked, reason_of_it) in [
        (ask(ANSWER), FinishReason::StopToken(EOS)),
        (by_stop_token, FinishReason::StopToken(ANSWER)),
        (by_length, FinishReason::Length { max_new_tokens }),
    ] {
        let (world, fed) = start(None);
        let outcome = collect(world.generate(asked)).await;
        assert_eq!(reason(&outcome.end), reason_of_it);
        assert_eq!(outcome.tokens.len(), ANSWER as usize);
        world.assert_whole().await;
        assert_eq!(fed.steps(), ANSWER as usize, "{reason_of_it:?}");
        world.stop().await;
    }
}

#[tokio::test]
async fn an_end_that_is_not_heeded_ends_nothing() {
    let (world, fed) = start(None);
    let mut asked = ask(10);
    asked.sampling.ignore_eos = true;
    asked.sampling.max_new_tokens = 50;
    let outcome = collect(world.generate(asked)).await;
    assert_eq!(outcome.tokens.len(), 50);
    world.assert_whole().await;
    assert_eq!(fed.steps(), 50);
    world.stop().await;
}

#[tokio::test]
async fn rows_that_go_on_are_not_left_out_and_the_next_turn_finds_what_was_computed() {
    let (world, fed) = start(None);
    let lengths = [5, 17, 36, 37, 80];
    let sent: Vec<_> = lengths.map(|tokens| world.generate(ask(tokens))).into();
    for (generation, tokens) in sent.into_iter().zip(lengths) {
        let outcome = collect(generation).await;
        let expected: Vec<u32> = (1..tokens).chain([EOS]).collect();
        assert_eq!(outcome.tokens, expected);
    }
    world.assert_whole().await;
    // The first token of each comes from its prefill.
    let decodes: u32 = lengths.iter().map(|tokens| tokens - 1).sum();
    assert_eq!(fed.decodes(), decodes as usize);
    let turn: Vec<u32> = [80, 1, 2, 3]
        .into_iter()
        .chain(1..80)
        .chain([EOS, 9])
        .collect();
    let outcome = collect(world.generate(request(&turn, 1, 7))).await;
    // The last token of an answer is never fed.
    assert_eq!(outcome.cached_tokens as usize, turn.len() - 2);
    world.assert_whole().await;
    world.stop().await;
}

/// Grants `steps` steps, and waits until the next one has begun.
async fn let_through(open: &crossbeam_channel::Sender<()>, fed: &Fed, steps: usize) {
    let before = fed.steps();
    for _ in 0..steps {
        open.send(()).expect("the executor lives");
    }
    within(async {
        while fed.steps() < before + steps {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Waits until the scheduler knows of an end and has reported it.
async fn until_told(world: &World) {
    world.until(|stats| stats.running_requests == 0).await;
    for _ in 0..3 {
        world.engine.stats().await.expect("the engine lives");
    }
}

#[tokio::test]
async fn a_request_that_is_cancelled_is_left_out_of_the_step_that_is_queued() {
    let (open, gate) = crossbeam_channel::unbounded();
    let (world, fed) = start(Some(gate));
    let generation = world.generate(ask(200));
    within(async {
        while fed.steps() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let_through(&open, &fed, 9).await;
    // The tenth step runs, the eleventh is queued.
    drop(generation);
    until_told(&world).await;
    drop(open);
    world.assert_whole().await;
    assert_eq!(fed.steps(), 10);
    world.stop().await;
}

#[tokio::test]
async fn a_stop_string_costs_at_most_the_step_that_has_begun() {
    let config = EngineConfig {
        model_path: scripted::checkpoint(),
        max_total_tokens: Some(2048),
        ..EngineConfig::default()
    };
    let parts = scripted::parts_saying(&config, |_| "one two three four five six".to_owned());
    let text = parts.text.clone().expect("the checkpoint has a tokenizer");
    let until_stop = text
        .encode_chat("one two three")
        .expect("it has tokens")
        .len();
    let (open, gate) = crossbeam_channel::unbounded();
    let (parts, fed) = counted(parts, Some(gate));
    let engine = Engine::start_with(config, parts).expect("the engine starts");
    let world = World { engine };
    let mut asked = GenerateRequest::new(Prompt::Text("say".into()));
    asked.sampling.max_new_tokens = 100;
    asked.sampling.stop = ["three".to_owned()].into();
    let generation = world.generate(asked);
    within(async {
        while fed.steps() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    for _ in 0..until_stop {
        open.send(()).expect("the executor lives");
    }
    let outcome = collect(generation).await;
    assert!(matches!(reason(&outcome.end), FinishReason::StopString(_)));
    until_told(&world).await;
    drop(open);
    world.assert_whole().await;
    // The stop string may be found before the next step has begun.
    let steps = fed.steps();
    assert!(
        (until_stop..=until_stop + 1).contains(&steps),
        "{steps} steps for {until_stop} tokens"
    );
    world.stop().await;
}
