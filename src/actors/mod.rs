//! The five actors and the watchdog.

pub mod mailbox;
pub mod messages;
