//! Runs a plan leg by leg (from scheduler to cache to pools and back), and ends steps.

use std::collections::HashSet;

use souffleur_base::error::StepError;
use souffleur_executor::Executor;
use souffleur_state::control::{Carried, Leg};
use souffleur_state::plan::Settle;
use souffleur_state::plan::probe::ProbeKey;
use souffleur_state::sampling::{RowLogprobs, TokenLogprobs};
use souffleur_state::scheduler::Next;
use souffleur_state::step::{RowWork, StepOutput, StepPlan};

use crate::scheduler_waits::Free;

use super::{Outcome, World};

/// More rounds than any test needs to drain the engine.
const MAX_ROUNDS: usize = 200_000;

/// Values of a leg that are kept for the check after it has run.
enum Before {
    Probe(Vec<ProbeKey>),
    Probed,
    Plan { is_flush: bool },
    Reserve,
    Planned,
}

impl World {
    /// Moves the open plan by one leg; returns false if no plan is open.
    pub fn advance(&mut self) -> bool {
        let Some(leg) = self.leg.take() else {
            return false;
        };
        let before = self.check_before(&leg);
        match self.states.carry(leg) {
            Carried::On(leg) => {
                if let Some(kv_reader) = &mut self.kv_reader {
                    kv_reader.take_changes(&mut self.states.cache);
                }
                self.check_after(before, &leg);
                self.leg = Some(leg);
            }
            Carried::Back(next) => self.take_answer(before, next),
        }
        true
    }

    /// Checks the invariants of a leg before it runs, and keeps values for the check after it.
    fn check_before(&self, leg: &Leg) -> Before {
        match leg {
            Leg::ProbePrefixes(probe) => Before::Probe(probe.keys.clone()),
            Leg::PlanStep(plan) => {
                assert_eq!(plan.free_pages, self.states.pools.pages.free_pages());
                assert_eq!(plan.free_rows, self.states.pools.rows.free_rows());
                assert_eq!(plan.free_states, self.states.pools.states.free_slots());
                assert_eq!(plan.free_windows, self.states.pools.windows.free_pages());
                let is_flush = plan.flush;
                Before::Plan { is_flush }
            }
            Leg::ReservePages(_) => Before::Reserve,
            Leg::PrefixesProbed(_) => Before::Probed,
            Leg::StepPlanned(_) => Before::Planned,
        }
    }

    /// Checks the results of the tree and the pools.
    fn check_after(&mut self, before: Before, leg: &Leg) {
        match (before, leg) {
            (Before::Probe(keys), _) if self.is_full_check() => {
                assert_eq!(self.states.cache.check_integrity(), Ok(()));
                let numbers: Vec<usize> = keys.iter().map(|k| self.number_of(k.seq)).collect();
                self.order.note_probe(&self.states.cache, &numbers, &keys);
            }
            (Before::Plan { is_flush }, _) => {
                if let Leg::ReservePages(reserve) = leg
                    && let Some(preempt) = &reserve.verdict.preempt
                {
                    self.preempted.push(preempt.victims.len());
                }
                let has_pins = self.stats().pins > 0;
                assert!(
                    !is_flush || has_pins || self.states.cache.total_size() == 0,
                    "a flush without pins left cached tokens"
                );
                if self.is_full_check() {
                    assert_eq!(self.states.cache.check_integrity(), Ok(()));
                }
            }
            (_, Leg::StepPlanned(planned)) => self.note_grants(planned),
            _ => {}
        }
    }

    /// Takes the scheduler's next message after an answer, and starts plans.
    fn take_answer(&mut self, before: Before, next: Next) {
        let is_planned = matches!(before, Before::Planned);
        if is_planned {
            assert_eq!(self.stats().integrity_failures, 0);
            if !matches!(next, Next::PlanStep(_) | Next::ReservePages(_)) {
                self.check_counters();
                if self.is_full_check() {
                    self.check_pages();
                    self.check_states();
                    self.check_windows();
                }
            }
            self.plans += 1;
        }
        self.order.repeats = is_planned;
        self.take_next(next);
        self.order.repeats = false;
        self.take_news();
        self.start_plans();
    }

    /// Moves the open plan, and the plans that follow at once, to their ends.
    pub fn finish_plan(&mut self) {
        while self.advance() {}
    }

    /// Ends the oldest step in flight; returns false if there is none.
    pub fn end_step(&mut self, outcome: Outcome) -> bool {
        self.end_step_with(outcome, "injected")
    }

    pub fn oldest_step(&self) -> Option<&StepPlan> {
        self.steps.front()
    }

