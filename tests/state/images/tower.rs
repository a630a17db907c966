//! The queue of images, the messages to and from it, and the tower.

use std::collections::VecDeque;

use souffleur_base::error::StepError;
use souffleur_base::ids::Ticket;
use souffleur_state::prompt_vectors::PromptVectors;
use souffleur_state::scheduler::Scheduler;
use souffleur_state::step::VisionSlice;
use souffleur_state::vision::{Encodings, Found, VisionNews, VisionOrder};

use super::prompts::{BROKEN, picture_of, vectors_of};

/// Operations of a unit of the tower's work; an image has `UNITS` units.
const UNIT: u64 = 1000;
const UNITS: usize = 3;
/// Before a measurement a slice has a quarter of the operations of a chunk: two units with chunks of 16 tokens.
pub const FLOPS_PER_TOKEN: u64 = 500;

/// A planted mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A release does not arrive.
    LostRelease,
    /// The news that an image is encoded does not arrive.
    LostNews,
    /// An image gets the vectors of another one.
    OtherVectors,
    /// The vectors that an image gets are in another order.
    OtherOrder,
    /// A unit of the work is skipped.
    LostUnit,
}

pub struct Tower {
    pub encodings: Encodings,
    /// Messages on their way from the scheduler, to the scheduler, and from the executor.
    orders: VecDeque<VisionOrder>,
    news: VecDeque<VisionNews>,
    done: VecDeque<(Ticket, u8)>,
    /// The image in work, and its units that are done.
    job: Option<(Ticket, u32)>,
    /// The pictures that were encoded, in order.
    pub encoded: Vec<u8>,
    pub mistake: Option<Mistake>,
}

impl Tower {
    /// No images; this many bytes of vectors stay without a ticket.
    pub fn new(cache_bytes: usize) -> Self {
        Self {
            encodings: Encodings::new(cache_bytes),
            orders: VecDeque::new(),
            news: VecDeque::new(),
            done: VecDeque::new(),
            job: None,
            encoded: Vec::new(),
            mistake: None,
        }
    }

    /// Takes the scheduler's orders, which are on their way from now on.
    pub fn take_orders(&mut self, scheduler: &mut Scheduler) {
        self.orders.extend(scheduler.take_vision_orders());
    }

    /// Makes the next planted mistake if it is this one.
    fn errs(&mut self, mistake: Mistake) -> bool {
        self.mistake
            .take_if(|planted| *planted == mistake)
            .is_some()
    }

    /// Delivers the oldest message of a channel, 0 to 2, or of the next one that has any; false if there is none.
    pub fn deliver(&mut self, channel: usize, scheduler: &mut Scheduler) -> bool {
        (channel..channel + 3).any(|channel| match channel % 3 {
            0 => self.deliver_order(),
            1 => self.deliver_encoded(),
            _ => self.deliver_news(scheduler),
        })
    }

    fn deliver_order(&mut self) -> bool {
        let Some(order) = self.orders.pop_front() else {
            return false;
        };
        match order {
            VisionOrder::Encode { ticket, image } => {
                let found = self
                    .encodings
                    .encode(ticket, image, |_| [UNIT; UNITS].into());
                assert_ne!(found, Found::Refused);
            }
            VisionOrder::Release { .. } if self.errs(Mistake::LostRelease) => {}
            VisionOrder::Release { ticket } => self.encodings.release(ticket),
        }
        self.news.extend(self.encodings.take_news());
        true
    }

    fn deliver_encoded(&mut self) -> bool {
        let Some((job, picture)) = self.done.pop_front() else {
            return false;
        };
        let result = if picture >= BROKEN {
            Err("is broken".to_owned())
        } else {
            Ok(vectors_of(picture))
        };
        let is_ok = result.is_ok();
        if self.encodings.encoded(job, result) && is_ok {
            self.encoded.push(picture);
        }
        self.news.extend(self.encodings.take_news());
        true
    }

    fn deliver_news(&mut self, scheduler: &mut Scheduler) -> bool {
        let Some(news) = self.news.pop_front() else {
            return false;
        };
        if matches!(news, VisionNews::Encoded { .. }) && self.errs(Mistake::LostNews) {
            return true;
        }
        scheduler.vision_told(self.with_mistake(news));
        true
    }

    /// Replaces vectors if such a mistake is planted.
    fn with_mistake(&mut self, news: VisionNews) -> VisionNews {
        let (tickets, vectors) = match news {
            VisionNews::Encoded {
                tickets,
                vectors: Some(vectors),
            } => (tickets, vectors),
            other => return other,
        };
        let width = vectors.width();
        let mut values = vectors.values(0..vectors.len()).to_vec();
        if self.errs(Mistake::OtherVectors) {
            values
                .iter_mut()
                .step_by(width)
                .for_each(|picture| *picture += 1.0);
        }
        if self.errs(Mistake::OtherOrder) {
            values.rotate_left(width);
        }
        let vectors = PromptVectors::new(width, values);
        VisionNews::Encoded {
            tickets,
            vectors: Some(vectors.expect("valid vectors").into()),
        }
    }

    /// Runs a step's slice.
    ///
    /// # Errors
    /// Units before the slice are missing, as after a lost step.
    pub fn run(&mut self, slice: &VisionSlice) -> Result<(), StepError> {
        if self.errs(Mistake::LostUnit) {
            self.job = None;
            return Ok(());
        }
        let units = slice.units.clone();
        // The first unit begins an image anew.
        let done = match self.job {
            Some((job, done)) if job == slice.job && units.start > 0 => done,
            _ => 0,
        };
        if units.start != done || units.is_empty() || slice.n_units != UNITS as u32 {
            return Err(StepError::Lost(format!(
                "a slice has the units {units:?} of {}, {done} are done",
                slice.n_units
            )));
        }
        self.job = Some((slice.job, units.end));
        if units.end == slice.n_units {
            let input = slice.input.as_deref().expect("the pixels");
            self.done.push_back((slice.job, picture_of(input)));
            self.job = None;
        }
        Ok(())
    }

    /// Forgets the image in work, as an executor does after a lost step.
    pub fn forget(&mut self) {
        self.job = None;
    }
}
