//! Tests that layers with sliding windows give the same bits with window pages as with pages for all tokens, for any
//! cache contents and page size.

use std::collections::BTreeMap;
use std::sync::Arc;

use souffleur_base::error::StepError;
use souffleur_base::ids::{IntakeId, PageId, RequestId, RowId, SeqId};
use souffleur_executor::Executor;
use souffleur_executor::cpu::{CpuExecutor, CpuOptions};
use souffleur_kernels::dtype::Dtype;
use souffleur_request::{CancelFlag, RequestTimeouts};
use souffleur_state::cache::eviction::EvictionPolicy;
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::control::{ControlSetup, ControlStates};
use souffleur_state::pool::pages::{PageRun, PageSize};
use souffleur_state::pool::window_pool::WindowLimits;
use souffleur_state::sampling::SamplingParams;
use souffleur_state::scheduler::submission::Submission;
use souffleur_state::scheduler::{BatchRules, QueueRules, SchedulerLimits};
use souffleur_state::step::TableDelta;

use crate::common::{append, greedy, load, options, plan, prefill, start, tokens};
use crate::invariance::VOCAB;

/// The window of the tiny models.
const WINDOW: usize = 24;
const OUTPUT_TOKENS: usize = 40;
/// Models in which all layers or every second layer have windows.
const MODELS: [&str; 5] = [
    "mistral",
    "gpt-oss",
    "qwen3-window",
    "qwen2-window",
    "mixtral-window",
];

/// The bits of logits by request and position.
type Bits = BTreeMap<(usize, u32), Vec<u32>>;

fn limits(page_size: u32, chunk: usize, windows: Option<usize>) -> SchedulerLimits {
    let page_size = PageSize::new(page_size).expect("the page size is positive");
    SchedulerLimits {
        page_size,
        total_pages: 2048 / page_size.get(),
        total_rows: 4,
        max_prefill_tokens: 256,
        chunk_tokens: Some(chunk),
        prefix_wait: true,
        rules: BatchRules::default(),
        schedule_conservativeness: 0.1,
        max_pins: 0,
        queue: QueueRules {
            eviction_policy: EvictionPolicy::from_name("lru").ok(),
            ..QueueRules::default()
        },
        eos_token_ids: Arc::default(),
        states: None,
        tier: None,
        windows: windows.map(|total_pages| WindowLimits {
            tokens: WINDOW,
            total_pages,
        }),
        vision: None,
    }
}

/// A model and the control states that plan its steps.
struct Engine {
    states: ControlStates,
    executor: CpuExecutor,
    n_prompts: usize,
    outputs: Vec<Vec<u32>>,
    bits: Bits,
    cached_tokens: usize,
}

impl Engine {
    fn new(model: &str, dtype: Dtype, limits: SchedulerLimits) -> Self {
        let executor = load(
            model,
            &CpuOptions {
                dtype: Some(dtype),
                n_pages: limits.total_pages,
                page_size: limits.page_size.get(),
                max_rows: limits.total_rows,
                n_window_pages: limits.windows.map_or(0, |windows| windows.total_pages),
                ..options()
            },
        );
        let setup = ControlSetup {
            limits,
            schedule_policy: "fcfs".to_owned(),
            diagnoses_misses: false,
        };
        Self {
            states: setup.build().expect("the pools are small"),
            executor,
            n_prompts: 0,
            outputs: Vec::new(),
            bits: Bits::new(),
            cached_tokens: 0,
        }
    }

    fn submit(&mut self, prompt: &[u32]) {
        let number = self.n_prompts;
        self.n_prompts += 1;
        self.outputs.push(Vec::new());
        self.states.scheduler.submit(Submission {
            rid: RequestId::new(number.to_string()),
            intake: IntakeId::new(number as u64),
            prompt: prompt.into(),
            namespace: Namespace::default(),
            sampling: Arc::new(SamplingParams {
                max_new_tokens: OUTPUT_TOKENS as u32,
                ignore_eos: true,
                sampling_seed: Some(0),
                ..SamplingParams::clone(&greedy())
            }),
            logprobs: None,
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
        });
    }

    /// Runs all requests with two steps in flight, as an engine does.
    fn drain(&mut self) {
        let mut under_way = std::collections::VecDeque::new();
        loop {
            while let Some(step) = self.states.advance() {
                under_way.push_back(step);
            }
            let Some(step) = under_way.pop_front() else {
                break;
            };
            let bits = &mut self.bits;
            let number = |seq: SeqId| (seq.get() >> 32) as usize - 1; // Sequences are numbered from 1.
            let output = self
                .executor
                .run_observed(&step, &mut |seq, position, logits| {
                    let logits: Vec<u32> = logits.iter().map(|logit| logit.to_bits()).collect();
                    let place = (number(seq), position);
                    let before = bits.entry(place).or_insert_with(|| logits.clone());
                    assert!(*before == logits, "{place:?} has two different results");
                })
                .expect("the plan is valid");
            self.states.scheduler.step_done(step.step, Ok(output));
            for news in self.states.scheduler.take_news() {
                self.outputs[news.intake.index()].extend(news.tokens);
            }
        }
        let stats = self.states.scheduler.stats();
        assert!(stats.is_idle_and_whole(), "{stats:?}");
        self.cached_tokens = stats.cached_tokens as usize;
    }

