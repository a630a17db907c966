//! Tests of the leader of ranks, with executors that pretend to have devices.

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::mpsc::sync_channel;
use std::thread;

use super::*;
use souffleur_base::ids::{StepId, Ticket};
use souffleur_state::step::VisionSlice;

/// More than a rank of a test ever needs.
const LONG: Duration = Duration::from_secs(600);

#[derive(Default)]
struct FakeCollectives {
    ended: OnceLock<String>,
    failure: OnceLock<String>,
}

impl Collectives for FakeCollectives {
    fn failure(&self) -> Option<String> {
        let failure = self.failure.get().cloned();
        failure.filter(|_| self.ended.get().is_none())
    }

    fn end(&self, reason: &str) {
        let _ = self.ended.set(reason.to_owned());
    }

    fn ended(&self) -> Option<String> {
        self.ended.get().cloned()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Nature {
    Sound,
    RefusesLaunches,
    /// Its steps end when the collectives end.
    Waits,
    /// As `Waits`, after its device has noticed a failure.
    NoticesFailure,
    PanicsInLaunch,
    PanicsInLoad,
}

struct FakeRank {
    nature: Nature,
    collectives: Arc<FakeCollectives>,
    in_flight: VecDeque<StepId>,
    /// One for each slice.
    encoded: Vec<EncodedImage>,
    n_polls: usize,
}

impl Executor for FakeRank {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        self.launch(plan)?;
        self.finish()
    }

    fn launch(&mut self, plan: &StepPlan) -> Result<Launch, StepError> {
        assert!(self.nature != Nature::PanicsInLaunch, "planted");
        if self.nature == Nature::RefusesLaunches {
            return Err(StepError::Rejected("planted".to_owned()));
        }
        self.encoded
            .extend(plan.vision.iter().map(|slice| EncodedImage {
                job: slice.job,
                result: Err("planted".to_owned()),
            }));
        self.in_flight.push_back(plan.step);
        Ok(Launch::UnderWay)
    }

    fn is_finished(&mut self) -> bool {
        self.n_polls += 1;
        self.n_polls > 3
    }

    fn finish(&mut self) -> Result<StepOutput, StepError> {
        if self.nature == Nature::NoticesFailure {
            let _ = self.collectives.failure.set("noticed".to_owned());
        }
        if matches!(self.nature, Nature::Waits | Nature::NoticesFailure) {
            while self.collectives.ended().is_none() {
                thread::yield_now();
            }
            return Err(StepError::Lost("aborted".to_owned()));
        }
        let step = self.in_flight.pop_front().expect("a step is in flight");
        self.n_polls = 0;
        let rows = Vec::new();
        Ok(StepOutput { step, rows })
    }

    fn take_encoded(&mut self) -> Vec<EncodedImage> {
        std::mem::take(&mut self.encoded)
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        self.in_flight.clear();
        Ok(())
    }
}

impl RankExecutor for FakeRank {
    fn fail_ranks(&self, reason: &str) {
        self.collectives.end(reason);
    }

