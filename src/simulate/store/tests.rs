//! Tests of the simulated KV store: times against manual calculations, contents against a naive store.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::hardware::Hardware;
use crate::pool::model_info;
use crate::shape;
use souffleur_config::EngineConfig;
use souffleur_state::step::{BlockLoad, BlockSave};

/// A block of Qwen3-0.6B in 16 bits: 64 tokens, 28 layers, 8 heads with 128 elements of keys and values each.
const BLOCK_BYTES: u64 = 64 * 28 * 8 * 128 * 2 * 2;
const BLOCK_TOKENS: usize = 64;

/// A disk with a latency of 0.5 ms that reads a block in 1 ms and writes a block in 10 ms.
fn model(disk_blocks: u64, buffers: u64) -> StoreModel {
    let mut hardware = Hardware::load("zen4-2-cores").expect("it is compiled in");
    hardware.disk_read_gb_s = Some(BLOCK_BYTES as f64 / 1e6);
    hardware.disk_write_gb_s = Some(BLOCK_BYTES as f64 / 1e7);
    hardware.disk_latency_us = Some(500.0);
    let shape = shape::load("qwen3-0.6b").expect("it is compiled in");
    let record_bytes = BLOCK_BYTES + 4096;
    let config = EngineConfig {
        kv_disk_path: Some("nowhere".into()),
        kv_disk_bytes: disk_blocks * record_bytes,
        kv_host_bytes: Some(buffers * BLOCK_BYTES),
        ..EngineConfig::default()
    };
    let info = model_info(&config, &shape, &hardware, 1, Some(10_000)).expect("it fits");
    let model = StoreModel::new(&config, &shape, &info, (&hardware, 1));
    let model = model.expect("it is valid").expect("there is a folder");
    assert_eq!(model.payload_bytes(BlockKind::Kv), BLOCK_BYTES);
    assert_eq!(model.record_bytes(BlockKind::Kv), record_bytes);
    model
}

/// The tokens of a path of full blocks; equal letters make equal blocks.
fn tokens(letters: &[u8]) -> Arc<[u32]> {
    let block = |letter: &u8| {
        let first = 1000 * u32::from(*letter);
        first..first + BLOCK_TOKENS as u32
    };
    letters.iter().flat_map(block).collect()
}

struct Driver<'a> {
    store: VirtualStore<'a>,
    n_tickets: u64,
    /// The store's answers, each with its time.
    fetched: Vec<(f64, Ticket, usize)>,
    written: Vec<(f64, Ticket)>,
}

impl<'a> Driver<'a> {
    fn new(model: &'a StoreModel) -> Self {
        Self {
            store: VirtualStore::new(model),
            n_tickets: 0,
            fetched: Vec::new(),
            written: Vec::new(),
        }
    }

    fn ticket(&mut self) -> Ticket {
        self.n_tickets += 1;
        Ticket::new(self.n_tickets)
    }

    fn order(&mut self, order: StoreOrder, now_s: f64) {
        self.store.take_orders(vec![order], now_s, None);
        self.advance(now_s);
    }

    fn advance(&mut self, now_s: f64) {
        self.store.advance(now_s);
        for answer in self.store.take_answers() {
            match answer {
                StoreAnswer::Found { .. } => panic!("the tests call find directly"),
                StoreAnswer::Fetched { ticket, blocks } => {
                    self.fetched.push((now_s, ticket, blocks));
                }
                StoreAnswer::Written { ticket, .. } => self.written.push((now_s, ticket)),
            }
        }
    }

    /// Processes the store's events until `end_s`.
    fn run_until(&mut self, end_s: f64) {
        while let Some(now_s) = self.store.next_event_s().filter(|at| *at <= end_s) {
            self.advance(now_s);
        }
    }

    fn write(&mut self, path: &Arc<[u32]>, block: u32, now_s: f64) -> Ticket {
        let ticket = self.ticket();
        let order = StoreOrder::Write {
            ticket,
            namespace: Namespace::default(),
            tokens: path.clone(),
            block,
        };
        self.order(order, now_s);
        ticket
    }

    fn find(&mut self, path: &[u32]) -> PrefixFound {
        self.store.find(&Namespace::default(), path, None)
    }