    /// Runs prompts that share prefixes, the next turns of their conversations, the prompts again, and a conversation
    /// of two turns. Returns the outputs, the bits of the logits, and the number of cached tokens of the last turn.
    fn converse(mut self) -> (Vec<Vec<u32>>, Bits, usize) {
        let shared = tokens(1, 60, VOCAB);
        let prompts: Vec<Vec<u32>> = (0..6)
            .map(|seed| {
                let unique = tokens(10 + seed, 20 + 9 * seed as usize, VOCAB);
                [&shared[..10 * seed as usize], &unique].concat()
            })
            .collect();
        for prompt in &prompts {
            self.submit(prompt);
        }
        self.drain();
        for (number, prompt) in prompts.iter().enumerate() {
            let next = tokens(30 + number as u64, 7, VOCAB);
            let next = [&prompt[..], &self.outputs[number], &next].concat();
            self.submit(&next);
        }
        self.drain();
        for prompt in &prompts {
            self.submit(prompt);
        }
        self.drain();
        // Even a small cache holds the end of the last conversation.
        let mut turns = tokens(50, 70, VOCAB);
        self.submit(&turns);
        self.drain();
        turns.extend(self.outputs.last().into_iter().flatten());
        turns.extend(tokens(51, 7, VOCAB));
        let before = self.cached_tokens;
        self.submit(&turns);
        self.drain();
        let cached_tokens = self.cached_tokens - before;
        (self.outputs, self.bits, cached_tokens)
    }
}

#[test]
fn window_pages_give_the_same_bits_as_pages_for_all_tokens() {
    for model in MODELS {
        for dtype in [Dtype::F32, Dtype::BF16] {
            let expected = Engine::new(model, dtype, limits(1, 64, None)).converse();
            for (page_size, chunk) in [(1, 16), (4, 40), (16, 64)] {
                let page = page_size as usize;
                // Window pages for one sequence, and for all.
                for tokens in [chunk + 2 * WINDOW + 8 * page, 1024] {
                    let limits = limits(page_size, chunk, Some(tokens.div_ceil(page)));
                    let (outputs, bits, cached) = Engine::new(model, dtype, limits).converse();
                    assert_eq!(outputs, expected.0, "{model} with pages of {page_size}");
                    assert!(bits == expected.1, "{model} with pages of {page_size}");
                    let computed = 70 + OUTPUT_TOKENS - 1;
                    assert_eq!(cached, computed / page * page, "{model}, pages of {page}");
                }
            }
        }
    }
}

fn pages_of_16(n_window_pages: usize) -> CpuOptions {
    CpuOptions {
        n_window_pages,
        page_size: 16,
        ..options()
    }
}

fn windows(pages: &[u32]) -> TableDelta {
    TableDelta::AppendWindows {
        row: RowId::new(1),
        pages: pages.iter().copied().map(PageId::new).collect(),
    }
}

fn cached_windows(from: u32, pages: &[u32]) -> TableDelta {
    let ids: Arc<[PageId]> = pages.iter().copied().map(PageId::new).collect();
    let mut run = PageRun::empty();
    run.push(&ids, 0..pages.len() as u32);
    TableDelta::Windows {
        row: RowId::new(1),
        from,
        pages: Box::new(run),
    }
}

#[test]
fn an_executor_without_windows_refuses_their_pages() {
    let prompt = tokens(1, 60, VOCAB);
    let mut plain = load("qwen3", &pages_of_16(0));
    let mut step = plan(1);
    step.starts = vec![start(1, &prompt, 60, &greedy())];
    step.table = vec![append(1, 10..14), windows(&[1])];
    step.rows = vec![prefill(1, 0..60, true)];
    let error = plain.run(&step).expect_err("no layer has a window");
    assert!(
        error
            .to_string()
            .contains("no layer of the model has a window"),
        "{error}"
    );
}

#[test]
fn an_executor_refuses_windows_with_holes() {
    let mut executor = load("qwen3-window", &pages_of_16(8));
    let prompt = tokens(1, 60, VOCAB);
    let mut try_step = |prefix: u32, table: Vec<TableDelta>| {
        let mut step = plan(1);
        let mut begun = start(1, &prompt, 60, &greedy());
        let ids: Arc<[PageId]> = (1..=prefix).map(PageId::new).collect();
        begun.prefix.push(&ids, 0..prefix);
        step.starts = vec![begun];
        step.table = vec![append(1, 10..14 - prefix)];
        step.table.extend(table);
        step.rows = vec![prefill(1, prefix * 16..60, true)];
        match executor.run(&step) {
            Ok(_) => None,
            Err(StepError::Rejected(reason)) => Some(reason),
            Err(error) => panic!("{error}"),
        }
    };
    let refused = [
        (0, vec![], "need window pages"),
        (0, vec![windows(&[1, 2, 3])], "need window pages"),
        (0, vec![windows(&[1, 2, 3, 9])], "window page 9"),
        (0, vec![windows(&[0, 2, 3, 4])], "window page 0"),
        (2, vec![windows(&[1, 2])], "sees the tokens from 9 on"),
        (
            2,
            vec![cached_windows(1, &[3]), windows(&[1, 2])],
            "sees the tokens from 9 on",
        ),
        (
            2,
            vec![cached_windows(0, &[3]), windows(&[1, 2])],
            "cannot be remapped",
        ),
        (
            2,
            vec![cached_windows(1, &[3, 4]), windows(&[1, 2])],
            "cannot be remapped",
        ),
    ];
    for (prefix, table, reason) in refused {
        let found = try_step(prefix, table.clone()).unwrap_or_default();
        assert!(found.contains(reason), "{table:?}: {found}");
    }
    let whole = vec![windows(&[1, 2, 3, 4])];
    assert_eq!(try_step(0, whole), None);
    assert_eq!(
        try_step(2, vec![cached_windows(0, &[1, 2]), windows(&[3, 4])]),
        None
    );
}
