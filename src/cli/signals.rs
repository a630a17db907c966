//! Signals that ask this process to stop.

use std::io;
use std::process;

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A signal that asks to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopSignal {
    /// From a terminal.
    Interrupt,
    /// From a service manager.
    Terminate,
}

impl StopSignal {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        }
    }

    /// Ends the process as the signal would by itself.
    pub fn exit(self) -> ! {
        process::exit(match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
        })
    }
}

/// Takes the signals over from the default, which ends the process.
#[cfg(unix)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

#[cfg(unix)]
impl Signals {
    /// Takes them over from now on.
    pub fn install() -> io::Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self {
            interrupt,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// The next one.
    pub async fn next(&mut self) -> StopSignal {
        tokio::select! {
            _ = self.interrupt.recv() => StopSignal::Interrupt,
            _ = self.terminate.recv() => StopSignal::Terminate,
        }
    }
}

/// Takes Ctrl-C over from the default, which ends the process.
#[cfg(not(unix))]
pub struct Signals;

#[cfg(not(unix))]
impl Signals {
    /// Takes it over from now on.
    pub fn install() -> io::Result<Self> {
        Ok(Self)
    }

    /// The next one.
    pub async fn next(&mut self) -> StopSignal {
        // Without a handler there is nothing to wait for.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        StopSignal::Interrupt
    }
}
