//! A request that moves from one Scheduler to another, at a known step.

use std::sync::Arc;

use souffleur_base::ids::{IntakeId, RequestId};
use souffleur_executor::Executor;
use souffleur_executor::fake::{FakeExecutor, FakeOptions, expected_output};
use souffleur_request::{CancelFlag, RequestTimeouts};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::control::ControlStates;
use souffleur_state::sampling::{LogprobWish, SamplingParams};
use souffleur_state::scheduler::news::{RequestEnd, RequestTokens};
use souffleur_state::scheduler::submission::{IdFloor, Resume, Resumption, Submission};
use souffleur_state::step::StepPlan;

use crate::parts;
use crate::scenario::Scenario;
use crate::world::VOCAB;

const SEED: u64 = 3;
const PROMPT: [u32; 5] = [1, 2, 3, 4, 5];
const MAX_NEW_TOKENS: usize = 6;

struct Engine {
    states: ControlStates,
    fake: FakeExecutor,
    plans: Vec<StepPlan>,
    news: Vec<RequestTokens>,
}

impl Engine {
    fn new() -> Self {
        let scenario = Scenario {
            page_size: 1,
            n_pages: 64,
            chunk_tokens: None,
            policy: "fcfs",
            ..Scenario::from_seed(0)
        };
        let states = parts::setup(&scenario).build();
        let fake = FakeExecutor::new(FakeOptions {
            page_size: 1,
            n_pages: 64,
            vocab_size: VOCAB,
            verify: true,
            n_states: 0,
            hidden_size: 0,
            faults: Vec::new(),
        });
        Self {
            states: states.expect("the pools are small"),
            fake,
            plans: Vec::new(),
            news: Vec::new(),
        }
    }

    fn run(&mut self, n_steps: usize) {
        for _ in 0..n_steps {
            let Some(plan) = self.states.advance() else {
                break;
            };
            let output = self.fake.run(&plan);
            self.states.scheduler.step_done(plan.step, output);
            self.news.extend(self.states.scheduler.take_news());
            self.plans.push(*plan);
        }
    }

    fn tokens(&self) -> Vec<u32> {
        let tokens = self.news.iter().flat_map(|news| news.tokens.iter());
        tokens.copied().collect()
    }

    fn input_logprobs(&self) -> usize {
        let logprobs = self.news.iter().filter_map(|news| news.logprobs.as_ref());
        logprobs.map(|logprobs| logprobs.input.len()).sum()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.states.ledger.close();
    }
}

fn submission() -> Submission {
    let sampling = SamplingParams {
        max_new_tokens: MAX_NEW_TOKENS as u32,
        ignore_eos: true,
        sampling_seed: Some(SEED),
        ..SamplingParams::default()
    };
    Submission {
        intake: IntakeId::new(0),
        logprobs: None,
        prompt: PROMPT.into(),
        rid: RequestId::new("r"),
        namespace: Namespace::default(),
        sampling: Arc::new(sampling),
        opening: Arc::default(),
        anchors: Arc::default(),
        grammar: None,
        vectors: None,
        images: None,
        bypasses_cache: false,
        pooling: None,
        priority: None,
        cancel: CancelFlag::default(),
        submitted_s: 0.0,
        timeouts: RequestTimeouts::default(),
        draft_texts: Default::default(),
    }
}

fn resumption(submission: Submission, told: &[u32]) -> Resumption {
    Resumption {
        submission,
        told: told.into(),
        input_logprobs: 0,
        cached_tokens: (!told.is_empty()).then_some(0),
        retractions: 0,
        resumptions: 1,
        age_s: 0.0,
        running_s: None,
    }
}

fn resumed(requests: Vec<Resumption>, now_s: f64) -> Engine {
    let mut engine = Engine::new();
    let floor = IdFloor {
        step: 1_000,
        sequences: 70,
    };
    engine
        .states
        .scheduler
        .resume(Resume { floor, requests }, now_s);
    engine
}

