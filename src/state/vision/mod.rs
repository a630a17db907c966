//! The encodings of images: which image the vision tower encodes next, and the vectors of the images before.
//!
//! A request asks for the vectors of an image under a ticket, which pins them until it is released. Tickets with one
//! digest share one encoding. Images are encoded one at a time, in the order of their first tickets. Vectors without a
//! ticket stay cached, least recently used first to go, as long as all vectors fit into the limit. Pinned vectors are
//! never dropped: the scheduler bounds their number.
//!
//! Nothing here reads pixels or vectors.

mod held;

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::prompt_images::{ImageDigest, ImageInput};
use crate::prompt_vectors::PromptVectors;
use held::Held;
use souffleur_base::ids::Ticket;

/// An order of the scheduler.
#[derive(Clone, Debug)]
pub enum VisionOrder {
    /// Asks for the vectors of an image; [`VisionNews::Encoded`] or [`VisionNews::Failed`] is the answer.
    Encode { ticket: Ticket, image: WantedImage },
    /// The request needs the vectors no more, or its order. Nothing is answered.
    Release { ticket: Ticket },
}

#[derive(Clone, Debug)]
pub struct WantedImage {
    pub digest: ImageDigest,
    pub n_vectors: usize,
    /// `None` in a replay of a message log, which encodes nothing.
    pub input: Option<Arc<dyn ImageInput>>,
}

/// An image that the steps encode, unit by unit.
#[derive(Clone, Debug)]
pub struct Encoding {
    /// Names the encoding. A later one has a larger number.
    pub job: Ticket,
    /// Floating-point operations of each unit of the tower's work, in order; not empty.
    pub work: Arc<[u64]>,
    /// The tickets that waited for it when it began.
    pub tickets: SmallVec<[Ticket; 2]>,
    pub input: Option<Arc<dyn ImageInput>>,
}

/// News for the scheduler.
#[derive(Clone, Debug)]
pub enum VisionNews {
    /// Steps encode this image from now on, and no other; `None`: no image.
    Run(Option<Encoding>),
    Encoded {
        tickets: SmallVec<[Ticket; 2]>,
        /// `None` in a replay.
        vectors: Option<Arc<PromptVectors>>,
    },
    Failed {
        tickets: SmallVec<[Ticket; 2]>,
        reason: String,
    },
}

/// How the vectors of an image are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// They are in memory.
    Held,
    /// Another ticket waits for them already.
    Shared,
    /// The image will be encoded.
    New,
    /// They will not be there.
    Refused,
}

pub struct Encodings {
    /// Images that wait for their vectors, with their tickets.
    waiting: FxHashMap<ImageDigest, Waiting>,
    /// The order of the images in `waiting`, less the one that runs. Those whose tickets were released may be in it.
    queue: VecDeque<(u64, ImageDigest)>,
    running: Option<(Ticket, ImageDigest)>,
    held: Held,
    /// The image of each ticket.
    tickets: FxHashMap<Ticket, ImageDigest>,
    /// The next number of a job, or of a place in the queue.
    next: u64,
    news: Vec<VisionNews>,
}

struct Waiting {
    /// The image's place in the queue.
    place: u64,
    tickets: SmallVec<[Ticket; 2]>,
    work: Arc<[u64]>,
    n_vectors: usize,
    input: Option<Arc<dyn ImageInput>>,
}

