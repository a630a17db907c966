//! Replays a log call by call, until an outcome differs from the recorded one.
//!
//! A log is untrusted: the memory that its replay takes is bounded, and an inconsistent record or a panic of the states
//! is an error.

mod unit;

use std::any::Any;
use std::fmt;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::diff::{FieldDifference, first_difference};
use crate::digest::{NewsDigest, NextDigest, PlannedDigest, ProbedDigest};
use crate::entry::{Entry, ImagesEntry, SubmitEntry, Submitted};
use crate::file::{Header, LogEnd, LogError, LogReader, Record};
use souffleur_base::error::ConfigError;
use souffleur_base::ids::{IntakeId, StepId};
use souffleur_state::control::{ControlSetup, ControlStates, Leg};
use souffleur_state::scheduler::Next;
use unit::Unit;

/// The largest number of pages or states in a log's header. Scheduler, tree and pools for as many pages take 1 GB.
const MAX_PAGES: usize = 1 << 27;
/// The largest number of rows in a log's header.
const MAX_ROWS: usize = 1 << 20;

/// Builds the states for a replay from the recorded configuration.
pub type MakeStates<'a> = dyn Fn(&ControlSetup) -> Result<ControlStates, ConfigError> + 'a;

#[derive(Clone, Debug)]
pub struct Replayed {
    pub header: Header,
    pub counts: Counts,
    pub difference: Option<Difference>,
    pub ending: LogEnd,
    /// The log has a gap: the disk was too slow, and the last entries of a unit are missing.
    pub has_gap: bool,
    /// Number of missing entries, if the log has an end block.
    pub n_dropped: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub records: u64,
    pub events: u64,
    pub units: u64,
    pub plans: u64,
    pub steps: u64,
    /// Submitted requests.
    pub requests: u64,
    /// How often a request continued in a later generation of its unit, or in another unit.
    pub resumed: u64,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
}

impl Counts {
    fn submitted(&mut self, request: &SubmitEntry) {
        self.requests += 1;
        self.prompt_tokens += request.prompt.len() as u64;
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub record: u64,
    pub message: String,
    pub step: Option<StepId>,
    /// The message of the previous call.
    pub after: &'static str,
    pub at: FieldDifference,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            record,
            message,
            step,
            after,
            at,
        } = self;
        write!(
            f,
            "the replay differs from the log at record {record} ({message}"
        )?;
        if let Some(step) = step {
            write!(f, ", step {step}")?;
        }
        write!(f, "; the last input was {after}): ")?;
        if !at.field.is_empty() {
            write!(f, "{}: ", at.field)?;
        }
        let (recorded, replayed) = (&at.recorded, &at.replayed);
        write!(f, "{recorded} in the log, {replayed} in the replay")
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("failed to build the scheduler's state from the log's header: {0}")]
    Setup(String),
    /// The states panicked: the recorded run panicked too, or the log is forged.
    #[error("the scheduler panicked while replaying record {record}, after {after}: {text}")]
    Panicked {
        /// The number of the record, from 1.
        record: u64,
        /// The message of the previous call.
        after: &'static str,
        text: String,
    },
    /// A record that cannot follow the previous ones, or exceeds a limit.
    #[error("record {record} cannot be replayed: {reason}")]
    Inconsistent {
        /// The number of the record, from 1.
        record: u64,
        reason: String,
    },
}

/// Replays a log on the states that `make` builds; [`ControlSetup::build`] builds the engine's.
///
/// # Errors
/// The file is not a log, or the log is damaged, inconsistent or over a limit, or the replayed scheduler panics.
pub fn replay(log: impl Read, make: &MakeStates<'_>) -> Result<Replayed, ReplayError> {
    let mut reader = LogReader::open(log)?;
    let header = reader.header().clone();
    check_sizes(&header.control).map_err(ReplayError::Setup)?;
    let mut replay = Replay {
        make,
        setup: header.control.clone(),
        unit: None,
        counts: Counts::default(),
        after: "the start",
        has_gap: false,
    };
    let ran = catch_unwind(AssertUnwindSafe(|| replay.run(&mut reader)));
    let difference = ran.map_err(|panic| ReplayError::Panicked {
        record: replay.counts.records,
        after: replay.after,
        text: panic_text(panic.as_ref()),
    })??;
    let (ending, n_dropped) = reader.ending();
    Ok(Replayed {
        header,
        counts: replay.counts,
        difference,
        ending,
        has_gap: replay.has_gap || n_dropped > 0,
        n_dropped,
    })
}