#[test]
fn a_request_continues_after_the_told_tokens_at_every_length_and_its_ids_are_above_the_floor() {
    let opening: [u32; 2] = [9, 8];
    let prompt = [&PROMPT[..], &opening].concat();
    let rest = expected_output(&prompt, SEED, MAX_NEW_TOKENS - opening.len(), VOCAB);
    let expected = [&opening[..], &rest].concat();
    let request = Submission {
        opening: opening.into(),
        ..submission()
    };
    for n_steps in 0..MAX_NEW_TOKENS - opening.len() {
        let mut first = Engine::new();
        first.states.scheduler.submit(request.clone());
        first.run(n_steps);
        let told = first.tokens();
        assert_eq!(told.len(), if n_steps == 0 { 0 } else { n_steps + 2 });
        let mut second = resumed(vec![resumption(request.clone(), &told)], 0.0);
        second.run(100);
        assert_eq!([told, second.tokens()].concat(), expected);
        let end = second.news.last().and_then(|news| news.end.as_deref());
        assert!(matches!(end, Some(RequestEnd::Finished(_))), "{end:?}");
        assert!(second.plans.iter().all(|plan| plan.step.get() >= 1_000));
        let starts = second.plans.iter().flat_map(|plan| &plan.starts);
        let numbers: Vec<u64> = starts.map(|start| start.seq.get() >> 32).collect();
        assert_eq!(numbers, [71]);
        assert_eq!(
            second.states.scheduler.take_first_admissions().len(),
            usize::from(n_steps == 0)
        );
    }
}

#[test]
fn told_log_probabilities_of_the_prompt_are_not_computed_again() {
    let wish = LogprobWish {
        start: Some(1),
        ..LogprobWish::default()
    };
    let request = Submission {
        logprobs: Some(Arc::new(wish)),
        ..submission()
    };
    let mut first = Engine::new();
    first.states.scheduler.submit(request.clone());
    first.run(2);
    assert_eq!(first.input_logprobs(), 3);
    let told = Resumption {
        input_logprobs: 3,
        ..resumption(request.clone(), &first.tokens())
    };
    let mut second = resumed(vec![told], 0.0);
    second.run(100);
    assert_eq!(second.input_logprobs(), 0);
    let tokens = [first.tokens(), second.tokens()].concat();
    assert_eq!(
        tokens,
        expected_output(&PROMPT, SEED, MAX_NEW_TOKENS, VOCAB)
    );
    let mut anew = resumed(vec![resumption(request, &[])], 0.0);
    anew.run(100);
    assert_eq!(anew.input_logprobs(), 3);
}

#[test]
fn timeouts_neither_begin_again_nor_fire_early() {
    let timeouts = RequestTimeouts {
        waiting_s: Some(8.0),
        running_s: Some(20.0),
    };
    let request = Submission {
        timeouts,
        ..submission()
    };
    let cases = [(5.0, None, 3.0), (50.0, Some(19.0), 1.0)];
    for (age_s, running_s, left_s) in cases {
        let told = Resumption {
            age_s,
            running_s,
            ..resumption(request.clone(), &[])
        };
        let now_s = 0.25;
        let mut engine = resumed(vec![told], now_s);
        let scheduler = &mut engine.states.scheduler;
        scheduler.expire_requests(now_s + left_s - 0.01);
        assert!(scheduler.take_news().is_empty());
        scheduler.expire_requests(now_s + left_s + 0.01);
        let news = scheduler.take_news();
        let end = news.first().and_then(|news| news.end.as_deref());
        assert!(matches!(end, Some(RequestEnd::Failed(_))), "{end:?}");
    }
}

#[test]
fn a_cancelled_request_ends_at_once_and_one_whose_id_is_in_flight_is_rejected() {
    let request = submission();
    let resumption = resumption(request.clone(), &[1]);
    let mut engine = resumed(vec![resumption.clone(), resumption.clone()], 0.0);
    let news = engine.states.scheduler.take_news();
    let ends: Vec<_> = news.iter().filter_map(|news| news.end.as_deref()).collect();
    assert!(matches!(ends[..], [RequestEnd::Failed(_)]), "{ends:?}");
    request.cancel.raise();
    let mut engine = resumed(vec![resumption], 0.0);
    let news = engine.states.scheduler.take_news();
    let ends: Vec<_> = news.iter().filter_map(|news| news.end.as_deref()).collect();
    assert!(matches!(ends[..], [RequestEnd::Finished(_)]), "{ends:?}");
}
