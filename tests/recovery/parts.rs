//! The parts of the simulation: nodes, messages, what actors own, what clients get.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use souffleur_base::ids::{IntakeId, RequestId, SeqId, StepId, UnitId};
use souffleur_executor::fake::FakeExecutor;
use souffleur_request::CancelFlag;
use souffleur_state::cache::eviction::EvictionPolicy;
use souffleur_state::cache::radix_tree::RadixTree;
use souffleur_state::control::{ControlSetup, Leg};
use souffleur_state::docket::Post;
use souffleur_state::pool::pages::{PageSize, PoolLedger};
use souffleur_state::pool::pools::Pools;
use souffleur_state::scheduler::news::RequestTokens;
use souffleur_state::scheduler::policy::PriorityOrder;
use souffleur_state::scheduler::{BatchRules, QueueRules, Scheduler, SchedulerLimits};
use souffleur_state::step::{StepOutput, StepPlan};
use souffleur_state::supervision::blame::{Signature, Suspicion};
use souffleur_state::supervision::{Death, Incarnation};

use crate::scenario::Scenario;

/// Defects that the simulation must find. Each is a mistake of an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The Tokenizer notes all told tokens but the last one of a batch.
    ToldOffByOne,
    /// The Tokenizer resumes a request twice.
    EntryTwice,
    /// The Scheduler takes the result of a step of an older generation.
    StaleStepDone,
    /// A new Scheduler numbers steps and sequences from the start.
    IdReused,
    /// The Watchdog drops the requests that a dead Tokenizer had not opened.
    DeadLetterDropped,
    /// The Watchdog allows one restart more.
    IntensityOffByOne,
    /// The Watchdog tells the Tokenizer of no suspects, so none is tried alone.
    SoloForgotten,
    /// The Watchdog starts a Scheduler without the pause.
    PauseForgotten,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    Host,
    Watchdog,
    Tokenizer,
    Scheduler(usize),
    RadixCache(usize),
    Allocator(usize),
    Executor(usize),
}

pub const MAX_NODES: usize = 11;

impl Node {
    pub fn index(self) -> usize {
        match self {
            Self::Host => 0,
            Self::Watchdog => 1,
            Self::Tokenizer => 2,
            Self::Scheduler(unit) => 3 + 4 * unit,
            Self::RadixCache(unit) => 4 + 4 * unit,
            Self::Allocator(unit) => 5 + 4 * unit,
            Self::Executor(unit) => 6 + 4 * unit,
        }
    }

    pub fn from_index(index: usize) -> Self {
        match index {
            0 => Self::Host,
            1 => Self::Watchdog,
            2 => Self::Tokenizer,
            _ => {
                let unit = (index - 3) / 4;
                let nodes = [
                    Self::Scheduler(unit),
                    Self::RadixCache(unit),
                    Self::Allocator(unit),
                    Self::Executor(unit),
                ];
                nodes[(index - 3) % 4]
            }
        }
    }
}

pub struct Letter {
    pub ask: usize,
    /// Deaths of Tokenizers that had the request in hand and not yet in the docket.
    pub deaths_in_hand: u32,
}

pub enum Message {
    Generate(Letter),
    Tokens {
        from: Incarnation,
        batch: Vec<RequestTokens>,
        admissions: Vec<IntakeId>,
    },
    TakeOver,
    Relink {
        at: Incarnation,
        suspicion: Suspicion,
    },
    HandOver {
        from: UnitId,
        to: UnitId,
    },
    Post(Post),
    Cancel(RequestId),
    SetPaused(bool),
    Leg(Leg),
    RunStep {
        generation: u64,
        plan: Box<StepPlan>,
    },
    /// The executor's thread ends its oldest step.
    Finish,
    Reset {
        generation: u64,
    },
    StepDone {
        generation: u64,
        step: StepId,
        /// `None` for a step that a reset made void.
        output: Option<StepOutput>,
        /// Poisons in the step, with the index of the output token.
        poisons: Vec<(usize, usize)>,
    },
    Died {
        death: Death,
        suspicion: Suspicion,
    },
    BuildTokenizer(u64),
    Build {
        at: Incarnation,
    },
}

pub struct Envelope {
    pub message: Message,
    /// The life of the receiver that the message was sent to.
    pub address: u64,
    /// Messages are numbered as they are sent.
    pub number: u64,
}

