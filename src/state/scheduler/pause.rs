//! A pause for a host: steps under way end, and no work is planned until it is over.
//!
//! Requests still come in, are cancelled and time out, memory is still given back, and pins and flushes are still carried
//! out. Only admissions and decodes wait, with all that they hold.

use super::Scheduler;

impl Scheduler {
    /// Begins a pause, or ends it.
    pub fn set_paused(&mut self, paused: bool) {
        self.hosts.set_paused(paused);
        self.pipeline.note_change();
    }

    /// True during a pause.
    pub fn is_paused(&self) -> bool {
        self.hosts.is_paused()
    }
}