    fn ended_by_others(&self) -> Option<String> {
        self.collectives.ended()
    }
}

fn load(natures: &[Nature], limit: Duration) -> Result<Ranks, LoadError> {
    let collectives = Arc::new(FakeCollectives::default());
    let maker = |nature: &Nature| -> MakeRank {
        let rank = FakeRank {
            nature: *nature,
            collectives: collectives.clone(),
            in_flight: VecDeque::new(),
            encoded: Vec::new(),
            n_polls: 0,
        };
        Box::new(move |_| {
            assert!(rank.nature != Nature::PanicsInLoad, "planted");
            Ok(Box::new(rank))
        })
    };
    let makers = natures.iter().map(maker).collect();
    let parts = GroupParts {
        makers,
        limit,
        collectives: Some(collectives),
        store: None,
    };
    Ranks::load(parts, &mut |_, _| {})
}

fn two(second: Nature, limit: Duration) -> Ranks {
    load(&[Nature::Sound, second], limit).expect("both load")
}

fn plan(step: u64) -> StepPlan {
    StepPlan {
        step: StepId::new(step),
        starts: Vec::new(),
        table: Vec::new(),
        rows: Vec::new(),
        copies: None,
        vision: None,
    }
}

fn reason(result: Result<StepOutput, StepError>) -> String {
    match result {
        Err(StepError::Lost(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn steps_are_under_way_until_all_ranks_have_ended_them() {
    let mut ranks = two(Nature::Sound, LONG);
    for step in 0..2 {
        let launched = ranks.launch(&plan(step)).expect("it is launched");
        assert!(matches!(launched, Launch::UnderWay));
    }
    for step in 0..2 {
        while !ranks.is_finished() {
            thread::yield_now();
        }
        let output = ranks.finish().expect("it has run");
        assert_eq!(output.step, StepId::new(step));
    }
    assert!(!ranks.is_lost());
    ranks.launch(&plan(2)).expect("it is launched");
    ranks.reset().expect("the ranks go on");
    let output = ranks.run(&plan(3)).expect("it runs");
    assert_eq!(output.step, StepId::new(3));
}

#[test]
fn rank_0_alone_encodes_images() {
    let mut ranks = load(&[Nature::Sound; 3], LONG).expect("all load");
    let slice = |step| StepPlan {
        vision: Some(Box::new(VisionSlice {
            job: Ticket::new(step),
            input: None,
            units: 0..1,
            n_units: 1,
        })),
        ..plan(step)
    };
    for step in [slice(0), plan(1), slice(2)] {
        ranks.run(&step).expect("it runs");
    }
    let jobs = ranks.take_encoded().into_iter();
    let jobs: Vec<u64> = jobs.map(|image| image.job.get()).collect();
    assert_eq!(jobs, [0, 2]);
    ranks.run(&slice(3)).expect("it runs");
    ranks.reset().expect("the ranks go on");
    assert!(ranks.take_encoded().is_empty());
}

#[test]
fn a_step_that_one_rank_refuses_or_fails_is_lost_and_ends_all() {
    for (nature, expected) in [
        (Nature::RefusesLaunches, "planted"),
        (Nature::PanicsInLaunch, "rank 1 panicked: planted"),
    ] {
        let mut ranks = two(nature, LONG);
        assert_eq!(reason(ranks.run(&plan(0))), expected);
        assert!(ranks.is_lost());
        assert_eq!(reason(ranks.run(&plan(1))), expected);
        assert_eq!(ranks.reset(), Err(DeviceLost(expected.to_owned())));
    }
    let mut ranks = load(&[Nature::RefusesLaunches; 2], LONG).expect("both load");
    let refused = ranks.run(&plan(0));
    assert!(
        matches!(refused, Err(StepError::Rejected(_))),
        "{refused:?}"
    );
    assert!(!ranks.is_lost());
}

#[test]
fn a_step_that_takes_too_long_or_fails_on_a_device_ends_on_all_ranks() {
    let limit = Duration::from_millis(200);
    let mut ranks = load(&[Nature::Waits; 2], limit).expect("both load");
    assert_eq!(
        reason(ranks.run(&plan(0))),
        "no rank has answered within 200ms"
    );
    assert!(ranks.is_lost());
    let mut ranks = two(Nature::NoticesFailure, LONG);
    assert_eq!(reason(ranks.run(&plan(0))), "noticed");
    assert!(ranks.is_lost());
}

#[test]
fn a_rank_that_hangs_is_named_and_not_joined() {
    let limit = Duration::from_millis(10);
    let (release, released) = sync_channel::<()>(0);
    let hangs: MakeRank = Box::new(move |reporter| {
        reporter.connects();
        let _ = released.recv();
        Err(LoadFailure::Others("released".to_owned()))
    });
    let parts = GroupParts {
        makers: vec![hangs],
        limit,
        collectives: Some(Arc::new(FakeCollectives::default())),
        store: None,
    };
    let error = Ranks::load(parts, &mut |_, _| {}).err();
    let error = error.expect("the rank hangs").to_string();
    assert_eq!(error, "no rank has answered within 10ms");
    drop(release);
}

#[test]
fn a_rank_that_panics_in_the_load_is_named() {
    let natures = [Nature::Sound, Nature::PanicsInLoad];
    let error = load(&natures, LONG).err().expect("a rank panics");
    assert_eq!(error.to_string(), "rank 1 panicked in the load: planted");
}
