//! Replicas without actors: control states with a simulated executor, a router, and the conversations that they serve.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use smallvec::smallvec;
use souffleur_base::ids::{IntakeId, RequestId, SeqId};
use souffleur_request::{CancelFlag, RequestTimeouts};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::control::{ControlSetup, ControlStates};
use souffleur_state::pool::pages::PageSize;
use souffleur_state::router::{LoadBalance, Prompt, RouterState, recent_window};
use souffleur_state::sampling::SamplingParams;
use souffleur_state::scheduler::news::{RequestEnd, RequestTokens};
use souffleur_state::scheduler::submission::Submission;
use souffleur_state::scheduler::{BatchRules, QueueRules, SchedulerLimits};
use souffleur_state::step::{RowResult, RowVerdict, StepOutput, StepPlan, StepRow};

use super::trace::{Trace, Turn};

pub const PAGE_TOKENS: usize = 16;
const TURN_S: f64 = 0.05;
/// Turns of the world from one arrival to the next, if its conversation's last turn has ended.
const TURNS_PER_ARRIVAL: usize = 8;
/// A trace that takes more is stuck.
const MAX_TURNS: usize = 100_000;
const MAX_ROWS: usize = 32;
/// No conversation has it.
const EOS: u32 = u32::MAX;

/// The result of a trace.
pub struct Served {
    /// Prompt tokens from the caches of all replicas.
    pub cached_tokens: usize,
    /// Tokens that each replica computed.
    pub computed_tokens: Vec<usize>,
}

impl Served {
    /// The greatest load of a replica, as a multiple of the mean.
    pub fn imbalance(&self) -> f64 {
        let greatest = self.computed_tokens.iter().max().copied().unwrap_or(0);
        let sum: usize = self.computed_tokens.iter().sum();
        (greatest * self.computed_tokens.len()) as f64 / sum as f64
    }
}

struct Replica<'a> {
    trace: &'a Trace,
    states: ControlStates,
    steps: VecDeque<Box<StepPlan>>,
    conversations: HashMap<SeqId, usize>,
    computed_tokens: usize,
    /// Prompt tokens that it computes in one turn of the world.
    tokens_per_turn: usize,
    /// Turns since the first step in flight began.
    turns: usize,
}

impl<'a> Replica<'a> {
    fn new(trace: &'a Trace, n_pages: usize, tokens_per_turn: usize) -> Self {
        let limits = SchedulerLimits {
            page_size: PageSize::new(PAGE_TOKENS as u32).expect("it is positive"),
            total_pages: n_pages,
            total_rows: MAX_ROWS,
            max_prefill_tokens: 16384,
            chunk_tokens: None,
            prefix_wait: true,
            rules: BatchRules::default(),
            schedule_conservativeness: 1.0,
            max_pins: 0,
            queue: QueueRules::default(),
            eos_token_ids: Arc::from([EOS]),
            states: None,
            windows: None,
            tier: None,
            vision: None,
        };
        let setup = ControlSetup {
            limits,
            schedule_policy: "fcfs".to_owned(),
            diagnoses_misses: false,
        };
        Self {
            trace,
            states: setup.build().expect("the pools are small"),
            steps: VecDeque::new(),
            conversations: HashMap::new(),
            computed_tokens: 0,
            tokens_per_turn,
            turns: 0,
        }
    }

    fn submit(&mut self, request: IntakeId, turn: &Turn, prompt: Arc<[u32]>, now_s: f64) {
        let sampling = SamplingParams {
            max_new_tokens: turn.output_tokens as u32,
            ignore_eos: true,
            sampling_seed: Some(0),
            ..SamplingParams::default()
        };
        self.states.scheduler.submit(Submission {
            rid: RequestId::new(request.to_string()),
            intake: request,
            prompt,
            namespace: Namespace::default(),
            sampling: Arc::new(sampling),
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
            submitted_s: now_s,
            timeouts: RequestTimeouts::default(),
            draft_texts: Default::default(),
        });
    }

    /// Plans the steps that may be in flight, and ends the first one if it is over.
    fn turn(&mut self) -> Vec<RequestTokens> {
        while let Some(plan) = self.states.advance() {
            for start in &plan.starts {
                let prompt = &start.tokens[..start.prompt_tokens as usize];
                let conversation = self.trace.conversation_of(prompt);
                self.conversations.insert(start.seq, conversation);
            }
            self.steps.push_back(plan);
        }
        self.turns += 1;
        let needed = self.steps.front().map(|plan| {
            let (prefilled, _) = plan.query_tokens();
            prefilled / self.tokens_per_turn + 1
        });
        if needed.is_none_or(|needed| self.turns >= needed) {
            self.turns = 0;
            self.end_step();
        }
        self.states.scheduler.take_first_admissions();
        self.states.scheduler.take_ended();
        self.states.scheduler.take_news()
    }

