//! Subscriptions to KV events from within this process, without a socket.
//!
//! A reader gets batches from the same ring as the PUB socket. Batches are numbered without gaps, so that a reader can
//! resume after the last number that it saw. Numbers start at the publisher's start time in microseconds since 1970, so
//! that numbers from an earlier run of the engine are smaller. One clear event replaces all lost batches, so that a
//! reader's later numbers may be smaller than the publisher's. A reader that resumes with such a number gets some
//! batches twice, which does not change its final state.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::batch::KvEvent;
use super::read;
use super::ring::{Batch, Ring};
use super::sockets::Sockets;
use souffleur_metrics::SubscriberCount;

const MAX_READERS: usize = 64;
/// The largest number of batches queued for a reader. Later batches wait in the ring.
const MAX_QUEUED_BATCHES: usize = 2;
/// A reader that takes no batch for this long is dropped, even if its receiver is never polled again.
const READER_TIMEOUT: Duration = Duration::from_secs(60);

/// Creates subscriptions to a replica's publisher within its process.
#[derive(Clone, Debug)]
pub struct Subscriptions {
    readers: mpsc::Sender<Reader>,
    slots: Arc<Semaphore>,
    first_number: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubscribeError {
    /// The engine was configured without KV events.
    #[error("KV events are off: start the engine with kv_events_config {{\"publisher\": \"zmq\"}}")]
    Off,
    /// The limit of concurrent readers is reached.
    #[error(
        "the limit of {} KV event subscriptions is reached: end another subscription first",
        MAX_READERS
    )]
    TooMany,
    #[error("the KV event publisher has stopped: restart the server to start it again")]
    Stopped,
    /// The engine has replicas, and the subscription names none.
    #[error(
        "dp_size is {0}, and each replica numbers its own KV events: subscribe to one replica, over ZeroMQ \
         (kv_events_config) or in the process, or set dp_size to 1"
    )]
    Replicas(usize),
    #[error("there is no replica {0}: replicas have the numbers from 0 to dp_size - 1")]
    NoReplica(usize),
}

impl Subscriptions {
    /// Returns the handle for subscribers, and the publisher's receiver of new readers.
    pub(super) fn new() -> (Self, mpsc::Receiver<Reader>) {
        let (readers, new_readers) = mpsc::channel(MAX_READERS);
        let subscriptions = Self {
            readers,
            slots: Arc::new(Semaphore::new(MAX_READERS)),
            first_number: now().as_micros().try_into().unwrap_or(u64::MAX / 2).max(1),
        };
        (subscriptions, new_readers)
    }

    /// Subscribes to the batches after this number; 0 for all kept batches.
    ///
    /// # Errors
    /// The limit of readers is reached, or the publisher has stopped.
    pub fn subscribe(&self, after: u64) -> Result<KvEventSubscription, SubscribeError> {
        let slot = self.slots.clone().try_acquire_owned();
        let slot = slot.map_err(|_| SubscribeError::TooMany)?;
        let (delivery, deliveries) = mpsc::channel(MAX_QUEUED_BATCHES);
        let next = self.seq_after(after);
        let taken = self.readers.try_send(Reader {
            next,
            delivery,
            _slot: slot,
        });
        taken.map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => SubscribeError::TooMany,
            mpsc::error::TrySendError::Closed(_) => SubscribeError::Stopped,
        })?;
        Ok(KvEventSubscription {
            deliveries,
            first_number: self.first_number,
            last: after,
        })
    }

    /// The publisher's sequence number after this batch number; `None` for the oldest kept batch.
    fn seq_after(&self, after: u64) -> Option<u64> {
        let seq = after.checked_sub(self.first_number);
        match (after, seq) {
            (0, _) => None,
            (_, Some(seq)) => Some(seq.saturating_add(1)),
            // Batches of an earlier run are lost.
            (_, None) => Some(u64::MAX),
        }
    }
}

/// The publisher's end of a subscription.
#[derive(Debug)]
pub(super) struct Reader {
    /// The next batch to send; `None` for the oldest kept batch.
    next: Option<u64>,
    delivery: mpsc::Sender<Delivery>,
    /// The publisher holds the permit, since a subscriber may never poll or drop its receiver.
    _slot: OwnedSemaphorePermit,
}

#[derive(Debug)]
enum Delivery {
    Batch(Arc<Batch>),
    /// Batches before the next one were lost.
    Lost,
}

impl Reader {
    fn next_delivery(&mut self, ring: &Ring) -> Option<Delivery> {
        let oldest = ring.first_waiting().min(ring.first_replayed());
        let next = self.next.unwrap_or(oldest);
        if next < oldest || next > ring.next() {
            self.next = Some(oldest);
            return Some(Delivery::Lost);
        }
        let batch = ring.get(next)?;
        self.next = Some(next + 1);
        Some(Delivery::Batch(batch))
    }

