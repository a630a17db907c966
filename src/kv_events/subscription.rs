//! Subscriptions in this process: the batches of the PUB socket, from the same ring, decoded into events.
//!
//! A reader sees batch numbers without gaps, and resumes after the last number that it saw. Numbers begin at the
//! publisher's start time, in microseconds since 1970: numbers of an earlier run of the engine are smaller than any
//! kept batch, and recognised by that. One clear event replaces lost batches, so that a reader's numbers lag the
//! publisher's. When it resumes with such a number, it gets some batches a second time, and still ends in the same
//! state.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::batch::KvEvent;
use super::read;
use super::ring::{Batch, Ring};
use super::sockets::Sockets;
use souffleur_metrics::SubscriberCount;

/// Upper bound of concurrent readers.
const MAX_READERS: usize = 64;
/// Batches in flight to a reader; later ones wait in the ring.
const BATCHES_UNDER_WAY: usize = 2;
/// A reader that takes nothing for this long is dropped, even if its receiver is never polled again.
const READER_PATIENCE: Duration = Duration::from_secs(60);

/// Subscribes to an engine's publisher from within its process.
#[derive(Clone, Debug)]
pub struct ReaderDoor {
    readers: mpsc::Sender<Reader>,
    places: Arc<Semaphore>,
    first_number: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubscribeError {
    /// The engine was configured without KV events.
    #[error("KV events are off: start the engine with kv_events_config {{\"publisher\": \"zmq\"}}")]
    Off,
    /// The limit of concurrent readers is reached.
    #[error(
        "the limit of {} KV event subscriptions is reached: end another one first",
        MAX_READERS
    )]
    TooMany,
    #[error("the KV event publisher has stopped")]
    Stopped,
}

impl ReaderDoor {
    /// The handle, and the publisher's receiver of new readers.
    pub(super) fn new() -> (Self, mpsc::Receiver<Reader>) {
        let (readers, coming) = mpsc::channel(MAX_READERS);
        let door = Self {
            readers,
            places: Arc::new(Semaphore::new(MAX_READERS)),
            first_number: now().as_micros().try_into().unwrap_or(u64::MAX / 2).max(1),
        };
        (door, coming)
    }

    /// Subscribes to the batches after this number; 0 for all kept batches.
    ///
    /// # Errors
    /// The limit of readers is reached, or the publisher has stopped.
    pub fn subscribe(&self, after: u64) -> Result<KvEventSubscription, SubscribeError> {
        let place = self.places.clone().try_acquire_owned();
        let place = place.map_err(|_| SubscribeError::TooMany)?;
        let (told, heard) = mpsc::channel(BATCHES_UNDER_WAY);
        let next = self.seq_behind(after);
        let taken = self.readers.try_send(Reader {
            next,
            told,
            _place: place,
        });
        taken.map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => SubscribeError::TooMany,
            mpsc::error::TrySendError::Closed(_) => SubscribeError::Stopped,
        })?;
        Ok(KvEventSubscription {
            heard,
            first_number: self.first_number,
            last: after,
        })
    }

    /// The publisher's sequence number after this batch number; `None` for the oldest kept batch.
    fn seq_behind(&self, after: u64) -> Option<u64> {
        let seq = after.checked_sub(self.first_number);
        match (after, seq) {
            (0, _) => None,
            (_, Some(seq)) => Some(seq.saturating_add(1)),
            // Batches of an earlier run are lost, as are unknown numbers.
            (_, None) => Some(u64::MAX),
        }
    }
}

/// The publisher's end of a subscription.
#[derive(Debug)]
pub(super) struct Reader {
    /// The next batch to send; `None` for the oldest kept batch.
    next: Option<u64>,
    told: mpsc::Sender<Told>,
    /// Held here, since the receiver may never be polled or dropped.
    _place: OwnedSemaphorePermit,
}

#[derive(Debug)]
enum Told {
    Batch(Arc<Batch>),
    /// Batches before the next one were lost.
    Lost,
}

impl Reader {
    fn next_told(&mut self, ring: &Ring) -> Option<Told> {
        let oldest = ring.first_waiting().min(ring.first_replayed());
        let next = self.next.unwrap_or(oldest);
        if next < oldest || next > ring.next() {
            self.next = Some(oldest);
            return Some(Told::Lost);
        }
        let batch = ring.get(next)?;
        self.next = Some(next + 1);
        Some(Told::Batch(batch))
    }

    /// Sends a message; false if the reader did not take it in time.
    async fn tell(&self, told: Told) -> bool {
        let sent = timeout(READER_PATIENCE, self.told.send(told)).await;
        matches!(sent, Ok(Ok(())))
    }
}

/// Serves readers of this process, forever.
pub(super) async fn serve_readers(mut coming: mpsc::Receiver<Reader>, sockets: Rc<Sockets>) {
    while let Some(reader) = coming.recv().await {
        spawn_local(tell(reader, sockets.clone()));
    }
}

