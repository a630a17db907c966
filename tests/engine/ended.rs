//! Tests that no step computes a row whose output has ended, even if the step was planned before the end was known. The
//! executor counts the rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::Receiver;
use souffleur_base::error::StepError;
use souffleur_config::EngineConfig;
use souffleur_engine::{Engine, EngineParts};
use souffleur_executor::fake::FakeOptions;
use souffleur_executor::scripted::{Script, ScriptedExecutor};
use souffleur_executor::{DeviceLost, Executor};
use souffleur_request::{Event, FinishReason, GenerateRequest, Prompt};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::step::{RowWork, StepOutput, StepPlan};

use crate::scripted;
use crate::world::{Build, EOS, VOCAB, World, collect, request, within};

const ANSWER_TOKENS: u32 = 36;

#[derive(Default)]
struct Counts {
    /// Steps with at least one row.
    steps: AtomicUsize,
    decodes: AtomicUsize,
}

impl Counts {
    fn steps(&self) -> usize {
        self.steps.load(Ordering::SeqCst)
    }

    fn decodes(&self) -> usize {
        self.decodes.load(Ordering::SeqCst)
    }
}

struct Counting {
    inner: Box<dyn Executor>,
    counts: Arc<Counts>,
    gate: Option<Receiver<()>>,
}

impl Executor for Counting {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        let is_decode = |work: &RowWork| matches!(work, RowWork::Decode { .. });
        let decodes = plan.rows.iter().filter(|row| is_decode(&row.work)).count();
        self.counts.decodes.fetch_add(decodes, Ordering::SeqCst);
        if !plan.rows.is_empty() {
            self.counts.steps.fetch_add(1, Ordering::SeqCst);
            if let Some(gate) = &self.gate {
                // The gate is open once the sender is dropped.
                let _ = gate.recv();
            }
        }
        self.inner.run(plan)
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        self.inner.reset()
    }
}

/// Wraps the executor of `parts` in one that counts steps and decodes.
fn counted(mut parts: EngineParts, gate: Option<Receiver<()>>) -> (EngineParts, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    let (inner, shared) = (parts.executor.clone(), counts.clone());
    parts.executor = Arc::new(move || {
        Ok(Box::new(Counting {
            inner: inner()?,
            counts: shared.clone(),
            gate: gate.clone(),
        }))
    });
    (parts, counts)
}

/// Starts an engine whose answers count up from 1. The first token of a prompt is the length of the answer.
fn start(gate: Option<Receiver<()>>) -> (World, Arc<Counts>) {
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
    let (parts, counts) = counted(parts, gate);
    let engine = Engine::start_with(build.config, parts).expect("the engine starts");
    (World { engine }, counts)
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
    by_stop_token.sampling.stop_token_ids = [ANSWER_TOKENS].into();
    let mut by_length = ask(100);
    by_length.sampling.max_new_tokens = ANSWER_TOKENS;
    let max_new_tokens = ANSWER_TOKENS;
    for (request, expected) in [
        (ask(ANSWER_TOKENS), FinishReason::StopToken(EOS)),
        (by_stop_token, FinishReason::StopToken(ANSWER_TOKENS)),
        (by_length, FinishReason::Length { max_new_tokens }),
    ] {
        let (world, counts) = start(None);
        let outcome = collect(world.generate(request)).await;
        assert_eq!(reason(&outcome.end), expected);
        assert_eq!(outcome.tokens.len(), ANSWER_TOKENS as usize);
        world.assert_no_leaks().await;
        assert_eq!(counts.steps(), ANSWER_TOKENS as usize, "{expected:?}");
        world.stop().await;
    }
}

#[tokio::test]
async fn an_ignored_eos_token_ends_nothing() {
    let (world, counts) = start(None);
    let mut request = ask(10);
    request.sampling.ignore_eos = true;
    request.sampling.max_new_tokens = 50;
    let outcome = collect(world.generate(request)).await;
    assert_eq!(outcome.tokens.len(), 50);
    world.assert_no_leaks().await;
    assert_eq!(counts.steps(), 50);
    world.stop().await;
}

