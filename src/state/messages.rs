//! actix `Message` implementations for the legs of a plan; `souffleur_actors::messages` lists senders and receivers.

use actix::Message;

use crate::plan::probe::{PrefixesProbed, ProbePrefixes};
use crate::plan::{PlanStep, ReservePages, StepPlanned};

impl Message for Box<ProbePrefixes> {
    type Result = ();
}

impl Message for Box<PrefixesProbed> {
    type Result = ();
}

impl Message for Box<PlanStep> {
    type Result = ();
}

impl Message for Box<ReservePages> {
    type Result = ();
}

impl Message for Box<StepPlanned> {
    type Result = ();
}
