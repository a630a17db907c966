//! The RadixCache actor, the only owner of the prefix tree: runs the tree's part of each plan, and answers queries.

use std::time::{Duration, Instant};

use actix::{Actor, AsyncContext, Context, Handler};

use crate::death::{DeathNote, StopActor, stop_actor};
use crate::mailbox::{Mailbox, Posted};
use crate::messages::{PeekPrefix, PlanStep, PrefixesProbed, ProbePrefixes, ReservePages};
use souffleur_kv_events::ChangeFeed;
use souffleur_metrics::CacheMetrics;
use souffleur_state::cache::radix_tree::RadixTree;
use souffleur_state::control::plan_step;
use souffleur_state::control::probe_prefixes;

/// Interval between calls of the feed while the publisher of events has to catch up.
const FEED_INTERVAL: Duration = Duration::from_millis(10);

pub struct RadixCache {
    cache: RadixTree,
    allocator: Mailbox<Box<ReservePages>>,
    /// `None` in a prefix index without an engine.
    scheduler: Option<Mailbox<Box<PrefixesProbed>>>,
    feed: Option<ChangeFeed>,
    /// A timer for the next call of the feed is set.
    is_feed_scheduled: bool,
    metrics: CacheMetrics,
    note: DeathNote,
}

impl RadixCache {
    pub fn new(cache: RadixTree, allocator: Mailbox<Box<ReservePages>>, note: DeathNote) -> Self {
        Self {
            cache,
            allocator,
            scheduler: None,
            feed: None,
            is_feed_scheduled: false,
            metrics: CacheMetrics::register(),
            note,
        }
    }

    pub fn with_scheduler(self, scheduler: Mailbox<Box<PrefixesProbed>>) -> Self {
        Self {
            scheduler: Some(scheduler),
            ..self
        }
    }

    pub fn with_feed(mut self, feed: Option<ChangeFeed>) -> Self {
        if feed.is_some() {
            self.cache.restart_changes();
        }
        Self { feed, ..self }
    }

    fn feed(&mut self, ctx: &mut Context<Self>) {
        let Some(feed) = &mut self.feed else {
            return;
        };
        if feed.pass_on(&mut self.cache) && !self.is_feed_scheduled {
            self.is_feed_scheduled = true;
            ctx.run_later(FEED_INTERVAL, |this, ctx| {
                this.is_feed_scheduled = false;
                this.feed(ctx);
            });
        }
    }
}

impl Actor for RadixCache {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.feed(ctx);
    }
}

impl Handler<Posted<Box<PlanStep>>> for RadixCache {
    type Result = ();

    fn handle(&mut self, posted: Posted<Box<PlanStep>>, ctx: &mut Context<Self>) {
        let (plan, _timer) = posted.open();
        let started = Instant::now();
        let reserve = plan_step(&mut self.cache, *plan);
        if reserve.verdict.evicted_tokens > 0 {
            let tokens = reserve.verdict.evicted_tokens as u64;
            self.metrics
                .evicted(tokens, started.elapsed().as_secs_f64());
        }
        self.allocator.post(Box::new(reserve));
        self.feed(ctx);
    }
}

impl Handler<Posted<Box<ProbePrefixes>>> for RadixCache {
    type Result = ();

    fn handle(&mut self, posted: Posted<Box<ProbePrefixes>>, ctx: &mut Context<Self>) {
        let (probe, _timer) = posted.open();
        let probed = Box::new(probe_prefixes(&mut self.cache, *probe));
        self.scheduler
            .as_ref()
            .expect("the radix cache actor must know the scheduler before a probe arrives")
            .post(probed);
        self.feed(ctx);
    }
}

impl Handler<PeekPrefix> for RadixCache {
    type Result = usize;

    fn handle(&mut self, peek: PeekPrefix, _: &mut Context<Self>) -> usize {
        let both = peek.namespace.with_and_without_long_rotation();
        let cached = both.map(|namespace| self.cache.peek(&namespace, &peek.tokens));
        cached[0].max(cached[1])
    }
}

impl Handler<StopActor> for RadixCache {
    type Result = ();

    fn handle(&mut self, _: StopActor, ctx: &mut Context<Self>) {
        stop_actor(&mut self.note, ctx);
    }
}
