//! The undisturbed run of each model, which the others are compared with.

use std::sync::OnceLock;

use serde_json::Value;

use crate::load::{self, Call};
use crate::models::Model;
use crate::plan::{self, Passage};
use crate::streams;
use crate::wave::Wave;
use crate::world::World;

pub struct Undisturbed {
    model: Model,
    pub calls: Vec<Call>,
    contents: Vec<Value>,
    /// The text of the request that is sent at deaths.
    gap: Value,
    passages: OnceLock<Vec<Passage>>,
}

static KNOWN: [OnceLock<Undisturbed>; Model::ALL.len()] =
    [const { OnceLock::new() }; Model::ALL.len()];

impl Undisturbed {
    /// The run of a model, which the first call makes.
    pub fn of(model: Model) -> &'static Self {
        KNOWN[model as usize].get_or_init(|| Self::run(model))
    }

    fn run(model: Model) -> Self {
        let calls = load::calls();
        let world = World::start(model, &[], None);
        let contents = Wave::run(&world, &calls, || ()).contents;
        let gap = streams::short(world.server.addr);
        world.check_end();
        Self {
            model,
            calls,
            contents,
            gap,
            passages: OnceLock::new(),
        }
    }

    /// The passages of all points, which the first call counts in another run.
    pub fn passages(&self) -> &[Passage] {
        self.passages.get_or_init(|| {
            let counting = World::start(self.model, &plan::counters(), None);
            self.check(&Wave::run(&counting, &self.calls, || ()));
            counting.check_end();
            plan::passages(&counting.watch.firings())
        })
    }

    /// Checks that the contents of all answers are those of the undisturbed run.
    #[track_caller]
    pub fn check(&self, wave: &Wave) {
        let expected = self.calls.iter().zip(&self.contents);
        for ((call, expected), content) in expected.zip(&wave.contents) {
            let name = &call.name;
            assert!(
                content == expected,
                "request {name} differs:\n{content}\nundisturbed:\n{expected}"
            );
        }
        assert_eq!(wave.contents.len(), self.contents.len());
        for gap in &wave.gaps {
            assert_eq!(*gap, self.gap, "a request that was sent at a death");
        }
    }

    /// The number of a launch in the middle of the run, at which most streams are open. The launch's result has the
    /// same number among the results that the Scheduler gets.
    pub fn middle_launch(&self) -> u64 {
        let passages = self.passages();
        let busy = plan::target_of("worker").busy(passages);
        let middle = busy.get(busy.len() / 2).expect("most streams are open");
        passages[*middle].number
    }
}
