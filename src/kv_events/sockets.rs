//! The publisher's two sockets: PUB, which sends new batches to subscribers, and ROUTER, which replays missed batches.
//!
//! All connections are served on the publisher's thread. A connection buffers one message; further batches wait in the
//! [`Ring`], which all connections share.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::complaints::Complaints;
use super::listener::{Connection, Listener};
use super::presence;
use super::replay_request::read_request;
use super::ring::{Batch, Ring};
use super::timeouts::{IDLE_TIMEOUT, MAX_PEER_FRAME_BYTES, REPLAY_TIMEOUT, write};
use super::zmtp::{self, Frame, PeerVersion, SocketType, SubscriberCommand, ZmtpError};
use souffleur_metrics::{KvEventMetrics, SubscriberCount};

/// The largest number of connections per socket; further ones are closed.
const MAX_CONNECTIONS: usize = 64;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A subscriber that reads nothing for this long is disconnected; ZeroMQ reconnects by itself.
const SUBSCRIBER_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_TOPICS: usize = 64;
/// The sequence number of the message that ends a replay.
const END_OF_REPLAY: i64 = -1;
/// The first and the longest reconnect delay, with exponential backoff.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(10);
/// The delay after a failed `accept`, most likely for lack of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(500);

pub(super) struct Sockets {
    pub topic: String,
    pub ring: RefCell<Ring>,
    /// The number of the next batch, for tasks waiting for it.
    pub published: watch::Sender<u64>,
    pub complaints: Complaints,
    pub metrics: KvEventMetrics,
}

impl Sockets {
    /// Appends a batch and wakes waiting tasks. `named`: indices of events in namespaces with a salt or `extra_key`.
    pub(super) fn publish(&self, payload: Vec<u8>, named: Vec<u32>) {
        let mut ring = self.ring.borrow_mut();
        ring.push(payload, named);
        self.published.send_replace(ring.next());
    }

    fn subscriber_message(&self, batch: &Batch) -> Vec<u8> {
        let seq = batch.seq.to_be_bytes();
        zmtp::message(&[self.topic.as_bytes(), &seq, &batch.payload])
    }
}

pub(super) async fn accept_subscribers(listener: Listener, sockets: Rc<Sockets>) {
    let serve = |stream| serve_subscriber(stream, sockets.clone());
    accept(listener, &sockets, serve).await;
}

pub(super) async fn accept_replay_clients(listener: Listener, sockets: Rc<Sockets>) {
    let serve = |stream| serve_replays(stream, sockets.clone());
    accept(listener, &sockets, serve).await;
}

/// Connects to a subscriber that has bound its socket, and reconnects forever.
pub(super) async fn connect_to_subscriber((host, port): (String, u16), sockets: Rc<Sockets>) {
    let mut wait = FIRST_RETRY;
    let peer = format!("{host}:{port}");
    loop {
        match TcpStream::connect((host.as_str(), port)).await {
            Ok(stream) => {
                let ended = match presence::set_options(&stream) {
                    Ok(()) => serve_subscriber(stream, sockets.clone()).await,
                    Err(error) => Err(error.into()),
                };
                if !matches!(
                    ended,
                    Err(ZmtpError::Peer(_) | ZmtpError::Limit(..) | ZmtpError::LongFrame(_))
                ) {
                    wait = FIRST_RETRY;
                }
                log_end(ended, Some(&peer), &sockets.complaints);
            }
            Err(error) => {
                tracing::debug!(host, %error, "failed to connect to a KV event subscriber")
            }
        }
        sleep(wait).await;
        wait = LAST_RETRY.min(wait * 2);
    }
}

async fn accept<F>(
    listener: Listener,
    sockets: &Rc<Sockets>,
    serve: impl Fn(Box<dyn Connection>) -> F,
) where
    F: Future<Output = Result<(), ZmtpError>> + 'static,
{
    let (open, complaints) = (Rc::new(Cell::new(0)), &sockets.complaints);
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                complaints.log("failed to accept a KV event client", None, &error);
                sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        if open.get() >= MAX_CONNECTIONS {
            let reason = format_args!("the limit of {MAX_CONNECTIONS} connections is reached");
            complaints.log("rejected a KV event client", peer.as_deref(), &reason);
            continue;
        }
        open.set(open.get() + 1);
        let (served, open) = (serve(stream), open.clone());
        let sockets = sockets.clone();
        tokio::task::spawn_local(async move {
            log_end(served.await, peer.as_deref(), &sockets.complaints);
            open.set(open.get() - 1);
        });
    }
}

