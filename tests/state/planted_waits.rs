//! Tests that [`crate::scheduler_waits`] finds planted scheduler faults: each fault breaks one guarantee, and the same
//! steps without the fault break none.

use std::sync::Arc;

use souffleur_base::ids::{RowId, SeqId, StepId};
use souffleur_state::pool::pages::PageRun;
use souffleur_state::sampling::SamplingParams;
use souffleur_state::scheduler::policy::{SchedulePolicy, Waiting};
use souffleur_state::step::{RowStart, RowWork, StepPlan, StepRow};

use crate::panics;
use crate::scheduler_waits::{Free, Guarantee, WaitLog, WaitRules};
use crate::scheduler_world::{Ask, Setup, World};

const PROMPT: u32 = 40;
const CHUNK: u32 = 16;
const NEW_TOKENS: usize = 3;

/// A row of a step; the first field is the number of its request.
#[derive(Clone, Copy)]
enum Row {
    /// Starts with its whole prompt.
    Start(usize),
    /// Starts with its first chunk.
    StartChunk(usize),
    /// Continues with the chunk that ends at this position.
    Chunk(usize, u32),
    Decode(usize),
}

use Row::{Chunk, Decode, Start, StartChunk};

impl Row {
    fn number(self) -> usize {
        match self {
            Start(number) | StartChunk(number) | Chunk(number, _) | Decode(number) => number,
        }
    }

    fn row(self) -> StepRow {
        let prefill = |end: u32| RowWork::Prefill {
            positions: end.saturating_sub(CHUNK)..end,
        };
        let (work, sample) = match self {
            Start(_) => (
                RowWork::Prefill {
                    positions: 0..PROMPT,
                },
                true,
            ),
            StartChunk(_) => (prefill(CHUNK), false),
            Chunk(_, end) => (prefill(end), end == PROMPT),
            Decode(_) => (
                RowWork::Decode {
                    position: PROMPT,
                    room: 1,
                },
                true,
            ),
        };
        StepRow {
            row: RowId::new(self.number() as u32 + 1),
            seq: SeqId::new(self.number() as u64),
            work,
            sample,
            logprobs: None,
            saves: Default::default(),
        }
    }

    fn start(self) -> Option<RowStart> {
        matches!(self, Start(_) | StartChunk(_)).then(|| RowStart {
            row: RowId::new(self.number() as u32 + 1),
            seq: SeqId::new(self.number() as u64),
            tokens: (0..PROMPT).collect(),
            prompt_tokens: PROMPT,
            grammar: None,
            vectors: None,
            images: None,
            pooling: None,
            sampling: Arc::new(SamplingParams::default()),
            prefix: PageRun::empty(),
            state: None,
            draft_texts: Default::default(),
        })
    }
}

/// A log in which requests 0, 1 and 2 have arrived in this order.
fn log() -> WaitLog {
    let mut log = WaitLog::new(WaitRules {
        min_chunk: Some(CHUNK as usize),
        due_decodes: 1,
        prefix_wait: false,
        priority_first: false,
        page_size: 1,
    });
    for _ in 0..3 {
        log.arrived(PROMPT as usize, NEW_TOKENS, (false, 0));
    }
    log
}

fn step(log: &mut WaitLog, guarantee: Guarantee, rows: &[Row]) {
    step_with(log, guarantee, rows, Free { rows: 0, tokens: 0 });
}

fn step_with(log: &mut WaitLog, guarantee: Guarantee, rows: &[Row], free: Free) {
    log.begin_plan(guarantee, false);
    let plan = StepPlan {
        step: StepId::new(0),
        starts: rows.iter().filter_map(|row| row.start()).collect(),
        table: Vec::new(),
        rows: rows.iter().map(|row| row.row()).collect(),
        copies: None,
        vision: None,
    };
    let is_start = |row: &&Row| row.start().is_some();
    let starts: Vec<usize> = rows
        .iter()
        .filter(is_start)
        .map(|row| row.number())
        .collect();
    let numbers: Vec<usize> = rows.iter().map(|row| row.number()).collect();
    log.take_step(&plan, &starts, &numbers, free);
}

