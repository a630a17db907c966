//! An executor around another one, which injects the faults of `--chaos`.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::vision::EncodedImage;
use crate::{DeviceLost, Executor, Launch};
use souffleur_base::beat::Beat;
use souffleur_base::error::StepError;
use souffleur_base::ids::RowId;
use souffleur_chaos::{Actor, Chaos, Firing, Kind, Phase, Point};
use souffleur_state::step::{PIPELINE_DEPTH, RowResult, RowStart, StepOutput, StepPlan};

/// The kinds before a step runs.
const REFUSALS: [Kind; 3] = [Kind::Reject, Kind::Refuse, Kind::Sticky];

/// The points of the actors `executor_thread` and `worker`: the calls `launch` and `finish`.
pub struct ChaosExecutor {
    inner: Box<dyn Executor>,
    chaos: Chaos,
    /// The prompts of the rows.
    prompts: FxHashMap<RowId, Prompt>,
    /// The rows of the steps in flight.
    under_way: VecDeque<Vec<RowId>>,
    /// The cause of a sticky error: every later call fails.
    broken: Option<String>,
}

struct Prompt {
    tokens: Arc<[u32]>,
    len: usize,
}

impl Prompt {
    fn of(start: &RowStart) -> Self {
        Self {
            tokens: start.tokens.clone(),
            len: start.prompt_tokens as usize,
        }
    }
}

impl ChaosExecutor {
    pub fn new(inner: Box<dyn Executor>, chaos: Chaos) -> Self {
        Self {
            inner,
            chaos,
            prompts: FxHashMap::default(),
            under_way: VecDeque::with_capacity(PIPELINE_DEPTH),
            broken: None,
        }
    }

    /// The first fault of `kinds` at a point whose step has `rows`.
    fn fault(
        &self,
        (actor, phase): (Actor, Phase),
        call: &'static str,
        rows: &[RowId],
        kinds: &[Kind],
    ) -> Option<Firing> {
        let has_token = |token: u32| {
            let mut prompts = rows.iter().filter_map(|row| self.prompts.get(row));
            prompts.any(|prompt| prompt.tokens[..prompt.len].contains(&token))
        };
        let point = Point::new(actor, phase, call).of_prompts(&has_token);
        self.chaos.at(point, kinds)
    }

    fn strike(&self, phase: Phase, call: &'static str, rows: &[RowId]) {
        let place = (Actor::ExecutorThread, phase);
        if let Some(firing) = self.fault(place, call, rows, Kind::PLAIN) {
            firing.act();
        }
    }

    /// # Panics
    /// If a sticky error has occurred.
    fn check_context(&self) {
        if let Some(cause) = &self.broken {
            panic!("the device's context is lost: {cause}");
        }
    }

    /// Faults before a step runs.
    fn before_launch(&mut self, rows: &[RowId]) -> Result<(), StepError> {
        self.strike(Phase::Entry, "launch", rows);
        let worker = (Actor::Worker, Phase::Entry);
        if let Some(firing) = self.fault(worker, "launch", rows, &[Kind::Panic]) {
            self.inner.run_faulty_item(firing.cause());
        }
        let place = (Actor::ExecutorThread, Phase::Entry);
        let Some(firing) = self.fault(place, "launch", rows, &REFUSALS) else {
            return Ok(());
        };
        let cause = firing.cause().to_owned();
        match firing.kind() {
            Kind::Refuse => Err(StepError::Rejected(format!("out of memory: {cause}"))),
            Kind::Sticky => {
                self.broken = Some(cause);
                self.check_context();
                Ok(())
            }
            _ => Err(StepError::Rejected(cause)),
        }
    }

    /// Faults after a step has run.
    fn after(
        &self,
        call: &'static str,
        rows: &[RowId],
        output: StepOutput,
    ) -> Result<StepOutput, StepError> {
        self.strike(Phase::Exit, call, rows);
        let place = (Actor::ExecutorThread, Phase::Exit);
        match self.fault(place, call, rows, &[Kind::Lose]) {
            Some(firing) => Err(StepError::Lost(firing.cause().to_owned())),
            None => Ok(output),
        }
    }
}

