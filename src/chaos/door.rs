//! Decides at which passage of which point a fault fires, and counts passages and firings.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use souffleur_metrics::ChaosMetrics;

use crate::names::{Kind, Phase};
use crate::spec::{Cause, Chance, Only, Spec};
use crate::{Firing, Point, SpecState, Subject};

/// The kinds at a write to a file. Accesses of other forms have the first ones.
const FILE_KINDS: [Kind; 7] = [
    Kind::Panic,
    Kind::Delay,
    Kind::Hang,
    Kind::HangHard,
    Kind::IoError,
    Kind::DiskFull,
    Kind::TornWrite,
];
const N_READ_KINDS: usize = 5;
const N_CHANGE_KINDS: usize = 6;

pub(crate) struct Door {
    specs: Vec<Armed>,
    /// Firings of all specs, which number them.
    n_firings: AtomicU64,
    /// Rises when all hangs that have begun must end.
    ended_hangs: Arc<AtomicU64>,
}

/// A spec with its counts.
struct Armed {
    spec: Spec,
    counts: Mutex<Counts>,
    metrics: ChaosMetrics,
}

#[derive(Default)]
struct Counts {
    passages: Vec<Passages>,
    firings: u64,
}

/// The number of passages of a point of the spec's actor.
struct Passages {
    phase: Phase,
    message: &'static str,
    n: u64,
}

impl Door {
    pub fn new(specs: &[Spec]) -> Self {
        let armed = specs.iter().map(|spec| Armed {
            counts: Mutex::default(),
            metrics: ChaosMetrics::register(spec.actor.name(), spec.kind.name()),
            spec: spec.clone(),
        });
        Self {
            specs: armed.collect(),
            n_firings: AtomicU64::new(0),
            ended_hangs: Arc::default(),
        }
    }

    /// The first spec that fires.
    #[cold]
    pub fn pass(&self, point: Point<'_>, kinds: &[Kind]) -> Option<Firing> {
        let mut able = self
            .specs
            .iter()
            .filter(|one| kinds.contains(&one.spec.kind));
        let armed = able.find(|one| one.spec.is_for(&point) && one.fires(&point))?;
        let number = self.n_firings.fetch_add(1, Ordering::Relaxed) + 1;
        armed.metrics.fired();
        let spec = &armed.spec;
        tracing::warn!(
            number,
            actor = spec.actor.name(),
            kind = spec.kind.name(),
            at = point.message,
            phase = point.phase.name(),
            spec = spec.text(),
            "chaos: a fault fires"
        );
        Some(Firing {
            kind: spec.kind,
            cause: spec.cause_of(number, &point),
            length: spec.length,
            ended_hangs: self.ended_hangs.clone(),
        })
    }

    pub fn before_read(&self, point: Point<'_>) -> io::Result<()> {
        self.before(point, &FILE_KINDS[..N_READ_KINDS])
    }

    pub fn before_change(&self, point: Point<'_>) -> io::Result<()> {
        self.before(point, &FILE_KINDS[..N_CHANGE_KINDS])
    }

    fn before(&self, point: Point<'_>, kinds: &[Kind]) -> io::Result<()> {
        match self.pass(point, kinds) {
            Some(firing) => fail(&firing),
            None => Ok(()),
        }
    }

    pub fn before_write<'a>(&self, point: Point<'_>, bytes: &'a [u8]) -> io::Result<&'a [u8]> {
        match self.pass(point, &FILE_KINDS) {
            Some(firing) if firing.kind == Kind::TornWrite => Ok(&bytes[..bytes.len() / 2]),
            Some(firing) => fail(&firing).map(|()| bytes),
            None => Ok(bytes),
        }
    }

    pub fn end_hangs(&self) {
        self.ended_hangs.fetch_add(1, Ordering::Relaxed);
    }

    pub fn describe(&self) -> Vec<SpecState> {
        self.specs.iter().map(Armed::describe).collect()
    }
}

/// Carries out a fault of a file; an error if it is one.
fn fail(firing: &Firing) -> io::Result<()> {
    match firing.kind {
        Kind::IoError => Err(io::Error::other(firing.cause.clone())),
        Kind::DiskFull => Err(io::Error::new(ErrorKind::StorageFull, firing.cause.clone())),
        _ => {
            firing.act();
            Ok(())
        }
    }
}

impl Armed {
    fn fires(&self, point: &Point<'_>) -> bool {
        let mut counts = self.counts();
        let passage = counts.pass(point.phase, point.message);
        let fires = counts.firings < self.spec.count && self.spec.draws(point, passage);
        counts.firings += u64::from(fires);
        fires
    }

    fn describe(&self) -> SpecState {
        let counts = self.counts();
        SpecState {
            spec: self.spec.text().to_owned(),
            passages: counts.passages.iter().map(|point| point.n).sum(),
            firings: counts.firings,
        }
    }

    /// No panic can leave the counts in a wrong state.
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    /// Counts a passage of a point, and returns its number, from 1.
    fn pass(&mut self, phase: Phase, message: &'static str) -> u64 {
        let is_it = |point: &Passages| point.phase == phase && point.message == message;
        let at = self.passages.iter().position(is_it).unwrap_or_else(|| {
            self.passages.push(Passages {
                phase,
                message,
                n: 0,
            });
            self.passages.len() - 1
        });
        self.passages[at].n += 1;
        self.passages[at].n
    }
}

impl Spec {
    /// Whether a point is one of the spec's.
    fn is_for(&self, point: &Point<'_>) -> bool {
        let is_phase = self.phase.is_none_or(|phase| phase == point.phase);
        let message = self.message.as_deref();
        let is_message = message.is_none_or(|message| message == point.message);
        self.actor == point.actor && is_phase && is_message && self.is_for_subject(&point.subject)
    }

    fn is_for_subject(&self, subject: &Subject<'_>) -> bool {
        match (&self.only, subject) {
            (None, _) => true,
            (Some(Only::Rid(prefix)), Subject::Request(rid)) => rid.starts_with(prefix.as_str()),
            (Some(Only::Token(token)), Subject::Prompts(has_token)) => has_token(*token),
            (Some(_), _) => false,
        }
    }

    fn draws(&self, point: &Point<'_>, passage: u64) -> bool {
        match self.chance {
            Chance::Passage(at) => passage == at,
            Chance::Probability(probability) => {
                let place = point
                    .message
                    .bytes()
                    .fold(point.phase as u64, |hash, byte| mix(hash ^ u64::from(byte)));
                let drawn = mix(mix(self.seed ^ place).wrapping_add(passage));
                // The upper 53 bits, as a fraction.
                ((drawn >> 11) as f64) < probability * (1_u64 << 53) as f64
            }
        }
    }

    fn cause_of(&self, number: u64, point: &Point<'_>) -> String {
        let Self { actor, kind, .. } = self;
        match (self.cause, &self.only) {
            (Cause::Unique, _) => {
                let Point { phase, message, .. } = point;
                format!("chaos: {kind} {number} in {actor} at {message} ({phase})")
            }
            (Cause::Same, None) => format!("chaos: {kind} in {actor}"),
            (Cause::Same, Some(Only::Rid(rid))) => {
                format!("chaos: {kind} in {actor}, rid {rid}")
            }
            (Cause::Same, Some(Only::Token(token))) => {
                format!("chaos: {kind} in {actor}, token {token}")
            }
        }
    }
}

/// A step of SplitMix64.
fn mix(seed: u64) -> u64 {
    let mut bits = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}