    /// As [`Self::end_step`], with the text of the error if the step fails.
    pub fn end_step_with(&mut self, outcome: Outcome, cause: &str) -> bool {
        let Some(plan) = self.steps.pop_front() else {
            return false;
        };
        let is_void = plan.step <= self.void_until;
        let result = match outcome {
            Outcome::Done => self.run(&plan),
            Outcome::Rejected => Err(StepError::Rejected(cause.to_owned())),
            Outcome::LostBeforeItRan => Err(StepError::Lost(cause.to_owned())),
            Outcome::LostAfterItRan => {
                let _ = self.run(&plan);
                Err(StepError::Lost(cause.to_owned()))
            }
        };
        if !is_void {
            self.note_results(&plan, &result);
            match &result {
                Ok(_) => {}
                Err(error) if outcome == Outcome::Done => panic!("step {}: {error}", plan.step),
                Err(error) => self.note_failure(&plan, error),
            }
        }
        for number in &self.unfinished {
            if let Some(steps) = &mut self.views[*number].steps_since_cancel {
                *steps += 1;
            }
        }
        if result.is_ok() {
            let micros = micros_of(&plan);
            self.states.scheduler.step_took(plan.step, micros);
        }
        self.states.scheduler.step_done(plan.step, result);
        self.after_event();
        true
    }

    /// One whole step: makes all possible plans, then ends the oldest step. Returns false if there was none.
    pub fn turn(&mut self) -> bool {
        self.finish_plan();
        self.end_step(Outcome::Done)
    }

    /// Runs all plans and steps until the engine is idle.
    pub fn drain(&mut self) {
        let mut rounds = 0;
        while !self.is_idle() {
            assert!(
                self.advance() || self.end_step(Outcome::Done),
                "no plan and no step can continue, but the engine is not idle: {:?}",
                self.stats()
            );
            rounds += 1;
            assert!(rounds < MAX_ROUNDS, "{:?}", self.stats());
        }
    }

    pub(super) fn start_plans(&mut self) {
        while self.leg.is_none() && !self.defers_plans {
            match self.states.scheduler.next() {
                Next::Nothing => break,
                next => {
                    self.note_plan(&next);
                    self.take_next(next);
                }
            }
        }
        self.take_news();
    }

    fn take_next(&mut self, next: Next) {
        match next {
            Next::Nothing => return,
            Next::ProbePrefixes(mut probe) => {
                self.plant_settlements(&mut probe.settle);
                self.order
                    .note_probing_policy(self.states.scheduler.policy_name());
                self.note_releases(&probe.settle);
                self.leg = Some(Leg::ProbePrefixes(probe));
                return;
            }
            Next::PlanStep(mut plan) => {
                self.plant_settlements(&mut plan.settle);
                self.note_releases(&plan.settle);
                self.check_order(&plan);
                self.leg = Some(Leg::PlanStep(plan));
            }
            Next::ReservePages(reserve) => self.leg = Some(Leg::ReservePages(reserve)),
            Next::RunStep(plan) => return self.take_step(*plan),
        }
        self.plans_since_progress += 1;
        let bound = 2 * self.views.len() + 10;
        assert!(self.plans_since_progress < bound, "plans without a step");
        for number in &self.unfinished {
            let view = &self.views[*number];
            let is_late = view.steps_since_cancel.is_some_and(|steps| steps >= 2);
            assert!(
                !(is_late && view.holds_memory),
                "{} holds memory two steps after its cancel",
                view.rid
            );
        }
    }

    fn take_step(&mut self, plan: StepPlan) {
        self.plans_since_progress = 0;
        self.order.note_step(&plan);
        let numbers = plan.rows.iter().map(|row| self.number_of(row.seq));
        for number in numbers.chain(plan.starts.iter().map(|start| self.number_of(start.seq))) {
            let view = &self.views[number];
            assert!(view.end.is_none(), "{} ended and is planned", view.rid);
            assert_eq!(view.steps_since_cancel, None, "{}", view.rid);
        }
        let rows: HashSet<_> = plan.rows.iter().map(|row| row.row).collect();
        let seqs: HashSet<_> = plan.rows.iter().map(|row| row.seq).collect();
        assert_eq!((rows.len(), seqs.len()), (plan.rows.len(), plan.rows.len()));
        assert!(!plan.rows.is_empty());
        self.check_rooms(&plan);
        assert_eq!(plan.step.get(), self.history.len() as u64 + 1);
        let numbers = &self.numbers;
        self.watch
            .take_step(&plan, |seq| numbers[(seq.get() >> 32) as usize - 1]);
        let starts = plan.starts.iter().map(|start| self.number_of(start.seq));
        let rows = plan.rows.iter().map(|row| self.number_of(row.seq));
        let (starts, rows): (Vec<_>, Vec<_>) = (starts.collect(), rows.collect());
        let pages = self.states.pools.pages.free_pages();
        let (cache, page_size) = (&self.states.cache, self.states.cache.page_size());
        let tokens = page_size.tokens_in(pages) + cache.evictable_size();
        let windows = self.states.pools.windows.free_pages() + cache.evictable_windows();
        let free = Free {
            rows: self.states.pools.rows.free_rows(),
            tokens: match self.setup.windows {
                Some(_) => tokens.min(page_size.tokens_in(windows)),
                None => tokens,
            },
        };
        self.waits.has_trials = self.states.scheduler.has_suspects();
        self.waits.take_step(&plan, &starts, &rows, free);
        self.trial_steps += usize::from(self.waits.has_trials);
        let views = &self.views;
        self.unfinished
            .retain(|number| views[*number].end.is_none() || views[*number].holds_memory);
        self.steps.push_back(plan.clone());
        self.history.push(plan);
        assert!(self.steps.len() <= 2);
    }