    async fn deliver(&self, delivery: Delivery) -> bool {
        let sent = timeout(READER_TIMEOUT, self.delivery.send(delivery)).await;
        matches!(sent, Ok(Ok(())))
    }
}

/// Only one call at a time takes new readers; the next one continues when it is dropped.
pub(super) async fn serve_readers(
    new_readers: Arc<Mutex<mpsc::Receiver<Reader>>>,
    sockets: Rc<Sockets>,
) {
    let mut new_readers = new_readers.lock().await;
    while let Some(reader) = new_readers.recv().await {
        spawn_local(deliver(reader, sockets.clone()));
    }
}

async fn deliver(mut reader: Reader, sockets: Rc<Sockets>) {
    let _counted = SubscriberCount::new(&sockets.metrics);
    let mut published = sockets.published.subscribe();
    loop {
        published.mark_unchanged();
        let delivery = reader.next_delivery(&sockets.ring.borrow());
        let is_open = match delivery {
            Some(delivery) => reader.deliver(delivery).await,
            None => tokio::select! {
                new = published.changed() => new.is_ok(),
                () = reader.delivery.closed() => false,
            },
        };
        if !is_open {
            return;
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct NumberedEvents {
    /// Consecutive within a subscription.
    pub number: u64,
    /// Seconds since 1970.
    pub time_s: f64,
    pub events: Vec<KvEvent>,
}

/// A subscription to the events of an engine's cache. A subscription that is not read for a minute ends.
#[derive(Debug)]
pub struct KvEventSubscription {
    deliveries: mpsc::Receiver<Delivery>,
    first_number: u64,
    /// The last number seen; 0 for none.
    last: u64,
}

impl KvEventSubscription {
    /// Waits for the next batch; `None` once the publisher has stopped, has begun anew after a panic, or has dropped this
    /// slow reader.
    pub async fn next(&mut self) -> Option<NumberedEvents> {
        let delivery = self.deliveries.recv().await?;
        let seq = match &delivery {
            Delivery::Batch(batch) => batch.seq,
            Delivery::Lost => 0,
        };
        self.last = match self.last {
            0 => self.first_number + seq,
            last => last + 1,
        };
        let (time_s, events) = match delivery {
            Delivery::Batch(batch) => events_of(&batch)?,
            Delivery::Lost => (now().as_secs_f64(), vec![KvEvent::Cleared]),
        };
        Some(NumberedEvents {
            number: self.last,
            time_s,
            events,
        })
    }
}

/// Decodes a batch, and restores `is_named`, which its payload omits.
fn events_of(batch: &Batch) -> Option<(f64, Vec<KvEvent>)> {
    let (time_s, mut events) = read::decode(&batch.payload).ok()?;
    for place in &batch.named {
        if let Some(KvEvent::Stored(blocks)) = events.get_mut(*place as usize) {
            blocks.is_named = true;
        }
    }
    Some((time_s, events))
}

fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tokio::sync::watch;
    use tokio::time::Instant;

    use super::super::batch::StoredBlocks;
    use super::super::publisher::named;
    use super::super::ring::RingLimits;
    use super::super::wire;
    use super::*;
    use crate::config::Encoding;
    use souffleur_metrics::KvEventMetrics;

    const FIRST: u64 = 1000;

    fn stamp(time_s: f64) -> wire::Stamp {
        wire::Stamp { time_s, rank: 0 }
    }

    /// Pushes `n_batches` batches to a ring that keeps two.
    fn ring(n_batches: i64) -> Ring {
        let mut ring = Ring::new(RingLimits {
            replayed: 2,
            waiting: Some(1),
        });
        for id in 0..n_batches {
            let events = [KvEvent::Removed(vec![id])];
            ring.push(
                wire::encode(&events, stamp(0.0), 1, Encoding::Map),
                Vec::new(),
            );
        }
        ring
    }

    /// The batches that a reader gets from successive rings: number and block id, or `None` for a clear event.
    fn read(after: u64, rings: &[Ring]) -> Vec<(u64, Option<i64>)> {
        let (mut subscriptions, mut new_readers) = Subscriptions::new();
        subscriptions.first_number = FIRST;
        let mut subscription = subscriptions.subscribe(after).expect("a slot is free");
        let mut reader = new_readers.try_recv().expect("it was sent");
        let mut seen = Vec::new();
        for ring in rings {
            while let Some(delivery) = reader.next_delivery(ring) {
                reader.delivery.try_send(delivery).expect("the batch fits");
                let batch = subscription.next();
                let batch = futures_util::FutureExt::now_or_never(batch);
                let batch = batch.flatten().expect("it was sent");
                seen.push((
                    batch.number,
                    match &batch.events[..] {
                        [KvEvent::Removed(ids)] => Some(ids[0]),
                        [KvEvent::Cleared] => None,
                        other => panic!("{other:?}"),
                    },
                ));
            }
        }
        seen
    }

    #[test]
    fn a_new_reader_gets_the_kept_and_then_the_new_batches() {
        let seen = read(0, &[ring(0), ring(2), ring(3)]);
        let expected = [(1000, Some(0)), (1001, Some(1)), (1002, Some(2))];
        assert_eq!(seen, expected);
        assert_eq!(read(0, &[ring(5)]), [(1003, Some(3)), (1004, Some(4))]);
    }

    #[test]
    fn a_reader_resumes_after_its_last_number() {
        assert_eq!(read(1003, &[ring(5)]), [(1004, Some(4))]);
        let seen = read(1004, &[ring(5), ring(6)]);
        assert_eq!(seen, [(1005, Some(5))]);
    }

    #[test]
    fn a_clear_event_replaces_lost_batches() {
        let expected = |last: u64| [(last + 1, None), (last + 2, Some(3)), (last + 3, Some(4))];
        // Batch 1001 is lost, 1 and 999 are of an earlier run, and 2000 is of a run whose clock was ahead.
        for last in [1001, 1, 999, 2000] {
            assert_eq!(read(last, &[ring(5)]), expected(last), "{last}");
        }
        // A slow reader loses batches, and then resumes.
        let seen = read(0, &[ring(1), ring(5)]);
        let expected = [
            (1000, Some(0)),
            (1001, None),
            (1002, Some(3)),
            (1003, Some(4)),
        ];
        assert_eq!(seen, expected);
        let again = read(1003, &[ring(6)]);
        assert_eq!(again, [(1004, Some(4)), (1005, Some(5))]);
    }

    #[test]
    fn readers_are_limited_and_free_their_slots() {
        let (subscriptions, new_readers) = Subscriptions::new();
        let mut readers: Vec<_> = (0..MAX_READERS)
            .map(|_| subscriptions.subscribe(0))
            .collect();
        assert!(readers.iter().all(Result::is_ok));
        let refused = subscriptions.subscribe(0).err();
        assert_eq!(refused, Some(SubscribeError::TooMany));
        drop(new_readers);
        readers.pop();
        let refused = subscriptions.subscribe(0).err();
        assert_eq!(refused, Some(SubscribeError::Stopped));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stops_reading_is_dropped() {
        let (subscriptions, mut new_readers) = Subscriptions::new();
        // The clear event and the two batches in the ring are one more than the queue holds.
        let mut subscription = subscriptions.subscribe(1).expect("a slot is free");
        let reader = new_readers.try_recv().expect("it was sent");
        assert_eq!(subscriptions.slots.available_permits(), MAX_READERS - 1);
        let sockets = Sockets {
            topic: String::new(),
            ring: RefCell::new(ring(5)),
            published: watch::Sender::new(5),
            complaints: Default::default(),
            metrics: KvEventMetrics::register(),
        };
        let begun = Instant::now();
        deliver(reader, Rc::new(sockets)).await;
        assert_eq!(begun.elapsed().as_secs(), READER_TIMEOUT.as_secs());
        assert_eq!(subscriptions.slots.available_permits(), MAX_READERS);
        // Batches in flight can still be read.
        for number in [2, 3] {
            let batch = subscription.next().await.expect("it was queued");
            assert_eq!(batch.number, number);
        }
        assert_eq!(subscription.next().await, None);
    }

    #[test]
    fn blocks_of_named_namespaces_are_marked_in_either_encoding() {
        let stored = |id: i64, is_named: bool| {
            KvEvent::Stored(StoredBlocks {
                ids: vec![id],
                parent: None,
                tokens: vec![5],
                cache_salt: None,
                is_named,
            })
        };
        // The namespaces have an `extra_key`, which neither encoding transmits.
        let events = vec![
            stored(1, false),
            stored(2, true),
            KvEvent::Removed(vec![2]),
            stored(3, true),
        ];
        for encoding in [Encoding::Map, Encoding::Array] {
            let batch = Batch {
                seq: 0,
                payload: wire::encode(&events, stamp(1.5), 1, encoding),
                named: named(&events),
            };
            assert_eq!(batch.named, [1, 3]);
            let read = events_of(&batch).expect("it is a batch");
            assert_eq!(read, (1.5, events.clone()), "{encoding:?}");
        }
    }
}
