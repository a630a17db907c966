//! Restores the terminal's mode after a line was edited.

/// Settings of the terminal, which an editor changes while a line is written.
#[cfg(unix)]
pub struct Terminal(Option<rustix::termios::Termios>);

#[cfg(unix)]
impl Terminal {
    pub fn now() -> Self {
        Self(rustix::termios::tcgetattr(std::io::stdin()).ok())
    }

    pub fn restore(&self) {
        use std::io::Write;

        use rustix::termios::{OptionalActions, tcsetattr};

        let Some(settings) = &self.0 else {
            return;
        };
        // A terminal that is gone needs none of it.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, settings);
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(b"\x1b[?2004l\n").and_then(|()| out.flush());
    }
}

/// The system restores the mode when a process ends.
#[cfg(not(unix))]
pub struct Terminal;

#[cfg(not(unix))]
impl Terminal {
    pub fn now() -> Self {
        Self
    }

    pub fn restore(&self) {}
}
