//! Makes the messages of a plan actix messages; `souffleur_actors::messages` lists their senders and receivers.

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
