//! Faults that an engine injects into itself, for tests of its recovery (`--chaos`, `docs/chaos.md`).
//!
//! Actors, executors and files have points. A point asks the engine's [`Chaos`] whether a fault fires there, and
//! carries it out. Chaos is off by default: a point then reads one pointer and returns. Decisions depend only on the
//! specs and on the number of passages of each point, so a run of one thread can be repeated.
//!
//! An engine has its own [`Chaos`], which its configuration gives it, because a process may have several engines.

mod door;
mod names;
mod spec;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

pub use names::{Actor, Kind, Phase};
pub use spec::{Spec, SpecError};

use door::Door;

/// How often a cooperative hang checks whether it should end.
const HANG_POLL: Duration = Duration::from_millis(10);

/// A shared handle to an engine's faults.
#[derive(Clone, Default)]
pub struct Chaos(Option<Arc<Door>>);

thread_local! {
    static CAUSE: Cell<Option<String>> = const { Cell::new(None) };
}

/// Takes the cause of this thread's last injected panic: a drop guard cannot read a panic's message.
pub fn take_cause() -> Option<String> {
    CAUSE.take()
}

/// A place at which a fault may fire.
#[derive(Clone, Copy)]
pub struct Point<'a> {
    actor: Actor,
    phase: Phase,
    message: &'static str,
    subject: Subject<'a>,
}

/// The requests that a point works on, as far as it knows them.
#[derive(Clone, Copy)]
enum Subject<'a> {
    Unknown,
    Request(&'a str),
    /// Whether the prompt of one of its sequences has a token.
    Prompts(&'a dyn Fn(u32) -> bool),
}

impl<'a> Point<'a> {
    /// `message` is the message's type, or the name of a call.
    pub fn new(actor: Actor, phase: Phase, message: &'static str) -> Self {
        Self {
            actor,
            phase,
            message,
            subject: Subject::Unknown,
        }
    }

    pub fn of_request(self, rid: &'a str) -> Self {
        Self {
            subject: Subject::Request(rid),
            ..self
        }
    }

    pub fn of_prompts(self, has_token: &'a dyn Fn(u32) -> bool) -> Self {
        Self {
            subject: Subject::Prompts(has_token),
            ..self
        }
    }
}

/// A fault that a point must carry out.
pub struct Firing {
    kind: Kind,
    cause: String,
    length: Duration,
    ended_hangs: Arc<AtomicU64>,
}

impl Firing {
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// A text that names the fault; with `cause=unique` no two firings have the same one.
    pub fn cause(&self) -> &str {
        &self.cause
    }

    /// The length of a delay or a hang.
    pub fn length(&self) -> Duration {
        self.length
    }

    /// Carries out one of [`Kind::PLAIN`]; other kinds are left to the point.
    ///
    /// # Panics
    /// If the kind is [`Kind::Panic`].
    pub fn act(&self) {
        match self.kind {
            Kind::Panic => {
                CAUSE.set(Some(self.cause.clone()));
                panic!("{}", self.cause);
            }
            Kind::Delay | Kind::HangHard => std::thread::sleep(self.length),
            Kind::Hang => self.hang(),
            _ => (),
        }
    }

    fn hang(&self) {
        let ended = self.ended_hangs.load(Ordering::Relaxed);
        let began = Instant::now();
        while began.elapsed() < self.length && self.ended_hangs.load(Ordering::Relaxed) == ended {
            std::thread::sleep(HANG_POLL.min(self.length));
        }
    }
}

/// A spec, and how often it was considered and fired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SpecState {
    pub spec: String,
    /// Passages of points that match the spec.
    pub passages: u64,
    pub firings: u64,
}

impl Chaos {
    /// Off if there are no specs.
    pub fn new(specs: &[Spec]) -> Self {
        if specs.is_empty() {
            return Self::default();
        }
        for spec in specs {
            tracing::warn!(spec = spec.text(), "chaos is on: faults are injected");
        }
        Self(Some(Arc::new(Door::new(specs))))
    }

    #[inline]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The fault that fires at this passage of a point, among `kinds`, all of which the point can carry out.
    #[inline]
    pub fn at(&self, point: Point<'_>, kinds: &[Kind]) -> Option<Firing> {
        self.0.as_ref()?.pass(point, kinds)
    }

    /// A point that panics, sleeps or hangs.
    ///
    /// # Panics
    /// If a panic fires.
    #[inline]
    pub fn strike(&self, actor: Actor, phase: Phase, message: &'static str) {
        self.strike_at(Point::new(actor, phase, message));
    }

    /// As [`Self::strike`], of a request.
    #[inline]
    pub fn strike_request(&self, actor: Actor, phase: Phase, message: &'static str, rid: &str) {
        self.strike_at(Point::new(actor, phase, message).of_request(rid));
    }

    /// As [`Self::strike`].
    #[inline]
    pub fn strike_at(&self, point: Point<'_>) {
        if let Some(firing) = self.at(point, Kind::PLAIN) {
            firing.act();
        }
    }

    /// A point before a read of a file.
    ///
    /// # Errors
    /// The fault that fires.
    #[inline]
    pub fn before_read(&self, actor: Actor, message: &'static str) -> io::Result<()> {
        match &self.0 {
            Some(door) => door.before_read(Point::new(actor, Phase::Entry, message)),
            None => Ok(()),
        }
    }

    /// A point before a change of a file or folder that writes no bytes.
    ///
    /// # Errors
    /// The fault that fires.
    #[inline]
    pub fn before_change(&self, actor: Actor, message: &'static str) -> io::Result<()> {
        match &self.0 {
            Some(door) => door.before_change(Point::new(actor, Phase::Entry, message)),
            None => Ok(()),
        }
    }

    /// A point before a write to a file: returns the bytes to write, which a torn write cuts.
    ///
    /// # Errors
    /// The fault that fires.
    #[inline]
    pub fn before_write<'a>(
        &self,
        actor: Actor,
        message: &'static str,
        bytes: &'a [u8],
    ) -> io::Result<&'a [u8]> {
        match &self.0 {
            Some(door) => door.before_write(Point::new(actor, Phase::Entry, message), bytes),
            None => Ok(bytes),
        }
    }

    /// Ends all cooperative hangs that have begun.
    pub fn end_hangs(&self) {
        if let Some(door) = &self.0 {
            door.end_hangs();
        }
    }

    /// The specs in their order; empty if chaos is off.
    pub fn describe(&self) -> Vec<SpecState> {
        self.0
            .as_ref()
            .map_or_else(Vec::new, |door| door.describe())
    }
}
