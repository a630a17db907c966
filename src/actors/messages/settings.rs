//! The settings that hosts make, as they are kept from one generation of a unit to the next.

use std::time::Instant;

use actix::Message;

use souffleur_base::ids::UnitId;
use souffleur_state::scheduler::HeldPin;
use souffleur_state::supervision::Desired;

/// Scheduler -> Watchdog, rare: all settings made by hosts so far, for the unit that is built after a death.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct HostSettings {
    /// The Scheduler's unit. Each unit has its own pins.
    pub unit: UnitId,
    pub desired: Desired,
    pub pins: HostPins,
}

/// The pins of hosts, without soft ones.
#[derive(Clone, Debug)]
pub struct HostPins {
    pub held: Vec<HeldPin>,
    /// The start of the clock of the pins' times.
    pub since: Instant,
}

impl HostPins {
    pub fn none() -> Self {
        Self {
            held: Vec::new(),
            since: Instant::now(),
        }
    }

    /// The same pins by a clock that starts at `since`.
    pub fn by_clock(self, since: Instant) -> Self {
        let passed_s = since.saturating_duration_since(self.since).as_secs();
        let held = self.held.into_iter().map(|pin| HeldPin {
            expires_s: pin.expires_s.saturating_sub(passed_s),
            ..pin
        });
        Self {
            held: held.collect(),
            since,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use souffleur_state::cache::namespace::Namespace;

    #[test]
    fn a_pin_expires_at_the_same_time_by_the_clock_of_the_next_generation() {
        let since = Instant::now();
        let pin = |expires_s| HeldPin {
            pin: expires_s,
            namespace: Namespace::default(),
            tokens: Arc::from([7]),
            expires_s,
        };
        let pins = HostPins {
            held: vec![pin(100), pin(20)],
            since,
        };
        let later = pins.by_clock(since + Duration::from_secs(30));
        let left: Vec<_> = later.held.iter().map(|pin| pin.expires_s).collect();
        assert_eq!(left, [70, 0]);
        let again = later.by_clock(since + Duration::from_secs(40));
        assert_eq!(again.held[0].expires_s, 60);
    }
}