impl Encodings {
    /// No images; at most `limit_bytes` of vectors stay without a ticket.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            waiting: FxHashMap::default(),
            queue: VecDeque::new(),
            running: None,
            held: Held::new(limit_bytes),
            tickets: FxHashMap::default(),
            next: 0,
            news: Vec::new(),
        }
    }

    /// Takes an order to encode an image. `work` returns the operations of each unit of the tower's work; it is called
    /// only if the vectors must be computed. An image without work fails, and one with another number of vectors than
    /// an image with its digest had before.
    pub fn encode(
        &mut self,
        ticket: Ticket,
        image: WantedImage,
        work: impl FnOnce(Option<&dyn ImageInput>) -> Arc<[u64]>,
    ) -> Found {
        let WantedImage {
            digest,
            n_vectors,
            input,
        } = image;
        if let Some(had) = self.vectors_of(&digest)
            && had != n_vectors
        {
            self.refuse(ticket, wrong_number(had, n_vectors));
            return Found::Refused;
        }
        if let Some(vectors) = self.held.pin(&digest) {
            self.tickets.insert(ticket, digest);
            self.news.push(VisionNews::Encoded {
                tickets: SmallVec::from_slice(&[ticket]),
                vectors: Some(vectors),
            });
            return Found::Held;
        }
        if let Some(waiting) = self.waiting.get_mut(&digest) {
            self.tickets.insert(ticket, digest);
            waiting.tickets.push(ticket);
            return Found::Shared;
        }
        let work = work(input.as_deref());
        if work.is_empty() {
            self.refuse(
                ticket,
                "has no part that the vision tower encodes".to_owned(),
            );
            return Found::Refused;
        }
        self.tickets.insert(ticket, digest);
        self.next += 1;
        let waiting = Waiting {
            place: self.next,
            tickets: SmallVec::from_slice(&[ticket]),
            work,
            n_vectors,
            input,
        };
        self.queue.push_back((waiting.place, digest));
        self.waiting.insert(digest, waiting);
        self.run_next();
        Found::New
    }

    /// The number of an image's vectors, if the image is known.
    fn vectors_of(&self, digest: &ImageDigest) -> Option<usize> {
        let waiting = self.waiting.get(digest);
        let waiting = waiting.map(|waiting| waiting.n_vectors);
        waiting.or_else(|| self.held.vectors_of(digest))
    }

    fn refuse(&mut self, ticket: Ticket, reason: String) {
        self.news.push(VisionNews::Failed {
            tickets: SmallVec::from_slice(&[ticket]),
            reason,
        });
    }

    /// Releases a ticket. An image that no other ticket waits for is not encoded, even if it was begun.
    pub fn release(&mut self, ticket: Ticket) {
        let Some(digest) = self.tickets.remove(&ticket) else {
            return;
        };
        let Some(waiting) = self.waiting.get_mut(&digest) else {
            return self.held.unpin(&digest);
        };
        waiting.tickets.retain(|other| *other != ticket);
        if !waiting.tickets.is_empty() {
            return;
        }
        self.waiting.remove(&digest);
        if self.running.is_some_and(|(_, running)| running == digest) {
            self.running = None;
            self.run_next();
            if self.running.is_none() {
                self.news.push(VisionNews::Run(None));
            }
        }
    }

    /// Takes the end of an encoding; false if it was stopped meanwhile, and its result is dropped.
    pub fn encoded(&mut self, job: Ticket, result: Result<Arc<PromptVectors>, String>) -> bool {
        let Some((_, digest)) = self.running.take_if(|(running, _)| *running == job) else {
            return false;
        };
        if let Some(waiting) = self.waiting.remove(&digest) {
            let Waiting {
                tickets, n_vectors, ..
            } = waiting;
            let result = result.and_then(|vectors| match vectors.len() {
                got if got == n_vectors => Ok(vectors),
                got => Err(wrong_number(got, n_vectors)),
            });
            self.news.push(match result {
                Ok(vectors) => {
                    self.held.insert(digest, vectors.clone(), tickets.len());
                    VisionNews::Encoded {
                        tickets,
                        vectors: Some(vectors),
                    }
                }
                Err(reason) => {
                    for ticket in &tickets {
                        self.tickets.remove(ticket);
                    }
                    VisionNews::Failed { tickets, reason }
                }
            });
        }
        self.run_next();
        true
    }

    /// Begins the next encoding, unless one runs.
    fn run_next(&mut self) {
        while self.running.is_none() {
            let Some((place, digest)) = self.queue.pop_front() else {
                return;
            };
            let waiting = self.waiting.get(&digest);
            let Some(waiting) = waiting.filter(|waiting| waiting.place == place) else {
                continue;
            };
            self.next += 1;
            let job = Ticket::new(self.next);
            self.running = Some((job, digest));
            self.news.push(VisionNews::Run(Some(Encoding {
                job,
                work: waiting.work.clone(),
                tickets: waiting.tickets.clone(),
                input: waiting.input.clone(),
            })));
        }
    }

    pub fn take_news(&mut self) -> Vec<VisionNews> {
        std::mem::take(&mut self.news)
    }

    /// Images that wait for their vectors, the one that is being encoded included.
    pub fn n_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Images whose vectors are in memory, and the bytes of these vectors.
    pub fn held(&self) -> (usize, usize) {
        self.held.size()
    }
}

/// Continues a sentence about an image.
fn wrong_number(got: usize, wanted: usize) -> String {
    format!("is encoded to {got} vectors, but has {wanted} positions in the prompt")
}

#[cfg(test)]
mod tests;
