//! Reports the state of the server to systemd (`Type=notify`), if `NOTIFY_SOCKET` is set.
//!
//! `WATCHDOG=1` is sent only after a message went through the Scheduler and back, and one through the Tokenizer, so
//! systemd restarts a server in which one of them hangs. An engine whose actors are restarted is no hang. A hang of the
//! executor ends the process by itself, after `watchdog_timeout_s`: a layer of a long prefill may last longer than
//! systemd's limit.

use std::env;
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Duration;

use actix_web::rt;
use sd_notify::NotifyState;
use souffleur::actors::messages::ViewedRequests;
use souffleur::engine::EngineHandle;

/// While the model loads, systemd gets this much more time, again and again.
const START_EXTENSION: Duration = Duration::from_secs(60);

/// Messages that wait for the thread which sends them. Further ones are dropped.
const MAX_UNSENT: usize = 16;

/// Time limit of the last message. A server stops without it.
const STOPPING_LIMIT: Duration = Duration::from_millis(200);

struct Message {
    text: String,
    /// Dropped once the message is sent.
    _sent: Option<SyncSender<()>>,
}

/// The messages of this process. A thread sends them, since a socket that systemd does not read blocks.
fn messages() -> Option<&'static SyncSender<Message>> {
    static MESSAGES: OnceLock<Option<SyncSender<Message>>> = OnceLock::new();
    let start = || {
        env::var_os("NOTIFY_SOCKET")?;
        let (sender, messages) = mpsc::sync_channel(MAX_UNSENT);
        let thread = thread::Builder::new().name("souffleur-notify".to_owned());
        let started = thread.spawn(move || send_all(messages));
        if let Err(error) = &started {
            tracing::warn!(%error, "failed to start the thread that notifies systemd");
        }
        started.ok().map(|_| sender)
    };
    MESSAGES.get_or_init(start).as_ref()
}

fn send_all(messages: Receiver<Message>) {
    for message in messages {
        if let Err(error) = sd_notify::notify(&[NotifyState::Custom(&message.text)]) {
            tracing::debug!(%error, "failed to notify systemd");
        }
    }
}

fn queue(states: &[NotifyState<'_>], sent: Option<SyncSender<()>>) {
    let Some(messages) = messages() else { return };
    let lines: Vec<String> = states.iter().map(NotifyState::to_string).collect();
    let text = lines.join("\n");
    if let Err(error) = messages.try_send(Message { text, _sent: sent }) {
        tracing::debug!(%error, "failed to queue a message to systemd");
    }
}

fn notify(states: &[NotifyState<'_>]) {
    queue(states, None);
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

/// Reports the stop, and waits until systemd has the report.
pub fn stopping() {
    let (sender, sent) = mpsc::sync_channel(1);
    queue(&[NotifyState::Stopping], Some(sender));
    let _ = sent.recv_timeout(STOPPING_LIMIT);
}

/// Sends a message to the Scheduler and one to the Tokenizer, and waits for the answers.
async fn round_trip(engine: EngineHandle) {
    let scheduler = engine.stats().await.is_ok();
    let tokenizer = engine
        .known_requests(ViewedRequests::First(0))
        .await
        .is_ok();
    // Without an answer, there are no actors, or none until they are rebuilt.
    if !(scheduler && tokenizer) && engine.is_over() {
        std::future::pending().await
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
