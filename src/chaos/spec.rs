//! A spec: the text that says which fault to inject, where and when.

use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::names::{Actor, Kind, Phase};

const KEYS: [&str; 12] = [
    "actor",
    "kind",
    "phase",
    "message",
    "rid",
    "token",
    "probability",
    "after",
    "count",
    "for",
    "seed",
    "cause",
];
/// The length of a hang without `for=`: for ever, in practice.
const ENDLESS: Duration = Duration::from_secs(u32::MAX as u64);

/// A fault to inject, such as `actor=radix_cache,kind=panic,probability=0.001,seed=7`. `docs/chaos.md` describes the
/// keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Spec {
    text: String,
    pub(crate) actor: Actor,
    pub(crate) kind: Kind,
    /// `None` means any.
    pub(crate) phase: Option<Phase>,
    pub(crate) message: Option<String>,
    pub(crate) only: Option<Only>,
    pub(crate) chance: Chance,
    /// The largest number of firings.
    pub(crate) count: u64,
    pub(crate) length: Duration,
    pub(crate) seed: u64,
    pub(crate) cause: Cause,
}

/// The requests at which a spec fires.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Only {
    /// Requests whose id begins with this text.
    Rid(String),
    /// Sequences whose prompt has this token.
    Token(u32),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Chance {
    /// Fires at a passage of a point with this probability.
    Probability(f64),
    /// Fires at this passage of a point, counted from 1.
    Passage(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Each firing has a different text.
    Unique,
    /// All firings have the same text.
    Same,
}

/// Why a text is no spec: names the value and the allowed ones.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SpecError(String);

fn refuse<T>(reason: String) -> Result<T, SpecError> {
    Err(SpecError(reason))
}

impl Spec {
    /// The spec as it was given.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn actor(&self) -> Actor {
        self.actor
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut given = Given::read(text)?;
        let actor = given.needed("actor", Actor::ALL, Actor::name)?;
        let kind = given.needed("kind", Kind::ALL, Kind::name)?;
        if !actor.kinds().contains(&kind) {
            let kinds = list(actor.kinds().iter().map(|kind| kind.name()));
            return refuse(format!(
                "kind is {kind}, must be one of {kinds} for {actor}"
            ));
        }
        let only = given.only(actor)?;
        let (chance, count) = given.chance()?;
        Ok(Self {
            text: text.to_owned(),
            actor,
            kind,
            phase: given.one_of("phase", Phase::ALL, Phase::name)?,
            message: given.take("message").map(str::to_owned),
            chance,
            count,
            length: given.length(kind)?,
            seed: given.number("seed")?.unwrap_or(0),
            cause: given.cause(only.is_some())?,
            only,
        })
    }
}

impl TryFrom<String> for Spec {
    type Error = SpecError;

    fn try_from(text: String) -> Result<Self, SpecError> {
        text.parse()
    }
}

impl From<Spec> for String {
    fn from(spec: Spec) -> Self {
        spec.text
    }
}