    fn end_step(&mut self) {
        let Some(plan) = self.steps.pop_front() else {
            return;
        };
        let rows: Vec<RowResult> = plan.rows.iter().map(|row| self.result(row)).collect();
        let computed = rows.iter().map(|row| row.accepted as usize);
        self.computed_tokens += computed.sum::<usize>();
        let output = StepOutput {
            step: plan.step,
            rows,
        };
        self.states.scheduler.step_done(plan.step, Ok(output));
    }

    fn result(&self, row: &StepRow) -> RowResult {
        let positions = row.work.positions();
        let conversation = self.conversations[&row.seq];
        let token = self.trace.token(conversation, positions.end as usize);
        RowResult {
            seq: row.seq,
            tokens: if row.sample {
                smallvec![token]
            } else {
                smallvec![]
            },
            accepted: positions.len() as u32,
            logprobs: None,
            verdict: RowVerdict::Open,
            drafts: Default::default(),
        }
    }

    fn assert_clean(&mut self) {
        assert!(self.turn().is_empty());
        let stats = self.states.scheduler.stats();
        assert!(stats.is_idle_and_whole(), "{stats:?}");
    }
}

impl Drop for Replica<'_> {
    fn drop(&mut self) {
        self.states.ledger.close();
    }
}

#[derive(Clone, Copy)]
pub struct Setup {
    pub method: LoadBalance,
    pub n_replicas: usize,
    /// Pages of each replica.
    pub n_pages: usize,
    /// Prompt tokens that a replica computes in one turn of the world.
    pub tokens_per_turn: usize,
}

pub fn serve(trace: &Trace, setup: Setup) -> Served {
    let Setup {
        method,
        n_replicas,
        n_pages,
        tokens_per_turn,
    } = setup;
    let window = recent_window(n_pages * PAGE_TOKENS, n_replicas as u32);
    let mut world = World {
        trace,
        router: RouterState::new(method, n_replicas as u32).with_window(window),
        replicas: (0..n_replicas)
            .map(|_| Replica::new(trace, n_pages, tokens_per_turn))
            .collect(),
        busy: HashSet::new(),
        next: 0,
        cached_tokens: 0,
        now_s: 0.0,
    };
    world.run();
    Served {
        cached_tokens: world.cached_tokens,
        computed_tokens: world
            .replicas
            .iter()
            .map(|replica| replica.computed_tokens)
            .collect(),
    }
}

struct World<'a> {
    trace: &'a Trace,
    router: RouterState,
    replicas: Vec<Replica<'a>>,
    /// Conversations with a turn in flight.
    busy: HashSet<usize>,
    /// The next turn to arrive. A request's intake is the position of its turn.
    next: usize,
    cached_tokens: usize,
    now_s: f64,
}

impl World<'_> {
    fn run(&mut self) {
        for turn in 0..MAX_TURNS {
            self.now_s = turn as f64 * TURN_S;
            if turn.is_multiple_of(TURNS_PER_ARRIVAL) {
                self.arrive();
            }
            for index in 0..self.replicas.len() {
                for update in self.replicas[index].turn() {
                    self.told(&update);
                }
            }
            if self.next == self.trace.turns.len() && self.busy.is_empty() {
                self.replicas.iter_mut().for_each(Replica::assert_clean);
                return;
            }
        }
        panic!("{} turns have arrived, {:?} run", self.next, self.busy);
    }

    fn arrive(&mut self) {
        let Some(turn) = self.trace.turns.get(self.next) else {
            return;
        };
        if !self.busy.insert(turn.conversation) {
            return;
        }
        let request = IntakeId::new(self.next as u64);
        self.next += 1;
        let tokens: Arc<[u32]> = self.trace.prompt(turn).into();
        let namespace = Namespace::default();
        let peek = |replica: &Replica<'_>| Some(replica.states.cache.peek(&namespace, &tokens));
        let cached: Vec<Option<usize>> = if self.router.wants_prefixes() {
            self.replicas.iter().map(peek).collect()
        } else {
            Vec::new()
        };
        let prompt = Prompt {
            namespace: &namespace,
            tokens: &tokens,
            bypasses_cache: false,
        };
        let unit = self.router.route(request, &prompt, &cached, self.now_s);
        let unit = unit.expect("all replicas are live");
        self.replicas[unit.index()].submit(request, turn, tokens, self.now_s);
    }

    fn told(&mut self, update: &RequestTokens) {
        let request = update.intake;
        if !update.tokens.is_empty() {
            let prompt_tokens = self.trace.turns[request.index()].prompt_tokens;
            let cached_tokens = update.cached_tokens as usize;
            self.router.computed(request, prompt_tokens - cached_tokens);
            self.router.prefilled(request, self.now_s);
            self.router.generated(request, update.tokens.len());
        }
        if let Some(end) = &update.end {
            assert!(matches!(**end, RequestEnd::Finished(_)), "{end:?}");
            self.cached_tokens += update.cached_tokens as usize;
            self.router.ended(request);
            self.busy
                .remove(&self.trace.turns[request.index()].conversation);
        }
    }
}