    fn fetch(&mut self, path: &[u32], blocks: std::ops::Range<usize>, now_s: f64) -> Ticket {
        let ticket = self.ticket();
        let order = StoreOrder::Fetch {
            seq: SeqId::new(1),
            ticket,
            path: self.find(path).path,
            blocks,
        };
        self.order(order, now_s);
        ticket
    }
}

fn check_times(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{found:?}");
    let is_near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-9;
    assert!(found.iter().zip(expected).all(is_near), "{found:?}");
}

#[test]
fn a_fetch_waits_for_the_current_write_and_precedes_other_writes() {
    let model = model(100, 16);
    let mut driver = Driver::new(&model);
    let path = tokens(b"abc");
    for block in 0..3 {
        driver.write(&path, block, 0.0);
    }
    driver.run_until(0.015);
    assert_eq!(driver.find(&path).blocks, 1);
    let ticket = driver.fetch(&path, 0..1, 0.015);
    driver.run_until(1.0);
    let written: Vec<f64> = driver.written.iter().map(|(at, _)| *at).collect();
    // The second block is written at 20 ms. Then the fetch takes 0.5 + 1 ms, and the third block follows.
    check_times(&written, &[0.010, 0.020, 0.0315]);
    check_times(&[driver.fetched[0].0], &[0.0215]);
    assert_eq!((driver.fetched[0].1, driver.fetched[0].2), (ticket, 1));
    let outcome = driver.store.outcome();
    assert_eq!(
        (outcome.written, outcome.read, outcome.held_blocks),
        (3, 1, 3)
    );
    check_times(&[outcome.read_s, outcome.write_s], &[0.0015, 0.030]);
}

#[test]
fn fetches_wait_for_buffers_and_end_at_their_deadlines() {
    // Three of the four buffers are for fetches.
    let model = model(100, 4);
    let mut driver = Driver::new(&model);
    let path = tokens(b"abcd");
    for block in 0..4 {
        driver.write(&path, block, 0.0);
    }
    driver.run_until(1.0);
    let first = driver.fetch(&path, 0..4, 1.0);
    let second = driver.fetch(&path, 0..1, 1.0);
    driver.run_until(1.5);
    assert_eq!(driver.fetched.len(), 1, "no buffer is left");
    assert_eq!((driver.fetched[0].1, driver.fetched[0].2), (first, 3));
    driver.run_until(10.0);
    // The timeout is one second plus a quarter of a second per 1,024 tokens.
    check_times(&[driver.fetched[1].0], &[1.0 + 1.0 + 0.25 / 16.0]);
    assert_eq!((driver.fetched[1].1, driver.fetched[1].2), (second, 0));
    let load = BlockLoad {
        ticket: first,
        row: souffleur_base::ids::RowId::new(1),
        skip_tokens: 0,
        positions: 0..192,
        states: Default::default(),
    };
    let copies = BlockCopies {
        saves: Vec::<BlockSave>::new(),
        loads: vec![load],
    };
    driver.store.record_copies(&copies);
    driver.fetch(&path, 0..1, 10.0);
    driver.run_until(20.0);
    check_times(&[driver.fetched[2].0], &[10.0015]);
    assert_eq!(driver.fetched[2].2, 1);
}

#[test]
fn a_cancelled_fetch_ends_with_the_block_being_read() {
    let model = model(100, 16);
    let mut driver = Driver::new(&model);
    let path = tokens(b"abcd");
    for block in 0..4 {
        driver.write(&path, block, 0.0);
    }
    driver.run_until(1.0);
    let ticket = driver.fetch(&path, 0..4, 1.0);
    let waiting = driver.fetch(&path, 0..1, 1.0);
    driver.order(StoreOrder::Discard { ticket: waiting }, 1.0001);
    driver.order(StoreOrder::Discard { ticket }, 1.002);
    driver.run_until(2.0);
    let fetched: Vec<_> = driver
        .fetched
        .iter()
        .map(|(_, ticket, n)| (*ticket, *n))
        .collect();
    assert_eq!(fetched, [(waiting, 0), (ticket, 0)]);
    // The latency of 0.5 ms, and 1 ms for each of two blocks.
    check_times(&[driver.fetched[1].0], &[1.0025]);
}