fn log_end(ended: Result<(), ZmtpError>, peer: Option<&str>, complaints: &Complaints) {
    match ended {
        Ok(()) => (),
        Err(error @ (ZmtpError::Io(_) | ZmtpError::Idle | ZmtpError::Silent)) => {
            tracing::debug!(peer, %error, "a KV event client disconnected");
        }
        Err(error) => complaints.log("disconnected a KV event client", peer, &error),
    }
}

type OpenConnection<S> = (ReadHalf<S>, WriteHalf<S>, PeerVersion);

async fn open<S>(stream: S, socket: SocketType) -> Result<OpenConnection<S>, ZmtpError>
where
    S: AsyncRead + AsyncWrite,
{
    let (mut reader, mut writer) = tokio::io::split(stream);
    let handshake = zmtp::handshake(&mut reader, &mut writer, socket);
    let version = timeout(HANDSHAKE_TIMEOUT, handshake)
        .await
        .map_err(|_| ZmtpError::Late(HANDSHAKE_TIMEOUT))??;
    Ok((reader, writer, version))
}

/// A subscriber's state: its topics and its pending messages.
#[derive(Default)]
struct Subscriber {
    topics: RefCell<Vec<Vec<u8>>>,
    /// The number of the next batch to send, if one of the topics matches.
    next: Cell<Option<u64>>,
    /// The pending answer to the subscriber's last PING.
    pong: Cell<Option<Vec<u8>>>,
    /// True while a PING is due and not yet written.
    ping: Cell<bool>,
    written_at: Cell<Option<Instant>>,
    changed: Notify,
}

impl Subscriber {
    /// The time of the last write since the PING; `None` while the PING is pending.
    fn written_since_ping(&self) -> Option<Instant> {
        self.written_at.get().filter(|_| !self.ping.get())
    }
}

async fn serve_subscriber<S>(stream: S, sockets: Rc<Sockets>) -> Result<(), ZmtpError>
where
    S: AsyncRead + AsyncWrite,
{
    let (mut reader, mut writer, version) = open(stream, SocketType::Pub).await?;
    let _counted = SubscriberCount::new(&sockets.metrics);
    let subscriber = Subscriber::default();
    tokio::select! {
        ended = read_subscriptions((&mut reader, version), &subscriber, &sockets) => ended,
        ended = send_batches(&mut writer, &subscriber, &sockets) => ended,
    }
}

async fn read_subscriptions(
    (reader, version): (&mut (impl AsyncRead + Unpin), PeerVersion),
    subscriber: &Subscriber,
    sockets: &Sockets,
) -> Result<(), ZmtpError> {
    let mut idle_since = Instant::now();
    loop {
        let received = receive(reader, version, subscriber);
        let frame = match subscriber.next.get() {
            // A subscriber with a matching topic need not send anything.
            Some(_) => received.await?,
            None => timeout_at(idle_since + IDLE_TIMEOUT, received)
                .await
                .map_err(|_| ZmtpError::Idle)??,
        };
        if zmtp::is_pong(&frame) {
            continue;
        }
        idle_since = Instant::now();
        let mut topics = subscriber.topics.borrow_mut();
        match zmtp::subscriber_command(&frame) {
            Some(SubscriberCommand::Subscribe(topic)) => {
                if topics.len() >= MAX_TOPICS {
                    return Err(ZmtpError::Limit(
                        "subscribed to too many topics",
                        MAX_TOPICS,
                    ));
                }
                topics.push(topic.to_vec());
            }
            Some(SubscriberCommand::Cancel(topic)) => {
                if let Some(at) = topics.iter().position(|known| known == topic) {
                    topics.swap_remove(at);
                }
            }
            Some(SubscriberCommand::Ping(pong)) => subscriber.pong.set(Some(pong)),
            None => (),
        }
        let topic = sockets.topic.as_bytes();
        let next = if topics.iter().any(|prefix| topic.starts_with(prefix)) {
            subscriber.next.get().or(Some(sockets.ring.borrow().next()))
        } else {
            None
        };
        subscriber.next.set(next);
        subscriber.changed.notify_one();
    }
}

