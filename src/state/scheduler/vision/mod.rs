//! The scheduler's side of images without vectors: orders to encode them, and slices of the tower's work in steps.
//!
//! A plan matches a request's prefix first: an image within the match needs no vectors. For the others the request asks,
//! and waits in the queue until it has all of them, while others may overtake it. The tower runs on the threads that
//! compute the steps, so its work is a part of steps, charged like a prefill: a step has tokens to prefill or a slice,
//! in turn if there is work of both kinds, and decodes wait for at most one slice.
//!
//! The vectors of waiting requests are bounded. Requests ask in the order of the queue; one that finds no room is no
//! candidate until vectors are released, so that it takes the place of no request that has its vectors or needs none.
//!
//! A request may start without the vectors of images that the KV store has. If the store, or the memory for its blocks,
//! fails before such an image, the request is retracted once, and its images are encoded.
//!
//! Plans depend on encodings only through news, which are in the message log: a replay needs neither pixels nor vectors.

mod budget;
mod pace;
mod parts;
mod slices;

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::Scheduler;
use super::sequence::{Phase, Sequence};
use crate::plan::{EncodeDemand, Settle};
use crate::prompt_vectors::PromptVectors;
use crate::vision::{Encoding, VisionNews, VisionOrder};
use pace::TowerPace;
use slices::DueSlice;
use souffleur_base::error::FieldError;
use souffleur_base::ids::{SeqId, Ticket};

pub use parts::SequenceVision;
pub(super) use slices::SliceRecord;

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct VisionLimits {
    /// Vectors that requests before their prefill may ask for or hold, all together. A request that needs more alone
    /// gets them if no other has any.
    pub max_vectors: usize,
    /// Floating-point operations of the text model for a token of a prompt, which relate the tower's work to a prefill's:
    /// a slice has at most those of the longest prefill step. If it is 0, only the measured time of slices is a bound.
    pub flops_per_token: u64,
}

pub(super) struct Vision {
    limits: VisionLimits,
    next_ticket: u64,
    orders: Vec<VisionOrder>,
    /// The requests that wait, by the tickets of their orders.
    tickets: FxHashMap<Ticket, SeqId>,
    /// Vectors that requests have asked for, or hold.
    n_vectors: usize,
    /// How often requests have released vectors.
    n_releases: u64,
    /// The number of releases when a request last found no room.
    full_at: Option<u64>,
    /// The chunked request, if the last plan found that it cannot continue without vectors.
    lacking: Option<SeqId>,
    running: Option<RunningEncoding>,
    pace: TowerPace,
    /// The last step with tokens to prefill came after the last slice.
    has_turn: bool,
    /// The slice of the step that is being emitted.
    due: Option<DueSlice>,
}

/// The image that steps encode now.
struct RunningEncoding {
    encoding: Encoding,
    /// Units in the steps planned so far.
    n_planned: usize,
}

impl Vision {
    pub(super) fn new(limits: VisionLimits) -> Self {
        Self {
            limits,
            next_ticket: 0,
            orders: Vec::new(),
            tickets: FxHashMap::default(),
            n_vectors: 0,
            n_releases: 0,
            full_at: None,
            lacking: None,
            running: None,
            pace: TowerPace::default(),
            has_turn: false,
            due: None,
        }
    }

    /// Releases the vectors and orders of a request, or its claim to the next room; false if it has none of them.
    fn release(&mut self, parts: &mut SequenceVision) -> bool {
        let (tickets, n_vectors) = parts.release();
        for ticket in &tickets {
            self.tickets.remove(ticket);
            self.orders.push(VisionOrder::Release { ticket: *ticket });
        }
        self.n_vectors = self.n_vectors.saturating_sub(n_vectors);
        let has_any = !tickets.is_empty() || parts.was_turned_away(self.n_releases);
        self.n_releases += u64::from(has_any);
        has_any
    }

    /// Whether a request that has no vectors may ask for this many. After one that finds no room, none finds room before
    /// the next release: small images would otherwise delay a large one without end.
    fn has_room(&self, wanted: usize) -> bool {
        let is_closed = self.full_at == Some(self.n_releases);
        let fits = self.n_vectors + wanted <= self.limits.max_vectors;
        self.n_vectors == 0 || (fits && !is_closed)
    }
}

impl Scheduler {
    pub fn take_vision_orders(&mut self) -> Vec<VisionOrder> {
        let vision = self.vision.as_mut();
        vision.map_or_else(Vec::new, |vision| std::mem::take(&mut vision.orders))
    }

    pub fn vision_told(&mut self, news: VisionNews) {
        let Some(vision) = &mut self.vision else {
            return;
        };
        self.pipeline.note_change();
        match news {
            VisionNews::Run(encoding) => {
                let encoding = encoding.filter(|encoding| !encoding.work.is_empty());
                vision.running = encoding.map(|encoding| RunningEncoding {
                    encoding,
                    n_planned: 0,
                });
            }
            VisionNews::Encoded { tickets, vectors } => {
                for ticket in tickets {
                    self.take_vectors(ticket, vectors.clone());
                }
            }
            VisionNews::Failed { tickets, reason } => {
                for ticket in tickets {
                    self.fail_image(ticket, &reason);
                }
            }
        }
    }

    /// Gives a request the vectors that it asked for, unless it has released the ticket.
    fn take_vectors(&mut self, ticket: Ticket, vectors: Option<Arc<PromptVectors>>) {
        let vision = self.vision.as_mut();
        let seq = vision.and_then(|vision| vision.tickets.remove(&ticket));
        let sequence = seq.and_then(|seq| self.requests.get_mut(seq));
        if let Some(parts) = sequence.and_then(|sequence| sequence.vision.as_deref_mut()) {
            parts.take(ticket, vectors);
        }
    }