/// A naive store: blocks, keyed by the letters of their paths, with their last use.
#[derive(Default)]
struct Naive {
    blocks: BTreeMap<Vec<u8>, u64>,
    clock: u64,
    max_blocks: usize,
}

impl Naive {
    fn prefix(&self, path: &[u8]) -> usize {
        let is_there = |n: &usize| self.blocks.contains_key(&path[..*n]);
        (1..=path.len()).take_while(is_there).count()
    }

    fn touch(&mut self, path: &[u8]) {
        self.clock += 1;
        for n in 1..=path.len() {
            if let Some(used) = self.blocks.get_mut(&path[..n]) {
                *used = self.clock;
            }
        }
    }

    fn write(&mut self, path: &[u8]) {
        let parent = &path[..path.len() - 1];
        if self.blocks.contains_key(path) {
            return self.touch(path);
        }
        if self.prefix(parent) < parent.len() {
            return;
        }
        self.touch(parent);
        while self.blocks.len() >= self.max_blocks {
            let has_child = |block: &Vec<u8>| {
                let mut others = self.blocks.keys();
                others.any(|other| other.len() > block.len() && other.starts_with(block))
            };
            let leaves = self.blocks.iter().filter(|(block, _)| !has_child(block));
            let oldest = leaves.min_by_key(|(_, used)| **used);
            let oldest = oldest.map(|(block, _)| block.clone());
            match oldest {
                Some(block) if block != parent => self.blocks.remove(&block),
                _ => return,
            };
        }
        self.clock += 1;
        self.blocks.insert(path.to_vec(), self.clock);
    }
}

#[test]
fn random_writes_and_fetches_match_a_naive_store() {
    for max_blocks in [1, 2, 5, 9, 40, 400] {
        let model = model(max_blocks as u64, 16);
        let mut driver = Driver::new(&model);
        let mut naive = Naive {
            max_blocks,
            ..Naive::default()
        };
        let mut random: u64 = max_blocks as u64;
        let mut below = |n: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) % n
        };
        let mut now_s = 0.0;
        for _ in 0..2000 {
            let n_letters = 1 + below(5);
            let letters: Vec<u8> = (0..n_letters).map(|_| below(3) as u8).collect();
            let path = tokens(&letters);
            assert_eq!(
                driver.find(&path).blocks,
                naive.prefix(&letters),
                "{letters:?}"
            );
            now_s += 10.0;
            if below(3) == 0 {
                let found = naive.prefix(&letters);
                driver.fetch(&path, 0..found, now_s);
                driver.run_until(now_s + 5.0);
                let (_, ticket, blocks) = *driver.fetched.last().expect("it is answered");
                assert_eq!(blocks, found);
                naive.touch(&letters[..found]);
                driver.order(StoreOrder::Discard { ticket }, now_s + 5.0);
            } else {
                for block in 0..letters.len() {
                    driver.write(&path, block as u32, now_s);
                    naive.write(&letters[..=block]);
                }
                driver.run_until(now_s + 5.0);
            }
            assert_eq!(driver.store.index.fault(), None);
            let outcome = driver.store.outcome();
            assert_eq!(outcome.held_blocks, naive.blocks.len());
            assert!(outcome.held_bytes <= outcome.disk_bytes);
        }
        let outcome = driver.store.outcome();
        assert!(outcome.known > 0 && outcome.read > 0);
        assert_eq!(outcome.evicted > 0, max_blocks < 400, "{outcome:?}");
    }
}

#[test]
fn a_disk_slower_than_computing_is_not_used() {
    let model = model(100, 16);
    let mut driver = Driver::new(&model);
    let path = tokens(b"abcd");
    for block in 0..4 {
        driver.write(&path, block, 0.0);
    }
    driver.run_until(1.0);
    let namespace = Namespace::default();
    // Before the first read, the cost model assumes 1 GB/s: 30 ms for 256 tokens.
    let slow = driver.store.find(&namespace, &path, Some(1000.0));
    assert_eq!((slow.blocks, slow.worth), (4, 4));
    let fast = driver.store.find(&namespace, &path, Some(100_000.0));
    assert_eq!((fast.blocks, fast.worth), (4, 0));
    assert_eq!(driver.store.outcome().too_slow, 1);
}