async fn tell(mut reader: Reader, sockets: Rc<Sockets>) {
    let _counted = SubscriberCount::new(&sockets.metrics);
    let mut published = sockets.published.subscribe();
    loop {
        published.mark_unchanged();
        let told = reader.next_told(&sockets.ring.borrow());
        let goes_on = match told {
            Some(told) => reader.tell(told).await,
            None => tokio::select! {
                new = published.changed() => new.is_ok(),
                () = reader.told.closed() => false,
            },
        };
        if !goes_on {
            return;
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct NumberedEvents {
    /// The number of the previous batch plus one.
    pub number: u64,
    /// Seconds since 1970.
    pub time_s: f64,
    /// In order of occurrence.
    pub events: Vec<KvEvent>,
}

/// The events of an engine's cache. The subscription ends when it is dropped, or not read for a minute.
#[derive(Debug)]
pub struct KvEventSubscription {
    heard: mpsc::Receiver<Told>,
    first_number: u64,
    /// The last number seen; 0 for none.
    last: u64,
}

impl KvEventSubscription {
    /// Waits for the next batch; `None` once the publisher has stopped or dropped this slow reader.
    pub async fn next(&mut self) -> Option<NumberedEvents> {
        let told = self.heard.recv().await?;
        let seq = match &told {
            Told::Batch(batch) => batch.seq,
            Told::Lost => 0,
        };
        self.last = match self.last {
            0 => self.first_number + seq,
            last => last + 1,
        };
        let (time_s, events) = match told {
            Told::Batch(batch) => events_of(&batch)?,
            Told::Lost => (now().as_secs_f64(), vec![KvEvent::Cleared]),
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

    /// A ring that was given `n_batches` batches and keeps the last two.
    fn ring(n_batches: i64) -> Ring {
        let mut ring = Ring::new(RingLimits {
            replayed: 2,
            waiting: Some(1),
        });
        for id in 0..n_batches {
            let events = [KvEvent::Removed(vec![id])];
            ring.push(wire::encode(&events, 0.0, 1, Encoding::Map), Vec::new());
        }
        ring
    }

    /// The batches that a reader gets: their numbers, and their block, or `None` for a clear.
    fn read(after: u64, rings: &[Ring]) -> Vec<(u64, Option<i64>)> {
        let (mut door, mut coming) = ReaderDoor::new();
        door.first_number = FIRST;
        let mut subscription = door.subscribe(after).expect("there is room");
        let mut reader = coming.try_recv().expect("it has come");
        let mut seen = Vec::new();
        for ring in rings {
            while let Some(told) = reader.next_told(ring) {
                reader.told.try_send(told).expect("there is room");
                let batch = subscription.next();
                let batch = futures_util::FutureExt::now_or_never(batch);
                let batch = batch.flatten().expect("it has come");
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
    fn a_new_reader_gets_what_is_kept_and_then_what_comes() {
        let seen = read(0, &[ring(0), ring(2), ring(3)]);
        let expected = [(1000, Some(0)), (1001, Some(1)), (1002, Some(2))];
        assert_eq!(seen, expected);
        assert_eq!(read(0, &[ring(5)]), [(1003, Some(3)), (1004, Some(4))]);
    }

    #[test]
    fn a_reader_that_comes_back_goes_on_behind_its_last_number() {
        assert_eq!(read(1003, &[ring(5)]), [(1004, Some(4))]);
        let seen = read(1004, &[ring(5), ring(6)]);
        assert_eq!(seen, [(1005, Some(5))]);
    }

    #[test]
    fn lost_batches_are_a_clear_and_the_numbers_have_no_gap() {
        let from = |last: u64| [(last + 1, None), (last + 2, Some(3)), (last + 3, Some(4))];
        // A lost batch; one of an earlier run; one of a run whose clock was ahead.
        for last in [1001, 1, 999, 2000] {
            assert_eq!(read(last, &[ring(5)]), from(last), "{last}");
        }
        // A slow reader, which then resumes.
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
    fn readers_are_bounded_and_leave_their_places() {
        let (door, coming) = ReaderDoor::new();
        let mut readers: Vec<_> = (0..MAX_READERS).map(|_| door.subscribe(0)).collect();
        assert!(readers.iter().all(Result::is_ok));
        let refused = door.subscribe(0).err();
        assert_eq!(refused, Some(SubscribeError::TooMany));
        drop(coming);
        readers.pop();
        let refused = door.subscribe(0).err();
        assert_eq!(refused, Some(SubscribeError::Stopped));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stops_reading_loses_its_place() {
        let (door, mut coming) = ReaderDoor::new();
        // The clear and the two kept batches exceed the limit in flight by one.
        let mut subscription = door.subscribe(1).expect("there is room");
        let reader = coming.try_recv().expect("it has come");
        assert_eq!(door.places.available_permits(), MAX_READERS - 1);
        let sockets = Sockets {
            topic: String::new(),
            ring: RefCell::new(ring(5)),
            published: watch::Sender::new(5),
            complaints: Default::default(),
            metrics: KvEventMetrics::register(),
        };
        let begun = Instant::now();
        tell(reader, Rc::new(sockets)).await;
        assert_eq!(begun.elapsed().as_secs(), READER_PATIENCE.as_secs());
        assert_eq!(door.places.available_permits(), MAX_READERS);
        // Batches in flight can still be read.
        for number in [2, 3] {
            let batch = subscription.next().await.expect("it was under way");
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
        // Named as by an `extra_key`, which neither encoding carries.
        let events = vec![
            stored(1, false),
            stored(2, true),
            KvEvent::Removed(vec![2]),
            stored(3, true),
        ];
        for encoding in [Encoding::Map, Encoding::Array] {
            let batch = Batch {
                seq: 0,
                payload: wire::encode(&events, 1.5, 1, encoding),
                named: named(&events),
            };
            assert_eq!(batch.named, [1, 3]);
            let read = events_of(&batch).expect("it is a batch");
            assert_eq!(read, (1.5, events.clone()), "{encoding:?}");
        }
    }
}
