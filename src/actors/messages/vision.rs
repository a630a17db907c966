//! The messages from and to the Vision actor.

use actix::Message;

use souffleur_executor::vision::EncodedImage;
use souffleur_state::vision::{VisionNews, VisionOrder};

/// Scheduler -> Vision, when requests need vectors of images, or need them no more. Each `Encode` is answered once by
/// `VisionTold`, unless its ticket is released before.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct VisionOrders {
    /// The orders, to be applied in this order.
    pub orders: Vec<VisionOrder>,
}

/// Executor thread -> Vision, once per image whose last slice has run, before the `StepDone` of that step.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct ImageEncoded(pub EncodedImage);

/// Vision -> Scheduler, after orders and encodings: the image that steps encode next, and vectors.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct VisionTold {
    /// The news, to be applied in this order; not empty.
    pub news: Vec<VisionNews>,
}
