//! The Vision actor: owns the queue of images to encode, and the cache of their vectors.
//!
//! It neither reads pixels nor computes: the executor encodes images in slices that the Scheduler plans, and sends the
//! vectors here. The actor is a part of its unit. After a death the next one begins without vectors, and the requests
//! that continue ask again.

use std::sync::Arc;

use actix::{Actor, Context, Handler};

use crate::death::{DeathNote, StopActor, stop_actor};
use crate::mailbox::{Mailbox, Posted};
use crate::messages::{ImageEncoded, VisionOrders, VisionTold};
use souffleur_chaos::{Actor as Place, Chaos, Phase};
use souffleur_metrics::VisionMetrics;
use souffleur_state::prompt_images::ImageInput;
use souffleur_state::vision::{Encodings, Found, VisionOrder};

/// The actor's name in logs, metrics and reports of deaths.
pub const VISION: &str = "vision";

/// Returns the operations of each unit of a tower's work on an image, in order.
pub type TowerWork = dyn Fn(&dyn ImageInput) -> Arc<[u64]> + Send + Sync;

/// The engine's knowledge of the executor's vision tower.
pub struct VisionSetup {
    /// Bytes of vectors that may stay in memory. Requests that wait for their prefill may hold as many.
    pub cache_bytes: usize,
    pub work: Box<TowerWork>,
    /// Floating-point operations of the text model for a token of a prompt.
    pub flops_per_token: u64,
}

pub struct Vision {
    note: DeathNote,
    setup: Arc<VisionSetup>,
    encodings: Encodings,
    scheduler: Mailbox<VisionTold>,
    metrics: VisionMetrics,
    chaos: Chaos,
}

impl Vision {
    /// An actor without images, which tells `scheduler` its news.
    pub fn new(setup: Arc<VisionSetup>, scheduler: Mailbox<VisionTold>, note: DeathNote) -> Self {
        Self {
            note,
            encodings: Encodings::new(setup.cache_bytes),
            setup,
            scheduler,
            metrics: VisionMetrics::register(),
            chaos: Chaos::default(),
        }
    }

    pub fn with_chaos(self, chaos: Chaos) -> Self {
        Self { chaos, ..self }
    }

    fn take(&mut self, order: VisionOrder) {
        match order {
            VisionOrder::Encode { ticket, image } => {
                let setup = &self.setup;
                let work = |input: Option<&dyn ImageInput>| {
                    input.map_or_else(Arc::default, |input| (setup.work)(input))
                };
                match self.encodings.encode(ticket, image, work) {
                    Found::Held | Found::Shared => self.metrics.reused(),
                    Found::New | Found::Refused => {}
                }
            }
            VisionOrder::Release { ticket } => self.encodings.release(ticket),
        }
    }

    fn tell(&mut self) {
        let news = self.encodings.take_news();
        if !news.is_empty() {
            self.scheduler.post(VisionTold { news });
        }
        let (_, bytes) = self.encodings.held();
        self.metrics.set_held_bytes(bytes as u64);
    }
}

impl Actor for Vision {
    type Context = Context<Self>;
}

impl Handler<Posted<VisionOrders>> for Vision {
    type Result = ();

    fn handle(&mut self, posted: Posted<VisionOrders>, _: &mut Context<Self>) {
        self.chaos
            .strike(Place::Vision, Phase::Entry, "VisionOrders");
        let (VisionOrders { orders }, _timer) = posted.open();
        for order in orders {
            self.take(order);
        }
        self.chaos
            .strike(Place::Vision, Phase::Middle, "VisionOrders");
        self.tell();
        self.chaos
            .strike(Place::Vision, Phase::Exit, "VisionOrders");
    }
}

impl Handler<Posted<ImageEncoded>> for Vision {
    type Result = ();

    fn handle(&mut self, posted: Posted<ImageEncoded>, _: &mut Context<Self>) {
        self.chaos
            .strike(Place::Vision, Phase::Entry, "ImageEncoded");
        let (ImageEncoded(image), _timer) = posted.open();
        let is_ok = image.result.is_ok();
        if let Err(reason) = &image.result {
            tracing::warn!(
                reason,
                "the vision tower failed to encode an image: its requests fail"
            );
        }
        if self.encodings.encoded(image.job, image.result) && is_ok {
            self.metrics.encoded();
        }
        self.tell();
        self.chaos
            .strike(Place::Vision, Phase::Exit, "ImageEncoded");
    }
}

impl Handler<StopActor> for Vision {
    type Result = ();

    fn handle(&mut self, _: StopActor, ctx: &mut Context<Self>) {
        stop_actor(&mut self.note, ctx);
    }
}