/// Reads the subscriber's next frame. A silent peer with version 3.1 gets a PING.
async fn receive(
    reader: &mut (impl AsyncRead + Unpin),
    version: PeerVersion,
    subscriber: &Subscriber,
) -> Result<Frame, ZmtpError> {
    let ask = || {
        subscriber.ping.set(true);
        subscriber.changed.notify_one();
    };
    match version {
        PeerVersion::V3_0 => zmtp::read_frame(reader, MAX_PEER_FRAME_BYTES).await,
        PeerVersion::V3_1 => {
            presence::next_frame(reader, MAX_PEER_FRAME_BYTES, ask, || {
                subscriber.written_since_ping()
            })
            .await
        }
    }
}

async fn send_batches(
    writer: &mut (impl AsyncWrite + Unpin),
    subscriber: &Subscriber,
    sockets: &Sockets,
) -> Result<(), ZmtpError> {
    let mut published = sockets.published.subscribe();
    loop {
        published.mark_unchanged();
        if let Some(pong) = subscriber.pong.take() {
            write_to(writer, &pong, subscriber).await?;
        }
        if subscriber.ping.get() {
            write_to(writer, &zmtp::ping(), subscriber).await?;
            subscriber.ping.set(false);
        }
        if let Some(batch) = next_batch(subscriber, sockets) {
            let bytes = sockets.subscriber_message(&batch);
            write_to(writer, &bytes, subscriber).await?;
            continue;
        }
        tokio::select! {
            new = published.changed() => if new.is_err() {
                return Ok(());
            },
            () = subscriber.changed.notified() => (),
        }
    }
}

async fn write_to(
    writer: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
    subscriber: &Subscriber,
) -> Result<(), ZmtpError> {
    write(writer, bytes, SUBSCRIBER_TIMEOUT).await?;
    subscriber.written_at.set(Some(Instant::now()));
    Ok(())
}

/// The next batch for a subscriber. Skips batches that the ring dropped, or that exceed the high-water mark.
fn next_batch(subscriber: &Subscriber, sockets: &Sockets) -> Option<Arc<Batch>> {
    let next = subscriber.next.get()?;
    let ring = sockets.ring.borrow();
    let first = ring.first_waiting().max(next);
    let batch = ring.get(first);
    sockets.metrics.skipped(first - next);
    let sent = u64::from(batch.is_some());
    subscriber.next.set(Some(first + sent));
    batch
}

async fn serve_replays<S>(stream: S, sockets: Rc<Sockets>) -> Result<(), ZmtpError>
where
    S: AsyncRead + AsyncWrite,
{
    let (mut reader, mut writer, _) = open(stream, SocketType::Router).await?;
    loop {
        let Some(request) = read_request(&mut reader, &mut writer).await? else {
            return Ok(());
        };
        sockets.metrics.replayed();
        let end = sockets.ring.borrow().next();
        let mut seq = request.first;
        loop {
            let batch = {
                let ring = sockets.ring.borrow();
                seq = seq.max(ring.first_replayed());
                ring.get(seq).filter(|_| seq < end)
            };
            let Some(batch) = batch else { break };
            let number = batch.seq.to_be_bytes();
            let answer = [sockets.topic.as_bytes(), &number, &batch.payload];
            let bytes = zmtp::message(&request.answer(&answer));
            write(&mut writer, &bytes, REPLAY_TIMEOUT).await?;
            seq += 1;
        }
        let number = END_OF_REPLAY.to_be_bytes();
        let bytes = zmtp::message(&request.answer(&[b"", &number, b""]));
        write(&mut writer, &bytes, REPLAY_TIMEOUT).await?;
    }
}

#[cfg(test)]
#[path = "sockets_tests.rs"]
mod tests;
