//! Saves and restores the terminal's settings, which the line editor changes.

/// The saved settings of the terminal.
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
        // Ignores errors: the terminal may be closed. The escape code ends the editor's bracketed paste mode.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, settings);
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(b"\x1b[?2004l\n").and_then(|()| out.flush());
    }
}

/// Does nothing: the system restores the settings when a process ends.
#[cfg(not(unix))]
pub struct Terminal;

#[cfg(not(unix))]
impl Terminal {
    pub fn now() -> Self {
        Self
    }

    pub fn restore(&self) {}
}