    /// Checks that rows have room for drafts only if their requests want them, and only in steps of decodes.
    fn check_rooms(&self, plan: &StepPlan) {
        let has_prefill = plan
            .rows
            .iter()
            .any(|row| matches!(row.work, RowWork::Prefill { .. }));
        for row in &plan.rows {
            if let RowWork::Decode { room, .. } = row.work {
                let wished = self.views[self.number_of(row.seq)].ask.room();
                let most = if has_prefill { 1 } else { wished };
                assert!(
                    (1..=most).contains(&room),
                    "room for {room} in {:?}",
                    row.work
                );
            }
        }
    }

    /// Records the numbers of tokens of a step's rows, which plans did not know.
    fn note_results(&mut self, plan: &StepPlan, result: &Result<StepOutput, StepError>) {
        let Ok(output) = result else {
            return;
        };
        for (row, result) in plan.rows.iter().zip(&output.rows) {
            let RowWork::Decode { room, .. } = row.work else {
                continue;
            };
            if result.accepted > 0 {
                let number = self.number_of(row.seq);
                self.watch
                    .give_back(number, room.saturating_sub(result.accepted) as usize);
                self.waits.took(number, result.accepted as usize - 1);
            }
        }
    }

    fn plant_settlements(&mut self, settlements: &mut [Settle]) {
        if let Some(mut planted) = self.planted.take() {
            planted.alter_settlements(settlements, |seq| {
                let view = &self.views[self.number_of(seq)];
                [&view.ask.prompt[..], &view.delivered].concat()
            });
            self.planted = Some(planted);
        }
    }

    /// Runs a step without the rows that have ended, as the executor's thread does.
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        for seq in self.states.scheduler.take_ended() {
            self.ended.end(seq);
        }
        let mut plan = plan.clone();
        self.ended.start(&plan.starts);
        let skipped = self.ended.skip(&mut plan);
        self.skipped_steps += usize::from(!skipped.is_empty());
        self.computed_steps += usize::from(!plan.rows.is_empty());
        if let Some(planted) = &mut self.planted {
            planted.alter_plan(&mut plan);
        }
        let mut output = self.run_rows(&plan)?;
        self.ended.note(&output.rows);
        skipped.put_back(&mut output.rows);
        Ok(output)
    }

    fn run_rows(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        let mut output = self.executor.run(plan)?;
        for (row, result) in plan.rows.iter().zip(&output.rows) {
            self.drafts_seen.take(&row.work, result);
        }
        if let Some(planted) = &mut self.planted {
            planted.alter_results(plan, &mut output.rows);
        }
        for (row, result) in plan.rows.iter().zip(&mut output.rows) {
            let Some(spec) = &row.logprobs else { continue };
            let prompt = &self.views[self.number_of(row.seq)].ask.prompt;
            let mut logprobs = RowLogprobs::default();
            if let (RowWork::Prefill { positions }, Some(start)) = (&row.work, spec.start) {
                let requested = positions.clone().filter(|position| *position >= start);
                let tokens = requested.filter_map(|position| prompt.get(position as usize + 1));
                logprobs.input.extend(tokens.map(|&token| TokenLogprobs {
                    token,
                    ..TokenLogprobs::default()
                }));
            }
            result.logprobs = Some(Box::new(logprobs));
        }
        Ok(output)
    }
}

/// The time of a step on a machine that needs 1 ms for a first token, and 2 ms for a token after 100 others.
fn micros_of(plan: &StepPlan) -> u64 {
    let positions = plan.rows.iter().flat_map(|row| row.work.positions());
    positions.map(|before| 1000 + 10 * u64::from(before)).sum()
}