/// The keys of a spec that were not read yet, and their values.
struct Given<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Given<'a> {
    fn read(text: &'a str) -> Result<Self, SpecError> {
        let mut given: Vec<(&str, &str)> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let Some((key, value)) = part.split_once('=') else {
                return refuse(format!("{part:?} must be key=value"));
            };
            if !KEYS.contains(&key) {
                return refuse(format!("key {key:?} must be one of {}", list(KEYS)));
            }
            if given.iter().any(|(other, _)| *other == key) {
                return refuse(format!("{key} is given twice"));
            }
            if value.is_empty() {
                return refuse(format!("{key} is empty"));
            }
            given.push((key, value));
        }
        Ok(Self(given))
    }

    fn take(&mut self, key: &str) -> Option<&'a str> {
        debug_assert!(KEYS.contains(&key), "{key}");
        let at = self.0.iter().position(|(given, _)| *given == key)?;
        Some(self.0.remove(at).1)
    }

    fn one_of<T: Copy>(
        &mut self,
        key: &str,
        all: &[T],
        name: impl Fn(T) -> &'static str,
    ) -> Result<Option<T>, SpecError> {
        let Some(value) = self.take(key) else {
            return Ok(None);
        };
        match all.iter().find(|one| name(**one) == value) {
            Some(found) => Ok(Some(*found)),
            None => {
                let names = list(all.iter().map(|one| name(*one)));
                refuse(format!("{key} is {value:?}, must be one of {names}"))
            }
        }
    }

    fn needed<T: Copy>(
        &mut self,
        key: &str,
        all: &[T],
        name: impl Fn(T) -> &'static str,
    ) -> Result<T, SpecError> {
        let names = list(all.iter().map(|one| name(*one)));
        match self.one_of(key, all, name)? {
            Some(found) => Ok(found),
            None => refuse(format!("{key} is missing, must be one of {names}")),
        }
    }

    fn number<T: FromStr>(&mut self, key: &str) -> Result<Option<T>, SpecError> {
        let Some(value) = self.take(key) else {
            return Ok(None);
        };
        match value.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => refuse(format!("{key} is {value:?}, must be a number")),
        }
    }

    fn at_least_one(&mut self, key: &str) -> Result<Option<u64>, SpecError> {
        match self.number(key)? {
            Some(0) => refuse(format!("{key} is 0, must be at least 1")),
            number => Ok(number),
        }
    }

    fn only(&mut self, actor: Actor) -> Result<Option<Only>, SpecError> {
        let rid = self.take("rid");
        let token = self.number("token")?;
        let known_to = |knows: fn(Actor) -> bool| {
            let all = Actor::ALL.iter().filter(|actor| knows(**actor));
            list(all.map(|actor| actor.name()))
        };
        match (rid, token) {
            (None, None) => Ok(None),
            (Some(_), Some(_)) => refuse("rid and token are given, give one of them".to_owned()),
            (Some(rid), None) if actor.knows_requests() => Ok(Some(Only::Rid(rid.to_owned()))),
            (Some(_), None) => {
                let actors = known_to(Actor::knows_requests);
                refuse(format!(
                    "rid is given, actor is {actor}, must be one of {actors}"
                ))
            }
            (None, Some(token)) if actor.knows_prompts() => Ok(Some(Only::Token(token))),
            (None, Some(_)) => {
                let actors = known_to(Actor::knows_prompts);
                refuse(format!(
                    "token is given, actor is {actor}, must be one of {actors}"
                ))
            }
        }
    }

    /// When the spec fires, and how often at most.
    fn chance(&mut self) -> Result<(Chance, u64), SpecError> {
        let probability = self.number::<f64>("probability")?;
        let after = self.at_least_one("after")?;
        let count = self.at_least_one("count")?;
        let Some(passage) = after else {
            let probability = probability.unwrap_or(1.0);
            let is_valid = probability > 0.0 && probability <= 1.0;
            if !is_valid {
                return refuse(format!(
                    "probability is {probability}, must be more than 0 and at most 1"
                ));
            }
            let count = count.unwrap_or(u64::MAX);
            return Ok((Chance::Probability(probability), count));
        };
        if probability.is_some() || count.is_some() {
            let reason =
                "after is given, with which a spec fires once: give neither probability nor count";
            return refuse(reason.to_owned());
        }
        Ok((Chance::Passage(passage), 1))
    }

    fn length(&mut self, kind: Kind) -> Result<Duration, SpecError> {
        let given = self.take("for");
        match given {
            Some(_) if !kind.has_length() => {
                let all = Kind::ALL.iter().filter(|kind| kind.has_length());
                let kinds = list(all.map(|kind| kind.name()));
                refuse(format!(
                    "for is given, kind is {kind}, must be one of {kinds}"
                ))
            }
            Some(text) => match duration(text) {
                Some(length) => Ok(length),
                None => refuse(format!(
                    "for is {text:?}, must be a number and one of ms, s, m, such as 250ms"
                )),
            },
            None if kind == Kind::Delay => {
                refuse(format!("for is missing, kind {kind} needs it: for=250ms"))
            }
            None => Ok(ENDLESS),
        }
    }

    /// Faults of one request have one cause, if the spec does not say otherwise.
    fn cause(&mut self, is_of_a_request: bool) -> Result<Cause, SpecError> {
        let name = |cause| match cause {
            Cause::Unique => "unique",
            Cause::Same => "same",
        };
        let given = self.one_of("cause", &[Cause::Unique, Cause::Same], name)?;
        Ok(given.unwrap_or(if is_of_a_request {
            Cause::Same
        } else {
            Cause::Unique
        }))
    }
}

/// A length such as `250ms`, `1.5s` or `2m`.
fn duration(text: &str) -> Option<Duration> {
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(unit_at);
    let seconds = match unit {
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        _ => return None,
    };
    let length = number.parse::<f64>().ok()? * seconds;
    Duration::try_from_secs_f64(length)
        .ok()
        .filter(|length| *length <= ENDLESS)
}

fn list(names: impl IntoIterator<Item = &'static str>) -> String {
    names.into_iter().collect::<Vec<_>>().join(", ")
}
