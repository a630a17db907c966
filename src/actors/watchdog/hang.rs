//! The Watchdog's part in the watch of threads: it beats for its Arbiter, and ends an engine with a thread that hangs.

use std::sync::Arc;

use actix::{AsyncContext, Context, Handler};

use super::Watchdog;
use crate::beats::{Alarm, Hang, Watch, Watched};

impl Watchdog {
    pub(super) fn watch_threads(&mut self, ctx: &mut Context<Self>) {
        let beats = &self.blueprint.beats;
        let Some(every) = beats.interval() else {
            return;
        };
        beats.control.work();
        ctx.run_interval(every, |watchdog, _| watchdog.blueprint.beats.control.beat());
        let alarm = Alarm {
            failure: Arc::downgrade(&self.failure),
            doors: self.doors.clone(),
            watchdog: ctx.address().recipient(),
        };
        self.watch = Watch::start(beats, alarm, &self.blueprint.model_name);
    }
}

impl Handler<Hang> for Watchdog {
    type Result = ();

    /// Ends the engine, without waiting for the thread that hangs.
    fn handle(&mut self, Hang(thread): Hang, ctx: &mut Context<Self>) {
        match thread {
            Watched::Executor(unit) => self.replica(unit).executor = None,
            Watched::Tokenizer => self.tokenizer = None,
            // It has continued, too late.
            Watched::Control => (),
        }
        self.stop_all(ctx);
    }
}