fn check_sizes(setup: &ControlSetup) -> Result<(), String> {
    let limits = &setup.limits;
    let sizes = [
        ("total_pages", limits.total_pages, MAX_PAGES),
        ("total_rows", limits.total_rows, MAX_ROWS),
        (
            "windows.total_pages",
            limits.windows.map_or(0, |windows| windows.total_pages),
            MAX_PAGES,
        ),
        (
            "states.total_slots",
            limits.states.map_or(0, |states| states.total_slots),
            MAX_PAGES,
        ),
    ];
    if let Some((what, size, limit)) = sizes.iter().find(|(_, size, limit)| size > limit) {
        return Err(format!("{what} is {size}, the limit is {limit}"));
    }
    let page_tokens = limits.page_size.get();
    match limits.tier.map(|tier| tier.saves.block_tokens) {
        Some(block_tokens) if block_tokens == 0 || !block_tokens.is_multiple_of(page_tokens) => {
            Err(format!(
                "tier.saves.block_tokens is {block_tokens}, but must be a multiple of the page size, {page_tokens}"
            ))
        }
        _ => Ok(()),
    }
}

struct Replay<'a> {
    make: &'a MakeStates<'a>,
    setup: ControlSetup,
    unit: Option<Unit>,
    counts: Counts,
    after: &'static str,
    has_gap: bool,
}

type Applied = Result<Option<Difference>, String>;

