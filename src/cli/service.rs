//! Reports the state of the server to systemd (`Type=notify`), if `NOTIFY_SOCKET` is set.
//!
//! `WATCHDOG=1` is sent only after a message went through the Scheduler and back, so systemd restarts a server whose
//! Scheduler hangs. An engine that is being rebuilt is no hang.

use std::time::Duration;

use actix_web::rt;
use sd_notify::NotifyState;
use souffleur::engine::EngineHandle;
use souffleur::error::RequestError;

/// While the model loads, systemd gets this much more time, again and again.
const START_EXTENSION: Duration = Duration::from_secs(60);

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "failed to notify systemd");
    }
}

/// Extends the start's time limit until the returned guard is dropped.
pub fn loading() -> rt::task::JoinHandle<()> {
    notify(&[NotifyState::Status("loading the model")]);
    rt::spawn(async {
        let mut ticks = rt::time::interval(START_EXTENSION / 2);
        loop {
            ticks.tick().await;
            let micros = START_EXTENSION.as_micros().try_into().unwrap_or(u32::MAX);
            notify(&[NotifyState::ExtendTimeoutUsec(micros)]);
        }
    })
}

/// Reports that the server serves, and feeds systemd's watchdog from now on.
pub fn serving(engine: &EngineHandle) {
    let status = format!("serving {}", engine.model().served_model_name);
    notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
    if let Some(limit) = sd_notify::watchdog_enabled() {
        let engine = engine.clone();
        rt::spawn(feed(
            limit / 3,
            move || round_trip(engine.clone()),
            || notify(&[NotifyState::Watchdog]),
        ));
    }
}

pub fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Sends a message to the Scheduler and waits for the answer.
async fn round_trip(engine: EngineHandle) {
    match engine.stats().await {
        Err(RequestError::EngineDown(_)) if engine.is_over() => std::future::pending().await,
        // The answer, or no actors until they are rebuilt.
        _ => (),
    }
}

/// Calls `alive` after each round trip, one per interval. A round trip without an end stops this for ever.
async fn feed<F: Future<Output = ()>>(
    interval: Duration,
    round_trip: impl Fn() -> F,
    alive: impl Fn(),
) {
    let mut ticks = rt::time::interval(interval);
    loop {
        ticks.tick().await;
        round_trip().await;
        alive();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_round_trip_that_hangs_stops_the_watchdog() {
        let (fed, hangs) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let (count, hang) = (fed.clone(), hangs.clone());
        let round_trip = move || {
            let hangs = hang.get();
            async move {
                if hangs {
                    std::future::pending().await
                }
            }
        };
        let feeding = feed(Duration::from_secs(10), round_trip, move || {
            count.set(count.get() + 1)
        });
        let observing = async {
            tokio::time::sleep(Duration::from_secs(95)).await;
            assert_eq!(fed.get(), 10);
            hangs.set(true);
            tokio::time::sleep(Duration::from_secs(1000)).await;
            assert_eq!(fed.get(), 10);
        };
        tokio::select! {
            () = feeding => unreachable!("feeding has no end"),
            () = observing => (),
        }
    }
}
