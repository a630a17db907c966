//! An executor that holds one step, and counts how often it was made.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender};
use souffleur::beat::Beat;
use souffleur::engine::EngineParts;
use souffleur::error::{LoadError, StepError};
use souffleur::executor::{DeviceLost, Executor, Launch};
use souffleur::state::step::{RowResult, StepOutput, StepPlan};

pub struct Gate {
    /// The launch that is held, counted from 1.
    hold_at: Option<u64>,
    n_launches: AtomicU64,
    is_held: AtomicBool,
    n_builds: AtomicUsize,
    released: Receiver<()>,
}

impl Gate {
    /// Puts a gate around the executors of an engine. A message on the channel, or its end, releases the held step.
    pub fn around(parts: &mut EngineParts, hold_at: Option<u64>) -> (Arc<Self>, Sender<()>) {
        let (release, released) = crossbeam_channel::unbounded();
        let gate = Arc::new(Self {
            hold_at,
            n_launches: AtomicU64::new(0),
            is_held: AtomicBool::new(false),
            n_builds: AtomicUsize::new(0),
            released,
        });
        let (make, of_executors) = (parts.executor.clone(), gate.clone());
        parts.executor = Arc::new(move || -> Result<Box<dyn Executor>, LoadError> {
            of_executors.n_builds.fetch_add(1, Ordering::SeqCst);
            Ok(Box::new(Gated {
                inner: make()?,
                gate: of_executors.clone(),
            }))
        });
        (gate, release)
    }

    pub fn is_held(&self) -> bool {
        self.is_held.load(Ordering::SeqCst)
    }

    /// The executors that were made.
    pub fn n_builds(&self) -> usize {
        self.n_builds.load(Ordering::SeqCst)
    }

    fn pass(&self) {
        let number = self.n_launches.fetch_add(1, Ordering::SeqCst) + 1;
        if self.hold_at == Some(number) {
            self.is_held.store(true, Ordering::SeqCst);
            // An error means that the test has ended.
            let _ = self.released.recv();
        }
    }
}

struct Gated {
    inner: Box<dyn Executor>,
    gate: Arc<Gate>,
}

impl Executor for Gated {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        self.gate.pass();
        self.inner.run(plan)
    }

    fn launch(&mut self, plan: &StepPlan) -> Result<Launch, StepError> {
        self.gate.pass();
        self.inner.launch(plan)
    }

    fn is_finished(&mut self) -> bool {
        self.inner.is_finished()
    }

    fn finish(&mut self) -> Result<StepOutput, StepError> {
        self.inner.finish()
    }

    fn recycle(&mut self, rows: Vec<RowResult>) {
        self.inner.recycle(rows);
    }

    fn set_beat(&mut self, beat: Beat) {
        self.inner.set_beat(beat);
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        self.inner.reset()
    }

    fn run_faulty_item(&mut self, cause: &str) {
        self.inner.run_faulty_item(cause);
    }
}
