//! The parts of the engine that are killed, and the seeded moments.

use std::collections::BTreeMap;

use crate::watch::{Firing, Point};

/// Open streams, in the undisturbed run, at a moment that is drawn.
const MIN_OPEN_BEFORE: usize = 24;
/// Kills in one run of an engine: fewer than the restarts that the default limit allows in a minute.
pub const KILLS_OF_AN_ENGINE: usize = 4;

pub const PHASES: [&str; 3] = ["entry", "middle", "exit"];

pub struct Target {
    pub actor: &'static str,
    /// Messages and phases.
    pub points: &'static [(&'static str, &'static str)],
    /// The actor whose passages are counted, if the target's own cannot be.
    counted: &'static str,
}

const fn target(actor: &'static str, points: &'static [(&'static str, &'static str)]) -> Target {
    Target {
        actor,
        points,
        counted: actor,
    }
}

/// Makes a run longer than a second: the thread of the message log often gets a block only once in a second.
pub const SLOW: &str = "actor=executor_thread,kind=delay,message=launch,phase=entry,for=12ms";

pub static TARGETS: [Target; 10] = [
    target(
        "tokenizer",
        &[
            ("TokensReady", "entry"),
            ("noted", "middle"),
            ("TokensReady", "exit"),
        ],
    ),
    target(
        "scheduler",
        &[
            ("StepDone", "entry"),
            ("StepDone", "middle"),
            ("StepDone", "exit"),
            ("StepPlanned", "entry"),
            ("StepPlanned", "middle"),
            ("StepPlanned", "exit"),
        ],
    ),
    target(
        "radix_cache",
        &[
            ("PlanStep", "entry"),
            ("PlanStep", "middle"),
            ("PlanStep", "exit"),
        ],
    ),
    target(
        "allocator",
        &[
            ("ReservePages", "entry"),
            ("ReservePages", "middle"),
            ("ReservePages", "exit"),
        ],
    ),
    target(
        "executor",
        &[("RunStep", "entry"), ("SequencesEnded", "entry")],
    ),
    target(
        "executor_thread",
        &[("launch", "entry"), ("launch", "exit")],
    ),
    Target {
        counted: "executor_thread",
        ..target("worker", &[("launch", "entry")])
    },
    target(
        "kv_store",
        &[
            ("StoreOrders", "entry"),
            ("StoreOrders", "exit"),
            ("StoreAnswered", "entry"),
        ],
    ),
    target(
        "kv_events",
        &[("ChangeList", "entry"), ("ChangeList", "exit")],
    ),
    target("record", &[("write", "entry")]),
];

/// Only replicas have it. Its choices come before the first token of their requests, and the news after it.
pub static ROUTER: Target = target("router", &[("RouteNews", "entry")]);

pub fn target_of(actor: &str) -> &'static Target {
    let found = TARGETS.iter().find(|target| target.actor == actor);
    found.unwrap_or_else(|| panic!("no target is named {actor}"))
}

/// Specs that count the passages of all points, and disturb nothing.
pub fn counters() -> Vec<String> {
    let rest = [
        "tokenizer",
        "scheduler",
        "radix_cache",
        "allocator",
        "executor",
        "executor_thread,phase=exit",
        "kv_store,message=StoreOrders",
        "kv_store,message=StoreAnswered",
        "kv_events",
        "record,message=write",
    ];
    let rest = rest.map(|actor| format!("actor={actor},kind=delay,for=0ms"));
    std::iter::once(SLOW.to_owned()).chain(rest).collect()
}

/// A passage of a point in the undisturbed run.
#[derive(Clone, Debug)]
pub struct Passage {
    point: Point,
    /// Counted from 1.
    pub number: u64,
    n_open: usize,
}

/// The passages in their order.
pub fn passages(firings: &[Firing]) -> Vec<Passage> {
    let mut counts: BTreeMap<&Point, u64> = BTreeMap::new();
    let passages = firings.iter().map(|firing| {
        let count = counts.entry(&firing.point).or_default();
        *count += 1;
        Passage {
            point: firing.point.clone(),
            number: *count,
            n_open: firing.n_open,
        }
    });
    passages.collect()
}

/// A panic at one passage of a point.
#[derive(Clone, Debug)]
pub struct Kill {
    pub actor: &'static str,
    message: String,
    phase: String,
    after: u64,
}

