//! State of commands from the host, the program that embeds the engine: pinned prefixes, cache flushes, pauses.

use super::flush::Flushes;
use super::pins::Pins;

#[derive(Debug, Default)]
pub(super) struct Hosts {
    pins: Pins,
    flushes: Flushes,
    is_paused: bool,
}

impl Hosts {
    #[inline]
    pub(super) fn pins(&self) -> &Pins {
        &self.pins
    }

    #[inline]
    pub(super) fn pins_mut(&mut self) -> &mut Pins {
        &mut self.pins
    }

    #[inline]
    pub(super) fn flushes_mut(&mut self) -> &mut Flushes {
        &mut self.flushes
    }

    #[inline]
    pub(super) fn is_paused(&self) -> bool {
        self.is_paused
    }

    pub(super) fn set_paused(&mut self, paused: bool) {
        self.is_paused = paused;
    }

    /// True if a flush is requested and not planned yet.
    #[inline]
    pub(super) fn asks_for_flush(&self) -> bool {
        self.flushes.are_requested()
    }

    /// True if the next plan flushes: requested pins are granted first, by an earlier plan.
    #[inline]
    pub(super) fn flush_is_due(&self) -> bool {
        self.flushes.are_requested() && !self.pins.has_demands()
    }
}