    /// Fails the request that asked for an image.
    fn fail_image(&mut self, ticket: Ticket, reason: &str) {
        let vision = self.vision.as_mut();
        let seq = vision.and_then(|vision| vision.tickets.remove(&ticket));
        let Some(seq) = seq else {
            return;
        };
        let parts = self.requests[seq].vision.as_deref();
        let index = parts.and_then(|parts| parts.index_of(ticket)).unwrap_or(0);
        let error = FieldError::new("images", format!("images[{index}] {reason}"));
        self.fail(seq, error.into());
    }

    /// Asks for the vectors that candidates lack, in their order, as far as the limit allows. Notes a chunked request that
    /// lacks vectors.
    pub(super) fn start_encodings(&mut self, demands: Vec<EncodeDemand>) {
        for EncodeDemand { seq, cached_tokens } in demands {
            let Some(vision) = &mut self.vision else {
                return;
            };
            let sequence = self.requests.get_mut(seq);
            let Some(sequence) = sequence.filter(|it| !it.has_ended) else {
                continue;
            };
            if sequence.phase != Phase::Waiting {
                // With a step in flight, the plan after that step demands the vectors again.
                if sequence.rows_in_flight == 0 {
                    vision.lacking = Some(seq);
                    self.pipeline.note_change();
                }
                continue;
            }
            let (Some(parts), Some(images)) =
                (sequence.vision.as_deref_mut(), &sequence.request.images)
            else {
                continue;
            };
            let (wanted, has) = parts.wanted_after(cached_tokens);
            // A request that has some gets all: two that have a part each could otherwise wait for each other.
            if has == 0 && !vision.has_room(wanted) {
                vision.full_at = Some(vision.n_releases);
                parts.turn_away(vision.n_releases);
                if self.pipeline.is_drained() {
                    // No end of a step leads to the plan that considers the candidates after these.
                    self.pipeline.note_change();
                }
                continue;
            }
            vision.n_vectors += wanted;
            let (next_ticket, tickets) = (&mut vision.next_ticket, &mut vision.tickets);
            let orders = parts.ask_after(cached_tokens, images, || {
                *next_ticket += 1;
                let ticket = Ticket::new(*next_ticket);
                tickets.insert(ticket, seq);
                ticket
            });
            vision.orders.extend(orders);
        }
    }

    /// Releases the vectors and orders of a request that ends, starts over, or has its prefill planned.
    pub(super) fn release_vectors(&mut self, seq: SeqId) {
        let Some(vision) = &mut self.vision else {
            return;
        };
        let sequence = self.requests.get_mut(seq);
        let parts = sequence.and_then(|sequence| sequence.vision.as_deref_mut());
        if parts.is_some_and(|parts| vision.release(parts)) {
            self.pipeline.note_change();
        }
    }

    /// Stops all encodings after a lost step, which may have computed a part of them wrongly. Requests that wait give up
    /// their vectors too: in a trial only the suspect runs, and needs the room.
    pub(super) fn drop_encodings(&mut self) {
        let Some(vision) = &mut self.vision else {
            return;
        };
        vision.running = None;
        vision.due = None;
        vision.lacking = None;
        let holders = self.requests.iter();
        let holders = holders.filter(|(_, sequence)| sequence.vision.is_some());
        let holders: Vec<SeqId> = holders.map(|(seq, _)| seq).collect();
        for seq in holders {
            self.release_vectors(seq);
        }
    }

    /// Retracts the chunked request if the last plan found that it cannot continue without vectors: the store gives less
    /// than it promised, or memory does not suffice to load more.
    pub(super) fn retract_unencoded(&mut self) -> Option<Settle> {
        let seq = self.vision.as_mut()?.lacking.take()?;
        let sequence = self.requests.get_mut(seq)?;
        if self.batch.chunked() != Some(seq) || sequence.rows_in_flight > 0 {
            return None;
        }
        if let Some(parts) = sequence.vision.as_deref_mut() {
            // Otherwise the store could fail it again and again.
            parts.distrust_store();
        }
        self.discard_fetch(seq);
        let settle = self.release_for_restart(seq);
        self.queue_retracted(seq);
        self.batch.set_full(false);
        self.pipeline.note_change();
        settle
    }

    /// Whether a request waits for vectors, or for room for them: no plan can admit it.
    pub(super) fn awaits_vectors(&self, sequence: &Sequence) -> bool {
        let (Some(vision), Some(parts)) = (&self.vision, &sequence.vision) else {
            return false;
        };
        parts.is_waiting() || parts.was_turned_away(vision.n_releases)
    }

    /// Vectors that requests have asked for or hold, and tickets without an answer, for checks in tests.
    pub fn wanted_vectors(&self) -> (usize, usize) {
        let vision = self.vision.as_ref();
        vision.map_or((0, 0), |vision| (vision.n_vectors, vision.tickets.len()))
    }

    /// Notes the images of a new request that have no vectors.
    pub(super) fn note_images(&self, sequence: &mut Sequence) {
        if self.vision.is_some() {
            sequence.vision = SequenceVision::of(&sequence.request);
        }
    }

    /// The ends of a request's images without vectors.
    pub(super) fn unencoded(&self, seq: SeqId) -> SmallVec<[u32; 2]> {
        let parts = self.requests[seq].vision.as_deref();
        parts.map_or_else(SmallVec::new, SequenceVision::missing)
    }
}
