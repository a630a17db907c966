//! The actors of a unit: Scheduler, RadixCache, Allocator and the executor's thread.

use std::collections::VecDeque;

use souffleur_base::ids::{IntakeId, StepId};
use souffleur_executor::Executor;
use souffleur_executor::fake::{FakeExecutor, FakeOptions};
use souffleur_state::control::{Leg, plan_step, probe_prefixes};
use souffleur_state::docket::Post;
use souffleur_state::plan::reserve_pages;
use souffleur_state::scheduler::submission::IdFloor;
use souffleur_state::scheduler::{Next, Scheduler};
use souffleur_state::step::{StepOutput, StepPlan};
use souffleur_state::supervision::blame::Suspicion;

use crate::parts::{Control, Fault, Message, Node, Thread, incarnation, signature};
use crate::world::{VOCAB, World};

impl World<'_> {
    pub fn control(&mut self, unit: usize) -> &mut Control {
        let control = self.units[unit].control.as_mut();
        control.expect("messages go to running actors")
    }

    pub fn scheduler(&mut self, unit: usize) -> &mut Scheduler {
        let scheduler = self.control(unit).scheduler.as_mut();
        scheduler.expect("messages go to running actors")
    }

    pub fn schedule(&mut self, unit: usize, message: Message) {
        match message {
            Message::Post(Post::Submit(request)) => self.scheduler(unit).submit(*request),
            Message::Post(Post::Resume(mut resume)) => {
                if self.fault == Some(Fault::IdReused) {
                    resume.floor = IdFloor::default();
                }
                let now_s = self.now_s;
                self.scheduler(unit).resume(resume, now_s);
            }
            Message::Post(Post::Withdraw { rid, kept }) => {
                self.scheduler(unit).stop_found(&rid, kept);
            }
            Message::Cancel(rid) => self.scheduler(unit).cancel(&rid, None),
            Message::SetPaused(paused) => self.set_paused(unit, paused),
            Message::Leg(Leg::PrefixesProbed(probed)) => {
                let next = self.scheduler(unit).prefixes_probed(*probed);
                self.dispatch(unit, next);
            }
            Message::Leg(Leg::StepPlanned(planned)) => {
                let next = self.scheduler(unit).step_planned(*planned);
                self.check_memory(unit);
                self.dispatch(unit, next);
            }
            Message::StepDone {
                generation,
                step,
                output,
                poisons,
            } => {
                if self.step_done(unit, (generation, step), output, &poisons) {
                    return;
                }
            }
            _ => unreachable!("no other message is for the Scheduler"),
        }
        self.drive(unit);
    }

    fn set_paused(&mut self, unit: usize, paused: bool) {
        self.scheduler(unit).set_paused(paused);
        let is_open = self.scheduler(unit).has_open_plan();
        let is_desired = self.supervision.desired.paused;
        let unit = &mut self.units[unit];
        unit.must_pause = paused && is_desired;
        unit.open_at_pause = u32::from(is_open);
    }

    /// Takes the result of a step. Returns true if it kills the Scheduler.
    fn step_done(
        &mut self,
        unit: usize,
        (generation, step): (u64, StepId),
        output: Option<StepOutput>,
        poisons: &[(usize, usize)],
    ) -> bool {
        let is_stale = generation != self.control(unit).generation;
        if is_stale && self.fault != Some(Fault::StaleStepDone) {
            return false;
        }
        if self.takes_poison(Node::Scheduler(unit), poisons) {
            return true;
        }
        let output = output
            .ok_or_else(|| souffleur_base::error::StepError::Lost("the step was void".to_owned()));
        let before = self.scheduler(unit).stats().stale_messages;
        self.scheduler(unit).step_done(step, output);
        let after = self.scheduler(unit).stats().stale_messages;
        self.check(before == after, || {
            format!("unit {unit} got the result of step {step}, which it did not plan")
        });
        false
    }

    /// Lets the node die if one of these requests, at these output tokens, kills it.
    fn takes_poison(&mut self, node: Node, poisons: &[(usize, usize)]) -> bool {
        let in_executor = matches!(node, Node::Executor(_));
        let deadly = poisons.iter().find_map(|&(ask, at_output)| {
            let poison = self.scenario.asks[ask].poison?;
            let is_deadly = poison.in_executor == in_executor && at_output >= poison.at_output;
            is_deadly.then_some((ask, poison))
        });
        let Some((ask, poison)) = deadly else {
            return false;
        };
        self.clients[ask].kills += 1;
        let cause = signature(node, "poison");
        let suspicion = match self.clients[ask].intake {
            Some(intake) if poison.is_named => Suspicion::One(intake, cause),
            _ => Suspicion::All(cause),
        };
        self.light(node, 0, suspicion);
        let kills = self.clients[ask].kills;
        let retired = self.units.iter().filter(|unit| unit.is_retired).count() as u32;
        // A suspect whose client left or whose output was stopped makes the next one's first trial uncertain. Another
        // death ends a trial, and may make the one after it uncertain.
        let left = self.scenario.asks.iter();
        let left = left.filter(|ask| ask.stop_at.is_some() || ask.cancel_at.is_some());
        // Without a name, two deaths find the suspects, and two more convict one.
        let needed = if poison.is_named { 2 } else { 4 };
        let allowed = needed + 2 * self.random_deaths + retired + left.count() as u32;
        self.check(kills <= allowed, || {
            format!("request {ask} killed {kills} actors, at most {allowed} are allowed")
        });
        true
    }

    /// Sends all messages that are due, as the Scheduler's actor does.
    fn drive(&mut self, unit: usize) {
        loop {
            let next = self.scheduler(unit).next();
            if matches!(next, Next::Nothing) {
                break;
            }
            self.dispatch(unit, next);
        }
        let scheduler = self.scheduler(unit);
        scheduler.take_ended();
        scheduler.take_prefix_events();
        let batch = scheduler.take_news();
        let first = scheduler.take_first_admissions();
        let control = self.control(unit);
        let first = first.into_iter().map(|admission| admission.intake);
        control.admissions.extend(first);
        if batch.is_empty() {
            return;
        }
        let admissions: Vec<IntakeId> = std::mem::take(&mut control.admissions);
        let (generation, tokenizer) = (control.generation, control.tokenizer);
        let tokens = Message::Tokens {
            from: incarnation(unit, generation),
            batch,
            admissions,
        };
        self.send(Node::Scheduler(unit), Node::Tokenizer, tokenizer, tokens);
    }

    fn dispatch(&mut self, unit: usize, next: Next) {
        let generation = self.control(unit).generation;
        let from = Node::Scheduler(unit);
        let (to, leg) = match next {
            Next::Nothing => return,
            Next::ProbePrefixes(probe) => (Node::RadixCache(unit), Leg::ProbePrefixes(probe)),
            Next::PlanStep(plan) => (Node::RadixCache(unit), Leg::PlanStep(plan)),
            Next::ReservePages(reserve) => (Node::Allocator(unit), Leg::ReservePages(reserve)),
            Next::RunStep(plan) => {
                self.check_pause(unit);
                let since = self.units[unit]
                    .thread
                    .as_ref()
                    .map_or(0, |thread| thread.since);
                let step = Message::RunStep { generation, plan };
                return self.send(from, Node::Executor(unit), since, step);
            }
        };
        self.send(from, to, generation, Message::Leg(leg));
    }

    /// A paused unit runs only the step whose plan was open when the pause began.
    fn check_pause(&mut self, index: usize) {
        let unit = &mut self.units[index];
        if !unit.must_pause {
            return;
        }
        let is_allowed = unit.open_at_pause > 0;
        unit.open_at_pause = unit.open_at_pause.saturating_sub(1);
        self.check(is_allowed, || {
            format!("unit {index} runs a step although it is paused")
        });
    }

    fn check_memory(&mut self, unit: usize) {
        let failures = self.scheduler(unit).stats().integrity_failures;
        self.check(failures == 0, || {
            format!("unit {unit}: free, held and cached pages are not all pages")
        });
    }

    pub fn plan(&mut self, unit: usize, message: Message) {
        let control = self.control(unit);
        let generation = control.generation;
        let cache = control
            .cache
            .as_mut()
            .expect("messages go to running actors");
        let from = Node::RadixCache(unit);
        match message {
            Message::Leg(Leg::ProbePrefixes(probe)) => {
                let probed = Leg::PrefixesProbed(Box::new(probe_prefixes(cache, *probe)));
                self.send(
                    from,
                    Node::Scheduler(unit),
                    generation,
                    Message::Leg(probed),
                );
            }
            Message::Leg(Leg::PlanStep(plan)) => {
                let reserve = Leg::ReservePages(Box::new(plan_step(cache, *plan)));
                self.send(
                    from,
                    Node::Allocator(unit),
                    generation,
                    Message::Leg(reserve),
                );
            }
            _ => unreachable!("no other message is for the RadixCache"),
        }
    }

    pub fn reserve(&mut self, unit: usize, message: Message) {
        let control = self.control(unit);
        let generation = control.generation;
        let pools = control
            .pools
            .as_mut()
            .expect("messages go to running actors");
        let Message::Leg(Leg::ReservePages(reserve)) = message else {
            unreachable!("no other message is for the Allocator");
        };
        let planned = Leg::StepPlanned(Box::new(reserve_pages(pools, *reserve)));
        let (from, to) = (Node::Allocator(unit), Node::Scheduler(unit));
        self.send(from, to, generation, Message::Leg(planned));
    }

    pub fn execute(&mut self, unit: usize, message: Message) {
        match message {
            Message::Reset { generation } => self.reset(unit, generation),
            Message::RunStep { generation, plan } => {
                // The first step of a generation may come before the reset.
                self.reset(unit, generation);
                let thread = self.thread(unit);
                if generation == thread.generation {
                    let since = thread.since;
                    thread.steps.push_back((generation, plan));
                    let me = Node::Executor(unit);
                    self.send(me, me, since, Message::Finish);
                }
            }
            Message::Finish => self.finish_step(unit),
            _ => unreachable!("no other message is for the executor"),
        }
    }

    fn thread(&mut self, unit: usize) -> &mut Thread {
        let thread = self.units[unit].thread.as_mut();
        thread.expect("messages go to running threads")
    }

    pub fn start_thread(&mut self, unit: usize, since: u64, generation: u64) {
        let fake = self.new_fake();
        self.seen.weights_loaded += 1;
        self.units[unit].thread = Some(Thread {
            since,
            generation,
            fake,
            steps: VecDeque::new(),
        });
    }

    /// Starts a generation: rows and K/V of the one before it are void, and so are its steps that have not run.
    fn reset(&mut self, unit: usize, generation: u64) {
        if self.thread(unit).generation < generation {
            let fake = self.new_fake();
            let thread = self.thread(unit);
            (thread.generation, thread.fake) = (generation, fake);
        }
    }

    fn new_fake(&self) -> FakeExecutor {
        FakeExecutor::new(FakeOptions {
            page_size: self.scenario.page_size as usize,
            n_pages: self.scenario.n_pages as usize,
            vocab_size: VOCAB,
            verify: true,
            n_states: 0,
            hidden_size: 0,
            faults: Vec::new(),
        })
    }

    fn finish_step(&mut self, unit: usize) {
        let thread = self.thread(unit);
        let current = thread.generation;
        let Some((generation, plan)) = thread.steps.pop_front() else {
            unreachable!("each step has one end");
        };
        let step = plan.step;
        let mut output = None;
        let mut poisons = Vec::new();
        if generation == current {
            self.check_ids(unit, generation, &plan);
            poisons = self.poisons_of(unit, &plan);
            if self.takes_poison(Node::Executor(unit), &poisons) {
                return;
            }
            match self.thread(unit).fake.run(&plan) {
                Ok(ran) => output = Some(ran),
                Err(error) => self.check(false, || format!("step {step} of unit {unit}: {error}")),
            }
        }
        let done = Message::StepDone {
            generation,
            step,
            output,
            poisons,
        };
        let (from, to) = (Node::Executor(unit), Node::Scheduler(unit));
        self.send(from, to, current, done);
    }

    /// No id of an older generation is assigned again.
    fn check_ids(&mut self, index: usize, generation: u64, plan: &StepPlan) {
        let unit = &mut self.units[index];
        let (step, last) = (plan.step.get(), unit.last_step);
        unit.last_step = step;
        let mut reused = None;
        for start in &plan.starts {
            let ask = start.sampling.sampling_seed.unwrap_or_default() as usize;
            let before = unit.started.insert(start.seq, (generation, ask));
            if before.is_some_and(|before| before != (generation, ask)) {
                reused = Some(start.seq);
            }
        }
        self.check(step > last, || {
            format!("unit {index}: step {step} after step {last}")
        });
        self.check(reused.is_none(), || {
            format!("unit {index} reuses sequence {reused:?}")
        });
    }

    fn poisons_of(&self, unit: usize, plan: &StepPlan) -> Vec<(usize, usize)> {
        let sampling = plan.rows.iter().filter(|row| row.sample);
        let poisons = sampling.filter_map(|row| {
            let (_, number) = *self.units[unit].started.get(&row.seq)?;
            let ask = &self.scenario.asks[number];
            ask.poison?;
            let end = row.work.positions().end as usize;
            Some((number, end - ask.prompt.len()))
        });
        poisons.collect()
    }
}
