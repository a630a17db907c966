//! The event sink of one request, which delivers exactly one terminal event.
//!
//! If a sink is dropped without its terminal event, because its actor died or its message was never handled, the drop
//! sends `Failed(engine_down)`.

use std::fmt;
use std::sync::Arc;

use actix::{Message, Recipient};
use tokio::sync::mpsc;

use crate::admission::{Admission, Permit};
use crate::{Delta, Event};
use souffleur_base::error::RequestError;
use souffleur_base::ids::RequestId;

/// An event of a request whose sink is from [`EventSink::recipient`], sent to an actor of the embedding program.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct TokenEvent {
    pub rid: RequestId,
    pub event: Event,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Delivery {
    Sent,
    /// The client is slow: the delta was merged into the backlog of this many bytes.
    Waiting {
        backlog_bytes: usize,
    },
    Gone,
}

enum Target {
    Channel {
        events: mpsc::Sender<Event>,
        terminal: mpsc::OwnedPermit<Event>,
    },
    Recipient(Recipient<TokenEvent>),
}

/// Sends the events of one request to its client, and holds its admission permit.
pub struct EventSink {
    rid: RequestId,
    target: Option<Target>,
    backlog: Delta,
    permit: Option<Permit>,
    /// True once the Tokenizer has received the request.
    is_received: bool,
}

impl EventSink {
    /// A sink with a bounded channel of `capacity` events, and the channel's reading end. One more slot is reserved for
    /// the terminal event.
    pub fn channel(
        rid: RequestId,
        capacity: usize,
        permit: Option<Permit>,
    ) -> (Self, mpsc::Receiver<Event>) {
        let (events, receiver) = mpsc::channel(capacity.max(1) + 1);
        let terminal = events
            .clone()
            .try_reserve_owned()
            .expect("a new channel has capacity for one event");
        let target = Some(Target::Channel { events, terminal });
        (
            Self {
                rid,
                target,
                backlog: Delta::default(),
                permit,
                is_received: false,
            },
            receiver,
        )
    }

    /// A sink that sends to an actor of the embedding program, which must keep up or cancel: the mailbox is unbounded.
    pub fn recipient(
        rid: RequestId,
        recipient: Recipient<TokenEvent>,
        permit: Option<Permit>,
    ) -> Self {
        let target = Some(Target::Recipient(recipient));
        Self {
            rid,
            target,
            backlog: Delta::default(),
            permit,
            is_received: false,
        }
    }

    /// Takes a permit for a request that came without one.
    ///
    /// # Errors
    /// [`RequestError::Overloaded`] at a limit, [`RequestError::ShuttingDown`] once admission is closed.
    pub fn admit(
        &mut self,
        admission: &Arc<Admission>,
        estimated_tokens: usize,
    ) -> Result<(), RequestError> {
        self.is_received = true;
        if self.permit.is_none() {
            let mut permit = admission.admit()?;
            permit.charge_prompt(estimated_tokens)?;
            self.permit = Some(permit);
        }
        Ok(())
    }

    /// # Errors
    /// [`RequestError::Overloaded`] at the limit.
    pub fn charge_prompt(&mut self, prompt_tokens: usize) -> Result<(), RequestError> {
        self.permit
            .as_mut()
            .map_or(Ok(()), |permit| permit.charge_prompt(prompt_tokens))
    }

    /// True for the request of a probe, which does not count as a client's request.
    pub fn is_probe(&self) -> bool {
        self.permit.as_ref().is_some_and(Permit::is_probe)
    }

    pub fn send(&mut self, delta: Delta) -> Delivery {
        match &self.target {
            None => Delivery::Gone,
            Some(Target::Recipient(recipient)) if !recipient.connected() => Delivery::Gone,
            Some(Target::Recipient(recipient)) => {
                recipient.do_send(TokenEvent {
                    rid: self.rid.clone(),
                    event: Event::Delta(delta),
                });
                Delivery::Sent
            }
            Some(Target::Channel { events, .. }) => {
                self.backlog.merge(delta);
                match events.try_reserve() {
                    Ok(slot) => {
                        slot.send(Event::Delta(std::mem::take(&mut self.backlog)));
                        Delivery::Sent
                    }
                    Err(mpsc::error::TrySendError::Full(())) => Delivery::Waiting {
                        backlog_bytes: self.backlog.bytes(),
                    },
                    Err(mpsc::error::TrySendError::Closed(())) => Delivery::Gone,
                }
            }
        }
    }

    /// Sends the terminal event, whose delta gets the backlog prepended.
    pub fn finish(mut self, event: Event) {
        self.terminate(event);
    }

    fn terminate(&mut self, event: Event) {
        let backlog = std::mem::take(&mut self.backlog);
        let event = with_backlog(event, backlog);
        // Returns the permit before the event, so that a client that has received the event can be admitted again.
        self.permit = None;
        match self.target.take() {
            None => (),
            Some(Target::Recipient(recipient)) => {
                recipient.do_send(TokenEvent {
                    rid: self.rid.clone(),
                    event,
                });
            }
            Some(Target::Channel { terminal, .. }) => {
                terminal.send(event);
            }
        }
    }
}

fn with_backlog(event: Event, mut backlog: Delta) -> Event {
    match event {
        Event::Finished(mut end) => {
            backlog.merge(std::mem::take(&mut end.delta));
            end.delta = backlog;
            Event::Finished(end)
        }
        Event::Cancelled(mut end) => {
            backlog.merge(std::mem::take(&mut end.delta));
            end.delta = backlog;
            Event::Cancelled(end)
        }
        Event::Delta(_) | Event::Failed(_) => event,
    }
}

impl fmt::Debug for EventSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventSink({})", self.rid)
    }
}

impl Drop for EventSink {
    fn drop(&mut self) {
        if let Some(target) = &self.target {
            let is_gone = match target {
                Target::Channel { events, .. } => events.is_closed(),
                Target::Recipient(recipient) => !recipient.connected(),
            };
            if let Some(permit) = self.permit.as_ref().filter(|_| !is_gone) {
                permit.lost();
            }
            let reason = if self.is_received {
                "it stopped or failed during the request: send the request again"
            } else {
                "it stopped or failed before it read the request: send the request again (a program that embeds the \
                 engine must first call EngineHandle::doors() again)"
            };
            self.terminate(Event::Failed(RequestError::EngineDown(reason.to_owned())));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_dropped_sink_is_a_loss_unless_its_client_or_its_host_has_left() {
        static LOST: AtomicUsize = AtomicUsize::new(0);
        let admission = Admission::new(9, 90, || {
            LOST.fetch_add(1, Ordering::SeqCst);
        });
        let sink = |permit| EventSink::channel(RequestId::new("a"), 1, Some(permit));
        let admitted = || sink(admission.admit().expect("the engine is empty"));
        let lost = || LOST.load(Ordering::SeqCst);
        let (gone, events) = admitted();
        drop(events);
        drop(gone);
        let (ended, _events) = admitted();
        ended.finish(Event::Failed(RequestError::OutOfMemory));
        let (probe, _events) = sink(admission.admit_probe().expect("a permit is reserved"));
        drop(probe);
        assert_eq!(lost(), 0);
        let (waits, mut events) = admitted();
        drop(waits);
        assert_eq!(lost(), 1);
        let end = events.try_recv();
        assert!(matches!(
            end,
            Ok(Event::Failed(RequestError::EngineDown(_)))
        ));
        admission.expect_drops();
        let (waits, _events) = admitted();
        drop(waits);
        assert_eq!(lost(), 1);
    }
}
