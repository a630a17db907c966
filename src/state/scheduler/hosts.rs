//! The wishes of hosts: prefixes kept for them, the cache emptied for them, and pauses.

use super::flush::Flushes;
use super::pins::Pins;

/// Pins, flushes and the pause.
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

    /// A flush was asked for that no plan carries out yet.
    #[inline]
    pub(super) fn asks_for_flush(&self) -> bool {
        self.flushes.are_asked()
    }

    /// The next plan may carry out the flush: pins that were asked for earlier are granted by a plan before that one.
    #[inline]
    pub(super) fn flush_is_due(&self) -> bool {
        self.flushes.are_asked() && !self.pins.has_demands()
    }
}