impl Kill {
    pub fn new(actor: &'static str, message: &str, phase: &str, after: u64) -> Self {
        Self {
            actor,
            message: message.to_owned(),
            phase: phase.to_owned(),
            after,
        }
    }

    fn at(target: &Target, passage: &Passage) -> Self {
        let Point { message, phase, .. } = &passage.point;
        Self::new(target.actor, message, phase, passage.number)
    }

    pub fn spec(&self) -> String {
        let Self {
            actor,
            message,
            phase,
            after,
        } = self;
        format!("actor={actor},kind=panic,message={message},phase={phase},after={after}")
    }
}

impl Target {
    /// The phase furthest inside of a handler that is passed while most streams are open.
    pub fn inner_phase(&self, passages: &[Passage]) -> &'static str {
        let busy = self.busy(passages);
        let has = |phase: &&str| busy.iter().any(|at| passages[*at].point.phase == *phase);
        let inner = ["middle", "exit"].into_iter().find(has);
        inner.unwrap_or(PHASES[0])
    }

    fn has(&self, point: &Point) -> bool {
        let name = (point.message.as_str(), point.phase.as_str());
        point.actor == self.counted && self.points.contains(&name)
    }

    /// The places, in the list of passages, at which most streams are open.
    pub fn busy(&self, passages: &[Passage]) -> Vec<usize> {
        let is_busy = |at: &usize| {
            let passage = &passages[*at];
            self.has(&passage.point) && passage.n_open >= MIN_OPEN_BEFORE
        };
        (0..passages.len()).filter(is_busy).collect()
    }

    /// Draws `n` kills, far from each other, if possible in this phase of a handler.
    pub fn draw(
        &self,
        passages: &[Passage],
        phase: &str,
        n: usize,
        random: &mut fastrand::Rng,
    ) -> Vec<Kill> {
        let all = self.busy(passages);
        let is_in_phase = |at: &usize| passages[*at].point.phase == phase;
        let mut places: Vec<usize> = all.iter().copied().filter(is_in_phase).collect();
        if places.is_empty() {
            places = all;
        }
        assert!(!places.is_empty(), "{} has no passage", self.actor);
        let n = n.min(places.len());
        let drawn = (0..n).map(|part| {
            let (from, until) = (places.len() * part / n, places.len() * (part + 1) / n);
            // The middle half of this part.
            let margin = (until - from) / 4;
            let place = places[random.usize(from + margin..until - margin)];
            Kill::at(self, &passages[place])
        });
        drawn.collect()
    }

    /// Draws a kill, and one in the rebuild after it: at the first message of the next unit.
    pub fn draw_rebuild(&self, passages: &[Passage], random: &mut fastrand::Rng) -> Vec<Kill> {
        let points = match self.actor {
            // Only the first message is sent to a unit before its streams continue.
            "executor" => &self.points[..1],
            _ => self.points,
        };
        let target = Self { points, ..*self };
        let first = target.draw(passages, PHASES[0], 1, random);
        let mut kill = first.into_iter().next().expect("one kill is drawn");
        let second = match self.actor {
            // Their first passages are at the start of the engine.
            "tokenizer" => Kill::new(self.actor, "Relink", "entry", 2),
            "scheduler" => Kill::new(self.actor, "ResumeRequests", "entry", 2),
            "kv_store" | "kv_events" | "record" => {
                let second = kill;
                kill = before(&second, passages);
                second
            }
            _ => Kill {
                after: kill.after + 1,
                ..kill.clone()
            },
        };
        vec![kill, second]
    }
}

/// The Scheduler's death at its last message before another kill.
fn before(kill: &Kill, passages: &[Passage]) -> Kill {
    let is_it = |passage: &Passage| {
        let Point {
            actor,
            message,
            phase,
        } = &passage.point;
        (*message == kill.message && *phase == kill.phase && actor == kill.actor)
            && passage.number == kill.after
    };
    let until = passages.iter().position(is_it);
    let earlier = &passages[..until.expect("the kill is at a passage")];
    let is_step_done = |passage: &&Passage| {
        passage.point.message == "StepDone" && passage.point.phase == PHASES[0]
    };
    let last = earlier.iter().rfind(is_step_done);
    let after = last.map_or(1, |passage| passage.number);
    Kill::new("scheduler", "StepDone", PHASES[0], after)
}
