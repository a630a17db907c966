//! Pauses for hosts: steps in flight finish, and no work is planned until the host resumes.
//!
//! Requests still arrive, are cancelled and time out, memory is still released, and pins and flushes still work. Only
//! admissions and decodes wait, with all memory that they hold.

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
