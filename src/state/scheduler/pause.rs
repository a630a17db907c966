//! Pauses the engine for a host: steps in flight finish, and no work is planned until the host resumes the engine.
//!
//! Requests still arrive, are cancelled and time out, memory is still released, and pins and flushes still work. Only
//! admissions and decodes stop; running requests keep their memory.

use super::Scheduler;

impl Scheduler {
    pub fn set_paused(&mut self, paused: bool) {
        self.hosts.set_paused(paused);
        self.pipeline.note_change();
    }

    pub fn is_paused(&self) -> bool {
        self.hosts.is_paused()
    }
}