impl Replay<'_> {
    fn run<R: Read>(
        &mut self,
        reader: &mut LogReader<R>,
    ) -> Result<Option<Difference>, ReplayError> {
        let mut next = self.read(reader)?;
        while let Some(entry) = next {
            self.counts.records += 1;
            self.counts.events += u64::from(entry.is_input());
            next = self.read(reader)?;
            let seen = match &next {
                Some(Entry::CancelsSeen(seen)) => seen.as_slice(),
                _ => &[],
            };
            let applied = self.apply(entry, seen);
            let inconsistent = |reason| ReplayError::Inconsistent {
                record: self.counts.records,
                reason,
            };
            if let Some(difference) = applied.map_err(inconsistent)? {
                return Ok(Some(difference));
            }
        }
        Ok(None)
    }

    fn read<R: Read>(&mut self, reader: &mut LogReader<R>) -> Result<Option<Entry>, LogError> {
        loop {
            match reader.next()? {
                Some(Record::Entry(entry)) => return Ok(Some(entry)),
                Some(Record::Gap) => self.has_gap = true,
                None => return Ok(None),
            }
        }
    }

    /// Makes a record's call, or compares its outcome. `seen` are the requests whose raised cancel flag the call saw.
    fn apply(&mut self, entry: Entry, seen: &[IntakeId]) -> Applied {
        let message = entry.message();
        if let Entry::Start { .. } = entry {
            return self.start();
        }
        let unit = self.unit.as_mut().ok_or("no start record precedes it")?;
        let is_result = matches!(entry, Entry::Outcome(_) | Entry::CancelsSeen(_));
        if unit.returned.is_some() && !is_result {
            return Err(format!(
                "expected the outcome of the previous call, found {message}"
            ));
        }
        unit.raise(seen);
        match entry {
            Entry::Start { .. } | Entry::CancelsSeen(_) => return Ok(None),
            Entry::Outcome(recorded) => return self.compare_outcome(&recorded),
            Entry::News(recorded) => return self.compare_news(&recorded),
            Entry::Next => {
                drop(unit.states.scheduler.take_store_orders());
                drop(unit.states.scheduler.take_vision_orders());
                unit.returned = Some(unit.states.scheduler.next());
                return Ok(None);
            }
            _ => self.after = message,
        }
        let entry = match Submitted::of(entry) {
            Ok(submitted) => {
                self.counts.submitted(&submitted.request);
                unit.submit(submitted, &ImagesEntry::default(), seen)?;
                return Ok(None);
            }
            Err(other) => other.widened(),
        };
        match entry {
            Entry::Planned(recorded) => return self.planned(&recorded),
            Entry::Probed(recorded) => return self.probed(&recorded),
            Entry::StepDone { step, result } => {
                let output = match result {
                    Ok(rows) => {
                        self.counts.output_tokens += rows.n_tokens() as u64;
                        Ok(rows.output()?)
                    }
                    Err(error) => Err(error),
                };
                unit.states.scheduler.step_done(step, output);
            }
            Entry::SubmitBidirectional { submitted, images } => {
                self.counts.submitted(&submitted.request);
                unit.submit(*submitted, &images, seen)?;
            }
            Entry::ResumeBidirectional { resumed, images } => {
                self.counts.resumed += 1;
                unit.resume(*resumed, &images, seen)?;
            }
            Entry::Cancel { rid, flag } => unit.cancel(&rid, flag),
            Entry::StopFound { rid, kept } => unit.stop_found(&rid, kept),
            other => unit.repeat_call(other)?,
        }
        Ok(None)
    }

    fn start(&mut self) -> Applied {
        let returned = self.unit.take().and_then(|mut unit| {
            unit.states.ledger.close();
            unit.returned.take()
        });
        if let Some(returned) = returned.filter(|_| !self.has_gap) {
            let died = FieldDifference {
                field: "the scheduler".to_owned(),
                recorded: "dead after this call".to_owned(),
                replayed: "alive".to_owned(),
            };
            let next = NextDigest::from(&returned);
            return Ok(Some(self.difference(next.message(), next.step(), died)));
        }
        let states = (self.make)(&self.setup).map_err(|error| error.to_string())?;
        self.unit = Some(Unit::new(states));
        self.counts.units += 1;
        self.after = "the start";
        Ok(None)
    }

    /// Runs the pending plan on the tree and the pools, and passes the answer to the scheduler if it is as recorded.
    fn planned(&mut self, recorded: &PlannedDigest) -> Applied {
        let unit = self.unit.as_mut().ok_or("no start record precedes it")?;
        let states = &mut unit.states;
        let mut leg = unit.open.take();
        while let Some(open @ (Leg::PlanStep(_) | Leg::ReservePages(_))) = leg {
            leg = states.carry(open).on();
        }
        let Some(Leg::StepPlanned(planned)) = leg else {
            return Err("found the answer to a plan, but no plan was requested".to_owned());
        };
        self.counts.plans += 1;
        let replayed = PlannedDigest::from(&*planned);
        if *recorded != replayed {
            states.ledger.close();
            let step = Some(recorded.step());
            return Ok(Some(self.compare("StepPlanned", step, recorded, &replayed)));
        }
        unit.returned = states.carry(Leg::StepPlanned(planned)).back();
        Ok(None)
    }

    fn probed(&mut self, recorded: &ProbedDigest) -> Applied {
        let unit = self.unit.as_mut().ok_or("no start record precedes it")?;
        let states = &mut unit.states;
        let inconsistent = || "found the answer to a probe, but no probe was requested".to_owned();
        let Some(Leg::ProbePrefixes(probe)) = unit.open.take() else {
            return Err(inconsistent());
        };
        let step = Some(probe.step);
        let leg = states.carry(Leg::ProbePrefixes(probe)).on();
        let Some(Leg::PrefixesProbed(probed)) = leg else {
            return Err(inconsistent());
        };
        let replayed = ProbedDigest::from(&*probed);
        if *recorded != replayed {
            states.ledger.close();
            return Ok(Some(self.compare(
                "PrefixesProbed",
                step,
                recorded,
                &replayed,
            )));
        }
        unit.returned = states.carry(Leg::PrefixesProbed(probed)).back();
        Ok(None)
    }

    fn compare_outcome(&mut self, recorded: &NextDigest) -> Applied {
        let unit = self.unit.as_mut().ok_or("no start record precedes it")?;
        let returned = unit.returned.take();
        let returned = returned.ok_or("found the outcome of a call, but no call precedes it")?;
        let replayed = NextDigest::from(&returned);
        if *recorded != replayed {
            unit.states.ledger.close();
            let message = match (recorded.message(), replayed.message()) {
                (recorded, replayed) if recorded == replayed => recorded.to_owned(),
                (recorded, replayed) => {
                    format!("{recorded} in the log, {replayed} in the replay")
                }
            };
            let step = recorded.step().or(replayed.step());
            return Ok(Some(self.compare(&message, step, recorded, &replayed)));
        }
        match returned {
            Next::RunStep(_) => self.counts.steps += 1,
            next => {
                if let Ok(leg) = Leg::try_from(next) {
                    unit.open = Some(leg);
                }
            }
        }
        Ok(None)
    }

    fn compare_news(&mut self, recorded: &NewsDigest) -> Applied {
        let unit = self.unit.as_mut().ok_or("no start record precedes it")?;
        let news = unit.states.scheduler.take_news();
        let replayed = NewsDigest::from(news.as_slice());
        if *recorded != replayed {
            return Ok(Some(self.compare("TokensReady", None, recorded, &replayed)));
        }
        for intake in recorded.ended() {
            unit.forget(intake);
        }
        Ok(None)
    }

    fn compare<T: serde::Serialize + fmt::Debug>(
        &self,
        message: &str,
        step: Option<StepId>,
        recorded: &T,
        replayed: &T,
    ) -> Difference {
        let whole = || FieldDifference {
            field: String::new(),
            recorded: format!("{recorded:?}"),
            replayed: format!("{replayed:?}"),
        };
        let at = first_difference(recorded, replayed).unwrap_or_else(whole);
        self.difference(message, step, at)
    }

    fn difference(&self, message: &str, step: Option<StepId>, at: FieldDifference) -> Difference {
        Difference {
            record: self.counts.records,
            message: message.to_owned(),
            step,
            after: self.after,
            at,
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("no message").to_owned()
}
