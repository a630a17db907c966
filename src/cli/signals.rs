//! Handles the signals that stop this process, and those that must not end it.

use std::io;
use std::process;

#[cfg(unix)]
use futures_util::future::OptionFuture;
#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopSignal {
    /// Ctrl-C on a terminal.
    Interrupt,
    /// Sent by a service manager.
    Terminate,
    /// The terminal was closed.
    HangUp,
}

impl StopSignal {
    pub fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
            Self::HangUp => "SIGHUP",
        }
    }

    /// Exits with the code that a shell reports for the signal.
    pub fn exit(self) -> ! {
        process::exit(match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
            Self::HangUp => 129,
        })
    }
}

/// Handles SIGXFSZ, so that a write beyond the limit of a file's size (`ulimit -f`) fails with `EFBIG`, as on a full
/// disk, and does not end the process.
#[cfg(unix)]
pub fn survive_full_files() -> io::Result<()> {
    let number = rustix::process::Signal::XFSZ.as_raw();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    let _guard = runtime.enter();
    // The handler stays when its listener is dropped. Unlike an ignored signal, it is not inherited by children.
    signal(SignalKind::from_raw(number)).map(drop)
}

#[cfg(not(unix))]
pub fn survive_full_files() -> io::Result<()> {
    Ok(())
}

/// Receives SIGHUP, which a closed terminal sends, or a service manager that requests a reload.
#[cfg(unix)]
pub struct HangUps(Signal);

#[cfg(unix)]
impl HangUps {
    /// Permanently replaces the default action, which ends the process.
    pub fn install() -> io::Result<Self> {
        signal(SignalKind::hangup()).map(Self)
    }

    pub async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(not(unix))]
pub struct HangUps;

#[cfg(not(unix))]
impl HangUps {
    pub fn install() -> io::Result<Self> {
        Ok(Self)
    }

    pub async fn next(&mut self) {
        std::future::pending::<()>().await;
    }
}

/// Receives the signals that stop the process, in place of their default action.
#[cfg(unix)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Option<Signal>,
}

#[cfg(unix)]
impl Signals {
    pub fn install() -> io::Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self {
            interrupt,
            terminate: signal(SignalKind::terminate())?,
            hang_up: None,
        })
    }

    /// Also receives SIGHUP. Without this call, SIGHUP keeps its inherited disposition: `nohup` ignores the signal.
    pub fn with_hang_up(self) -> io::Result<Self> {
        Ok(Self {
            hang_up: Some(signal(SignalKind::hangup())?),
            ..self
        })
    }

    pub async fn next(&mut self) -> StopSignal {
        let hang_up = OptionFuture::from(self.hang_up.as_mut().map(Signal::recv));
        tokio::select! {
            _ = self.interrupt.recv() => StopSignal::Interrupt,
            _ = self.terminate.recv() => StopSignal::Terminate,
            Some(_) = hang_up => StopSignal::HangUp,
        }
    }
}

/// Receives Ctrl-C, in place of its default action.
#[cfg(not(unix))]
pub struct Signals;

#[cfg(not(unix))]
impl Signals {
    pub fn install() -> io::Result<Self> {
        Ok(Self)
    }

    pub fn with_hang_up(self) -> io::Result<Self> {
        Ok(self)
    }

    pub async fn next(&mut self) -> StopSignal {
        // If no handler can be installed, waits forever.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        StopSignal::Interrupt
    }
}