impl Executor for ChaosExecutor {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        match self.launch(plan)? {
            Launch::Done(output) => Ok(output),
            Launch::UnderWay => self.finish(),
        }
    }

    fn launch(&mut self, plan: &StepPlan) -> Result<Launch, StepError> {
        self.check_context();
        let starts = plan.starts.iter();
        self.prompts
            .extend(starts.map(|start| (start.row, Prompt::of(start))));
        let rows: Vec<RowId> = plan.rows.iter().map(|row| row.row).collect();
        self.before_launch(&rows)?;
        match self.inner.launch(plan)? {
            Launch::Done(output) => self.after("launch", &rows, output).map(Launch::Done),
            Launch::UnderWay => {
                self.under_way.push_back(rows);
                let rows = self.under_way.back().map_or(&[][..], Vec::as_slice);
                self.strike(Phase::Exit, "launch", rows);
                Ok(Launch::UnderWay)
            }
        }
    }

    fn is_finished(&mut self) -> bool {
        self.inner.is_finished()
    }

    fn finish(&mut self) -> Result<StepOutput, StepError> {
        self.check_context();
        let rows = self.under_way.pop_front().unwrap_or_default();
        self.strike(Phase::Entry, "finish", &rows);
        let output = self.inner.finish()?;
        self.after("finish", &rows, output)
    }

    fn recycle(&mut self, rows: Vec<RowResult>) {
        self.inner.recycle(rows);
    }

    fn take_encoded(&mut self) -> Vec<EncodedImage> {
        self.inner.take_encoded()
    }

    fn forget_unwanted(&mut self) {
        self.inner.forget_unwanted();
    }

    fn set_beat(&mut self, beat: Beat) {
        self.inner.set_beat(beat);
    }

    fn is_lost(&self) -> bool {
        self.inner.is_lost()
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        self.under_way.clear();
        self.prompts.clear();
        match &self.broken {
            Some(cause) => Err(DeviceLost(cause.clone())),
            None => self.inner.reset(),
        }
    }

    fn run_faulty_item(&mut self, cause: &str) {
        self.inner.run_faulty_item(cause);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use smallvec::smallvec;

    use super::*;
    use souffleur_base::ids::{SeqId, StepId};
    use souffleur_state::pool::pages::PageRun;
    use souffleur_state::sampling::SamplingParams;
    use souffleur_state::step::{RowWork, StepRow};

    /// Counts steps; `is_ahead` answers them in `finish`.
    struct Counting {
        n_launched: Arc<AtomicUsize>,
        is_ahead: bool,
    }

    const EMPTY: StepOutput = StepOutput {
        step: StepId::new(1),
        rows: Vec::new(),
    };

    impl Executor for Counting {
        fn run(&mut self, _: &StepPlan) -> Result<StepOutput, StepError> {
            Ok(EMPTY)
        }

        fn launch(&mut self, _: &StepPlan) -> Result<Launch, StepError> {
            self.n_launched.fetch_add(1, Ordering::Relaxed);
            Ok(if self.is_ahead {
                Launch::UnderWay
            } else {
                Launch::Done(EMPTY)
            })
        }

        fn finish(&mut self) -> Result<StepOutput, StepError> {
            Ok(EMPTY)
        }

        fn reset(&mut self) -> Result<(), DeviceLost> {
            Ok(())
        }
    }

    /// An executor with a fault, and the number of steps that reach the inner one.
    fn executor(spec: &str, is_ahead: bool) -> (ChaosExecutor, Arc<AtomicUsize>) {
        let n_launched = Arc::new(AtomicUsize::new(0));
        let inner = Counting {
            n_launched: n_launched.clone(),
            is_ahead,
        };
        let spec = spec.parse().expect("a valid spec");
        let executor = ChaosExecutor::new(Box::new(inner), Chaos::new(&[spec]));
        (executor, n_launched)
    }

    /// A step that computes a row, which starts with `prompt` if there is one.
    fn plan(row: u32, prompt: Option<&[u32]>) -> StepPlan {
        let (row, seq) = (RowId::new(row), SeqId::new(u64::from(row)));
        let start = |prompt: &[u32]| RowStart {
            row,
            seq,
            tokens: prompt.into(),
            prompt_tokens: prompt.len() as u32,
            sampling: Arc::new(SamplingParams::default()),
            grammar: None,
            vectors: None,
            images: None,
            pooling: None,
            prefix: PageRun::default(),
            state: None,
            draft_texts: Default::default(),
        };
        StepPlan {
            step: StepId::new(1),
            starts: prompt.map(start).into_iter().collect(),
            table: Vec::new(),
            rows: vec![StepRow {
                row,
                seq,
                work: RowWork::Decode {
                    position: 1,
                    room: 1,
                },
                sample: true,
                logprobs: None,
                saves: smallvec![],
            }],
            copies: None,
            vision: None,
        }
    }

    fn panic_text<T>(run: impl FnOnce() -> T) -> Option<String> {
        let payload = catch_unwind(AssertUnwindSafe(run)).err()?;
        payload.downcast_ref::<String>().cloned()
    }

    #[test]
    fn a_rejected_step_does_not_run_and_the_next_one_does() {
        for (kind, part) in [("reject", "chaos: reject 1"), ("refuse", "out of memory")] {
            let spec = format!("actor=executor_thread,kind={kind},after=1");
            let (mut executor, n_launched) = executor(&spec, false);
            let error = executor.launch(&plan(1, None)).expect_err("a fault");
            assert!(matches!(&error, StepError::Rejected(why) if why.contains(part)));
            assert_eq!(n_launched.load(Ordering::Relaxed), 0);
            assert!(executor.launch(&plan(1, None)).is_ok());
            assert_eq!(n_launched.load(Ordering::Relaxed), 1);
        }
    }

    #[test]
    fn a_lost_step_has_run() {
        let spec = "actor=executor_thread,kind=lose,after=1";
        let (mut direct, n_launched) = executor(spec, false);
        let lost = direct.launch(&plan(1, None));
        assert!(matches!(lost, Err(StepError::Lost(_))));
        assert_eq!(n_launched.load(Ordering::Relaxed), 1);
        let (mut ahead, _) = executor(spec, true);
        for _ in 0..2 {
            let launched = ahead.launch(&plan(1, None));
            assert!(matches!(launched, Ok(Launch::UnderWay)));
        }
        assert!(matches!(ahead.finish(), Err(StepError::Lost(_))));
        assert!(ahead.finish().is_ok());
    }

    #[test]
    fn calls_panic_before_and_after_the_step() {
        for (phase, expected) in [("entry", 0), ("exit", 1)] {
            let spec =
                format!("actor=executor_thread,kind=panic,message=launch,phase={phase},after=1");
            let (mut executor, n_launched) = executor(&spec, true);
            let text = panic_text(|| executor.launch(&plan(1, None)));
            let cause = format!("chaos: panic 1 in executor_thread at launch ({phase})");
            assert_eq!(text, Some(cause));
            assert_eq!(n_launched.load(Ordering::Relaxed), expected);
        }
        let spec = "actor=executor_thread,kind=panic,message=finish,phase=exit";
        let (mut executor, _) = executor(spec, true);
        assert!(executor.launch(&plan(1, None)).is_ok());
        assert!(panic_text(|| executor.finish()).is_some());
    }

    #[test]
    fn a_sticky_error_fails_every_later_call() {
        let (mut executor, _) = executor("actor=executor_thread,kind=sticky,after=2", true);
        assert!(executor.launch(&plan(1, None)).is_ok());
        for _ in 0..2 {
            let text = panic_text(|| executor.launch(&plan(1, None)));
            assert!(text.is_some_and(|text| text.contains("context is lost: chaos: sticky 1")));
        }
        assert!(panic_text(|| executor.finish()).is_some());
    }

    #[test]
    fn a_poison_fails_the_steps_of_its_prompt() {
        let spec = "actor=executor_thread,kind=panic,phase=entry,message=launch,token=7";
        let (mut executor, _) = executor(spec, false);
        assert!(executor.launch(&plan(1, Some(&[5, 6]))).is_ok());
        let mut launch = |plan: StepPlan| panic_text(|| executor.launch(&plan));
        let cause = Some("chaos: panic in executor_thread, token 7".to_owned());
        assert_eq!(launch(plan(2, Some(&[5, 7]))), cause);
        assert_eq!(launch(plan(1, None)), None);
        assert_eq!(launch(plan(2, None)), cause);
        assert_eq!(launch(plan(2, Some(&[5, 6]))), None);
    }

    /// An executor without a pool panics on its own thread.
    #[test]
    fn a_worker_panics_before_the_step_runs() {
        let (mut executor, n_launched) = executor("actor=worker,kind=panic", false);
        let text = panic_text(|| executor.launch(&plan(1, None)));
        let cause = "chaos: panic 1 in worker at launch (entry)";
        assert_eq!(text.as_deref(), Some(cause));
        assert_eq!(n_launched.load(Ordering::Relaxed), 0);
    }
}