#[tokio::test]
async fn unfinished_rows_stay_in_every_step_and_the_next_turn_reuses_their_kv() {
    let (world, counts) = start(None);
    let lengths = [5, 17, 36, 37, 80];
    let sent: Vec<_> = lengths.map(|tokens| world.generate(ask(tokens))).into();
    for (generation, tokens) in sent.into_iter().zip(lengths) {
        let outcome = collect(generation).await;
        let expected: Vec<u32> = (1..tokens).chain([EOS]).collect();
        assert_eq!(outcome.tokens, expected);
    }
    world.assert_no_leaks().await;
    // The first token of each answer comes from the prefill.
    let decodes: u32 = lengths.iter().map(|tokens| tokens - 1).sum();
    assert_eq!(counts.decodes(), decodes as usize);
    let turn: Vec<u32> = [80, 1, 2, 3]
        .into_iter()
        .chain(1..80)
        .chain([EOS, 9])
        .collect();
    let outcome = collect(world.generate(request(&turn, 1, 7))).await;
    // The K/V of an answer's last token is never computed.
    assert_eq!(outcome.cached_tokens as usize, turn.len() - 2);
    world.assert_no_leaks().await;
    world.stop().await;
}

/// Grants `steps` steps, and waits until the next one has begun.
async fn release(open: &crossbeam_channel::Sender<()>, counts: &Counts, steps: usize) {
    let before = counts.steps();
    for _ in 0..steps {
        open.send(()).expect("the executor runs");
    }
    within(async {
        while counts.steps() < before + steps {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Waits until the scheduler has handled the request's end, and the executor's actor has sent it to its thread.
async fn until_end_is_handled(world: &World) {
    world.until(|stats| stats.running_requests == 0).await;
    // The control actors share a thread, which runs them in turn. The executor's actor was woken before these messages
    // were sent, so it runs before the radix cache answers for the second time.
    for _ in 0..2 {
        let peeked = world
            .engine
            .peek_prefix(Namespace::default(), [1, 2].into());
        within(peeked).await.expect("the engine runs");
    }
}

#[tokio::test]
async fn a_cancelled_request_is_left_out_of_the_queued_step() {
    let (open, gate) = crossbeam_channel::unbounded();
    let (world, counts) = start(Some(gate));
    let generation = world.generate(ask(200));
    within(async {
        while counts.steps() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    release(&open, &counts, 9).await;
    // The tenth step runs, the eleventh is queued.
    drop(generation);
    until_end_is_handled(&world).await;
    drop(open);
    world.assert_no_leaks().await;
    assert_eq!(counts.steps(), 10);
    world.stop().await;
}

#[tokio::test]
async fn a_stop_string_costs_at_most_one_more_step() {
    let config = EngineConfig {
        model_path: scripted::checkpoint(),
        max_total_tokens: Some(2048),
        ..EngineConfig::default()
    };
    let parts = scripted::parts_replying(&config, |_| "one two three four five six".to_owned());
    let text = parts.text.clone().expect("the checkpoint has a tokenizer");
    let until_stop = text
        .encode_chat("one two three")
        .expect("the text is encoded")
        .len();
    let (open, gate) = crossbeam_channel::unbounded();
    let (parts, counts) = counted(parts, Some(gate));
    let engine = Engine::start_with(config, parts).expect("the engine starts");
    let world = World { engine };
    let mut request = GenerateRequest::new(Prompt::Text("say".into()));
    request.sampling.max_new_tokens = 100;
    request.sampling.stop = ["three".to_owned()].into();
    let generation = world.generate(request);
    within(async {
        while counts.steps() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    for _ in 0..until_stop {
        open.send(()).expect("the executor runs");
    }
    let outcome = collect(generation).await;
    assert!(matches!(reason(&outcome.end), FinishReason::StopString(_)));
    until_end_is_handled(&world).await;
    drop(open);
    world.assert_no_leaks().await;
    // The stop string may be found before the next step has begun.
    let steps = counts.steps();
    assert!(
        (until_stop..=until_stop + 1).contains(&steps),
        "{steps} steps for {until_stop} tokens"
    );
    world.stop().await;
}