/// Whether `steps` break a guarantee under first come, first served.
fn breaks(steps: &[&[Row]]) -> bool {
    panics(|| {
        let mut log = log();
        steps
            .iter()
            .for_each(|rows| step(&mut log, Guarantee::Arrival, rows));
    })
}

#[test]
fn planted_unsorted_queue_breaks_the_guaranteed_order() {
    assert!(!breaks(&[&[Start(0), Start(1)], &[Start(2)]]));
    assert!(breaks(&[&[Start(0), Start(2)], &[Start(1)]]));
    assert!(breaks(&[&[Start(1)]]));
    let first = |guarantee| panics(|| step(&mut log(), guarantee, &[Start(2)]));
    assert!(first(Guarantee::Arrival) && first(Guarantee::LongestOutput));
    assert!(!first(Guarantee::Nothing));
}

#[test]
fn planted_retracted_request_at_the_back_of_the_queue_breaks_every_policys_order() {
    let retracted = |rest: &[&[Row]]| {
        panics(|| {
            let mut log = log();
            step(&mut log, Guarantee::Nothing, &[Start(1)]);
            log.put_back(1, false);
            // The last token of request 1 is in flight, so this step may exclude it.
            step(&mut log, Guarantee::Nothing, &[Start(0)]);
            rest.iter()
                .for_each(|rows| step(&mut log, Guarantee::Nothing, rows));
        })
    };
    assert!(!retracted(&[&[Decode(0)], &[Start(1)], &[Start(2)]]));
    assert!(retracted(&[&[Decode(0)], &[Start(2)], &[Start(1)]]));
}

#[test]
fn planted_chunk_that_does_not_continue_breaks_its_guarantee() {
    let (begin, end) = ([Start(0), StartChunk(1)], [Chunk(1, PROMPT)]);
    let (middle, decode) = ([Chunk(1, 32)], [Decode(0)]);
    assert!(!breaks(&[&begin, &decode, &middle, &decode, &end]));
    assert!(breaks(&[&begin, &decode, &decode]));
    assert!(breaks(&[&begin, &middle, &decode, &decode]));
}

#[test]
fn planted_engine_that_admits_no_request_breaks_the_bound() {
    let decode = [Decode(0)];
    assert!(!breaks(&[&[Start(0)], &decode, &decode, &[Start(1)]]));
    // No request runs any more, but steps continue.
    let empty: [Row; 0] = [];
    assert!(breaks(&[&[Start(0)], &decode, &decode, &empty]));
}

#[test]
fn planted_engine_that_leaves_memory_unused_breaks_its_guarantee() {
    let decodes = |tokens| {
        panics(|| {
            let mut log = log();
            step(&mut log, Guarantee::Arrival, &[Start(0), Start(1)]);
            log.ended(1);
            for _ in 0..2 {
                let free = Free { rows: 1, tokens };
                step_with(&mut log, Guarantee::Arrival, &[Decode(0)], free);
            }
        })
    };
    let wanted = PROMPT as usize + NEW_TOKENS;
    assert!(decodes(2 * wanted));
    assert!(!decodes(wanted));
}

/// Last come, first served, under another policy's name.
struct Newest;

impl SchedulePolicy for Newest {
    fn name(&self) -> &'static str {
        "fcfs"
    }

    fn order(&mut self, waiting: &mut [Waiting]) {
        waiting.reverse();
    }
}

#[test]
fn planted_order_of_a_real_scheduler_breaks_the_guaranteed_order() {
    let run = |policy: Option<Box<dyn SchedulePolicy>>| {
        panics(|| {
            let setup = Setup {
                n_rows: 2,
                // Only the first order is compared with that of the naive model.
                full_check_every: usize::MAX,
                ..Setup::default()
            };
            let mut world = match policy {
                None => World::new(setup),
                Some(policy) => World::with_policy(setup, policy),
            };
            let ask = |token| Ask {
                prompt: vec![token; 8],
                max_new_tokens: 6,
                ..Ask::default()
            };
            // The first plan, which is always compared, has one request.
            world.submit(ask(1));
            world.turn();
            world.submit_all(&mut (2..9).map(ask));
            world.assert_clean();
        })
    };
    assert!(!run(None));
    assert!(run(Some(Box::new(Newest))));
}
