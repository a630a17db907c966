//! A unit of the simulated engine: scheduler, tree, pools, KV store, and the executor's steps in flight.

use std::collections::VecDeque;

use super::disk::StoreModel;
use super::outcome::UnitOutcome;
use super::roofline::{Roofline, StepCost};
use super::rows::{SimulatedDrafts, SimulatedRows, prefill_only_tokens};
use super::store::{StoreAnswer, VirtualStore};
use souffleur_base::error::ConfigError;
use souffleur_state::cache::radix_tree::RadixTree;
use souffleur_state::control::{ControlSetup, ControlStates};
use souffleur_state::scheduler::news::RequestTokens;
use souffleur_state::scheduler::stats::EngineStats;
use souffleur_state::scheduler::submission::Submission;
use souffleur_state::step::{RowResult, RowWork, StepOutput, StepPlan};
use souffleur_state::tiers::PrefillRate;

pub(super) struct VirtualUnit<'a> {
    roofline: &'a Roofline,
    store_model: Option<&'a StoreModel>,
    states: ControlStates,
    store: Option<VirtualStore<'a>>,
    rows: SimulatedRows,
    prefill_rate: PrefillRate,
    /// The steps in flight. The first one runs for `step_s`, until `step_ends_s`.
    steps: VecDeque<Box<StepPlan>>,
    /// The results of the first step in flight.
    results: Vec<RowResult>,
    step_ends_s: f64,
    step_s: f64,
    /// A request came, or a step ended, since the last plan.
    is_due: bool,
    outcome: UnitOutcome,
}

impl<'a> VirtualUnit<'a> {
    pub(super) fn new(
        setup: &ControlSetup,
        roofline: &'a Roofline,
        store: Option<&'a StoreModel>,
        drafts: Option<SimulatedDrafts>,
    ) -> Result<Self, ConfigError> {
        let mut states = setup.build()?;
        states.scheduler.store_serves(store.is_some());
        Ok(Self {
            roofline,
            store_model: store,
            states,
            store: store.map(VirtualStore::new),
            rows: SimulatedRows::new(drafts),
            prefill_rate: PrefillRate::default(),
            steps: VecDeque::new(),
            results: Vec::new(),
            step_ends_s: 0.0,
            step_s: 0.0,
            is_due: false,
            outcome: UnitOutcome::default(),
        })
    }

    pub(super) fn step_end_s(&self) -> Option<f64> {
        (!self.steps.is_empty()).then_some(self.step_ends_s)
    }

    pub(super) fn store_event_s(&self) -> Option<f64> {
        self.store.as_ref().and_then(VirtualStore::next_event_s)
    }

    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    pub(super) fn stats(&self) -> EngineStats {
        self.states.scheduler.stats()
    }

    pub(super) fn outcome(&self) -> UnitOutcome {
        UnitOutcome {
            evicted_nodes: self.states.evicted_nodes,
            stats: self.stats(),
            store: self.store.as_ref().map(VirtualStore::outcome),
            ..self.outcome
        }
    }

    pub(super) fn cache(&self) -> &RadixTree {
        &self.states.cache
    }

    pub(super) fn submit(&mut self, request: Submission) {
        self.is_due = true;
        self.outcome.requests += 1;
        self.states.scheduler.submit(request);
    }

    pub(super) fn take_news(&mut self) -> Vec<RequestTokens> {
        self.states.scheduler.take_first_admissions();
        let news = self.states.scheduler.take_news();
        let tokens = news.iter().map(|update| update.tokens.len() as u64);
        self.outcome.output_tokens += tokens.sum::<u64>();
        news
    }

    pub(super) fn plan_steps(&mut self, now_s: f64) {
        self.is_due = false;
        loop {
            self.run_store(now_s);
            match self.states.advance() {
                Some(plan) => self.begin_step(plan, now_s),
                None if self.run_store(now_s) => {}
                None => break,
            }
        }
    }

    /// Passes orders to the store, and its answers to the scheduler. Returns false if there were no answers.
    fn run_store(&mut self, now_s: f64) -> bool {
        let Some(store) = &mut self.store else {
            return false;
        };
        let scheduler = &mut self.states.scheduler;
        let orders = scheduler.take_store_orders();
        store.take_orders(orders, now_s, self.prefill_rate.tokens_per_s());
        store.advance(now_s);
        let answers = store.take_answers();
        let has_answers = !answers.is_empty();
        for answer in answers {
            match answer {
                StoreAnswer::Found { seq, found } => scheduler.prefix_found(seq, found),
                StoreAnswer::Fetched { ticket, blocks } => {
                    scheduler.blocks_fetched(ticket, blocks, None);
                }
                StoreAnswer::Written { ticket, kept } => {
                    scheduler.blocks_written(&[ticket], kept);
                }
            }
        }
        has_answers
    }

    fn begin_step(&mut self, plan: Box<StepPlan>, now_s: f64) {
        let is_decode = plan
            .rows
            .iter()
            .all(|row| matches!(row.work, RowWork::Decode { .. }));
        match is_decode {
            _ if plan.rows.is_empty() => self.outcome.copy_steps += 1,
            true => self.outcome.decode_steps += 1,
            false => self.outcome.prefill_steps += 1,
        }
        self.outcome.largest_batch = self.outcome.largest_batch.max(plan.rows.len());
        self.steps.push_back(plan);
        if self.steps.len() == 1 {
            self.time_step(now_s);
        }
    }

    /// Starts the first step in flight now, and computes its results and its duration.
    fn time_step(&mut self, now_s: f64) {
        if let Some(plan) = self.steps.front() {
            let cleared = self.states.scheduler.take_cleared_rows();
            self.results = cleared.unwrap_or_default();
            self.results.extend(self.rows.results(plan));
            // A step without rows, or with skipped ones only, reads no weights.
            let cost = if self.results.iter().any(|row| row.accepted > 0) {
                self.roofline.cost(plan, &self.results)
            } else {
                StepCost::default()
            };
            let copies = self.store_model.zip(plan.copies.as_deref());
            let copies_s = copies.map_or(0.0, |(store, copies)| store.copies_s(copies));
            self.step_s = self.roofline.seconds(&cost) + copies_s;
            self.step_ends_s = now_s + self.step_s;
            self.outcome.busy_s += self.step_s;
        }
    }

    /// Ends the first step in flight. Returns true if it computed rows.
    pub(super) fn end_step(&mut self, now_s: f64) -> bool {
        let Some(plan) = self.steps.pop_front() else {
            return false;
        };
        self.is_due = true;
        if let Some(tokens) = prefill_only_tokens(&plan) {
            self.prefill_rate.note(tokens, self.step_s);
        }
        if let (Some(store), Some(copies)) = (&mut self.store, &plan.copies) {
            store.record_copies(copies);
        }
        let rows = std::mem::take(&mut self.results);
        let has_computed = rows.iter().any(|row| row.accepted > 0);
        let micros = (self.step_s * 1e6).round() as u64;
        self.states.scheduler.step_took(plan.step, micros);
        self.states.scheduler.step_done(
            plan.step,
            Ok(StepOutput {
                step: plan.step,
                rows,
            }),
        );
        self.time_step(now_s);
        has_computed
    }
}

impl Drop for VirtualUnit<'_> {
    fn drop(&mut self) {
        // Otherwise the ledger would report pages in use as leaks.
        self.states.ledger.close();
    }
}
