//! Sees faults at the moment at which they fire.
//!
//! One subscriber of the whole process reads the log's events of faults. The upper half of the seed in the specs of an
//! engine is the number of its watch, by which the subscriber finds the watch.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};

use crossbeam_channel::Sender;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::seed;

static WATCHES: Mutex<BTreeMap<u64, Weak<Watch>>> = Mutex::new(BTreeMap::new());
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);
static INSTALL: Once = Once::new();

/// A place at which faults fire, as in `docs/chaos.md`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    pub actor: String,
    pub message: String,
    pub phase: String,
}

#[derive(Clone, Debug)]
pub struct Firing {
    pub point: Point,
    pub kind: String,
    /// The streams between their first and their last token.
    pub n_open: usize,
}

/// The faults and the open streams of one engine.
pub struct Watch {
    number: u64,
    n_open: AtomicUsize,
    firings: Mutex<Vec<Firing>>,
    /// Gets a message at each panic.
    deaths: Mutex<Option<Sender<()>>>,
}

impl Watch {
    pub fn new() -> Arc<Self> {
        INSTALL.call_once(|| {
            tracing::subscriber::set_global_default(FaultEvents).expect("no other subscriber");
        });
        let watch = Arc::new(Self {
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            n_open: AtomicUsize::new(0),
            firings: Mutex::default(),
            deaths: Mutex::default(),
        });
        lock(&WATCHES).insert(watch.number, Arc::downgrade(&watch));
        watch
    }

    /// A spec whose firings this watch sees. Its random decisions depend on its place in the list of specs.
    pub fn mark(&self, spec: &str, place: usize) -> String {
        let lower = seed().wrapping_mul(1 << 12).wrapping_add(place as u64) & u64::from(u32::MAX);
        format!("{spec},seed={}", (self.number << 32) | lower)
    }

    pub fn n_open(&self) -> usize {
        self.n_open.load(Ordering::SeqCst)
    }

    pub fn firings(&self) -> Vec<Firing> {
        lock(&self.firings).clone()
    }

    pub fn panics(&self) -> Vec<Firing> {
        let mut firings = self.firings();
        firings.retain(|firing| firing.kind == "panic");
        firings
    }

    /// Sets the channel that gets a message at each panic.
    pub fn tell(&self, deaths: Option<Sender<()>>) {
        *lock(&self.deaths) = deaths;
    }

    /// A stream before its first token.
    pub fn stream(&self) -> Stream<'_> {
        Stream {
            watch: self,
            is_open: false,
        }
    }

    fn fired(&self, fields: Fields) {
        let is_panic = fields.kind == "panic";
        lock(&self.firings).push(Firing {
            point: fields.point,
            kind: fields.kind,
            n_open: self.n_open(),
        });
        if let Some(deaths) = lock(&self.deaths).as_ref().filter(|_| is_panic) {
            // The receiver may have ended.
            let _ = deaths.send(());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts as open from its first token until it is dropped.
pub struct Stream<'a> {
    watch: &'a Watch,
    is_open: bool,
}

impl Stream<'_> {
    pub fn has_token(&mut self) {
        if !std::mem::replace(&mut self.is_open, true) {
            self.watch.n_open.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        if self.is_open {
            self.watch.n_open.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[derive(Default)]
struct Fields {
    point: Point,
    kind: String,
    spec: String,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        let place = match field.name() {
            "actor" => &mut self.point.actor,
            "at" => &mut self.point.message,
            "phase" => &mut self.point.phase,
            "kind" => &mut self.kind,
            "spec" => &mut self.spec,
            _ => return,
        };
        value.clone_into(place);
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}

struct FaultEvents;

impl Subscriber for FaultEvents {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("souffleur_chaos")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let seed = fields.spec.rsplit_once("seed=");
        let seed = seed.and_then(|(_, seed)| seed.parse().ok());
        let watch = seed.and_then(|seed: u64| lock(&WATCHES).get(&(seed >> 32))?.upgrade());
        if let Some(watch) = watch {
            watch.fired(fields);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