/// Scheduler, RadixCache and Allocator of one generation.
pub struct Control {
    pub generation: u64,
    pub scheduler: Option<Scheduler>,
    pub cache: Option<RadixTree>,
    pub pools: Option<Pools>,
    pub ledger: Arc<PoolLedger>,
    /// The life of the Tokenizer to which the Scheduler sends.
    pub tokenizer: u64,
    pub admissions: Vec<IntakeId>,
}

/// The executor's thread.
pub struct Thread {
    pub since: u64,
    pub generation: u64,
    pub fake: FakeExecutor,
    pub steps: VecDeque<(u64, Box<StepPlan>)>,
}

pub struct Unit {
    pub control: Option<Control>,
    pub thread: Option<Thread>,
    pub is_retired: bool,
    /// The generation that the Tokenizer sends to.
    pub link: u64,
    /// The Scheduler has confirmed a pause, and the host has not ended it.
    pub must_pause: bool,
    /// Plans that were open when the pause began.
    pub open_at_pause: u32,
    pub last_step: u64,
    /// Each sequence's generation and request.
    pub started: FxHashMap<SeqId, (u64, usize)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Finished,
    Aborted,
    Failed,
    /// The Tokenizer died twice with the request in hand.
    InHand,
    EngineDown,
}

/// What a client has got.
#[derive(Default)]
pub struct Client {
    pub intake: Option<IntakeId>,
    pub has_arrived: bool,
    pub flag: CancelFlag,
    pub reference: Vec<u32>,
    pub tokens: Vec<u32>,
    pub ends: Vec<End>,
    /// The most tokens that the docket had for the request.
    pub told: usize,
    /// The last number of retractions that the client was told.
    pub retractions: u32,
    /// Deaths that the request caused.
    pub kills: u32,
}

/// Ends handlers in the middle.
#[derive(Default)]
pub struct Fuse {
    pub left: Option<u32>,
    pub cause: Option<Suspicion>,
}

#[derive(Clone, Copy)]
pub enum HostEvent {
    Arrive(usize),
    Cancel(usize),
    SetPaused(bool),
}

/// What a schedule did, so that tests can check that all situations occur.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub moves: u64,
    pub deaths: u64,
    pub resumed: u64,
    pub convicted: u64,
    pub gave_up: u64,
    pub stale_messages: u64,
    pub retractions: u64,
    /// Schedules in which a Scheduler retracted.
    pub with_retractions: u64,
    /// Requests that were resumed after a retraction.
    pub resumed_retracted: u64,
    pub dead_letters: u64,
    pub handed_over: u64,
    pub weights_loaded: u64,
}

pub fn setup(scenario: &Scenario) -> ControlSetup {
    let page_size = PageSize::new(scenario.page_size).expect("it is positive");
    ControlSetup {
        limits: SchedulerLimits {
            page_size,
            total_pages: scenario.n_pages as usize,
            total_rows: scenario.n_rows as usize,
            max_prefill_tokens: 16_384,
            chunk_tokens: scenario.chunk_tokens,
            prefix_wait: true,
            rules: BatchRules::default(),
            schedule_conservativeness: if scenario.overcommits { 0.0 } else { 0.1 },
            max_pins: 0,
            queue: QueueRules {
                priority: PriorityOrder::Ignored,
                eviction_policy: EvictionPolicy::from_name("lru").ok(),
            },
            eos_token_ids: Arc::default(),
            states: None,
            windows: None,
            tier: None,
            vision: None,
        },
        schedule_policy: scenario.policy.to_owned(),
        diagnoses_misses: false,
    }
}

pub fn rid(ask: usize) -> RequestId {
    RequestId::new(format!("r{ask}"))
}

pub fn incarnation(unit: usize, generation: u64) -> Incarnation {
    Incarnation {
        unit: UnitId::new(unit as u32),
        generation,
    }
}

pub fn signature(node: Node, place: &str) -> Signature {
    let actor = match node {
        Node::Host => "host",
        Node::Watchdog => "watchdog",
        Node::Tokenizer => "tokenizer",
        Node::Scheduler(_) => "scheduler",
        Node::RadixCache(_) => "radix_cache",
        Node::Allocator(_) => "allocator",
        Node::Executor(_) => "executor_thread",
    };
    Signature {
        actor,
        place: place.into(),
    }
}
