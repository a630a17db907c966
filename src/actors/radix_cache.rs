//! The RadixCache actor, the only owner of the prefix tree: runs the tree's part of each plan, and answers queries.

use std::time::{Duration, Instant};

use actix::{Actor, AsyncContext, Context, Handler, MessageResult};

use crate::death::{DeathNote, StopActor, stop_actor};
use crate::mailbox::{Mailbox, Posted};
use crate::messages::{
    GetLocks, PeekPrefix, PlanStep, PrefixesProbed, ProbePrefixes, ReservePages, TakeTreeNotes,
};
use crate::tree_tap::TreeTap;
use souffleur_base::in_hand;
use souffleur_chaos::{Actor as Place, Chaos, Phase, Point};
use souffleur_kv_events::ChangeFeed;
use souffleur_metrics::CacheMetrics;
use souffleur_state::cache::changes::Observer;
use souffleur_state::cache::radix_tree::RadixTree;
use souffleur_state::control::plan_step;
use souffleur_state::control::probe_prefixes;
use souffleur_state::plan::Settle;

/// Interval between calls of the feed while the publisher of events has to catch up.
const FEED_INTERVAL: Duration = Duration::from_millis(10);

pub struct RadixCache {
    cache: RadixTree,
    allocator: Mailbox<Box<ReservePages>>,
    /// `None` in a prefix index without an engine.
    scheduler: Option<Mailbox<Box<PrefixesProbed>>>,
    feed: Option<ChangeFeed>,
    /// `None` while no client watches the console.
    tap: Option<TreeTap>,
    /// A timer for the next call of the feed is set.
    is_feed_scheduled: bool,
    metrics: CacheMetrics,
    chaos: Chaos,
    note: DeathNote,
}

impl RadixCache {
    pub fn new(cache: RadixTree, allocator: Mailbox<Box<ReservePages>>, note: DeathNote) -> Self {
        Self {
            cache,
            allocator,
            scheduler: None,
            feed: None,
            tap: None,
            is_feed_scheduled: false,
            metrics: CacheMetrics::register(),
            chaos: Chaos::default(),
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
            self.cache.restart_changes(Observer::Publisher);
        }
        Self { feed, ..self }
    }

    pub fn with_chaos(self, chaos: Chaos) -> Self {
        Self { chaos, ..self }
    }

    fn strike(&self, phase: Phase, message: &'static str) {
        self.chaos.strike(Place::RadixCache, phase, message);
    }

    /// The point of each request whose K/V the plan publishes.
    fn strike_settled(&self, plan: &PlanStep) {
        if !self.chaos.is_on() {
            return;
        }
        for settle in &plan.settle {
            let (intake, key) = match settle {
                Settle::Checkpoint(checkpoint) => (checkpoint.intake, Some(&checkpoint.key)),
                Settle::Release(release) => (release.intake, release.key.as_ref()),
                Settle::Unlock(_) | Settle::Unpin(_) => continue,
            };
            let Some(key) = key else {
                continue;
            };
            in_hand::hold(intake);
            let prompt = &key.tokens[..key.prompt_len.min(key.tokens.len())];
            let has_token = |token: u32| prompt.contains(&token);
            let point = Point::new(Place::RadixCache, Phase::Middle, "Settle");
            self.chaos.strike_at(point.of_prompts(&has_token));
        }
        in_hand::clear();
    }

    fn note_for_console(&mut self) {
        if let Some(tap) = &mut self.tap
            && !tap.note(&mut self.cache)
        {
            self.tap = None;
        }
    }

    fn feed(&mut self, ctx: &mut Context<Self>) {
        self.note_for_console();
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
        self.strike(Phase::Entry, "PlanStep");
        let (plan, _timer) = posted.open();
        self.strike_settled(&plan);
        let started = Instant::now();
        let reserve = plan_step(&mut self.cache, *plan);
        self.strike(Phase::Middle, "PlanStep");
        if reserve.verdict.evicted_tokens > 0 {
            let tokens = reserve.verdict.evicted_tokens as u64;
            self.metrics
                .evicted(tokens, started.elapsed().as_secs_f64());
        }
        self.allocator.post(Box::new(reserve));
        self.feed(ctx);
        self.strike(Phase::Exit, "PlanStep");
    }
}

impl Handler<Posted<Box<ProbePrefixes>>> for RadixCache {
    type Result = ();

    fn handle(&mut self, posted: Posted<Box<ProbePrefixes>>, ctx: &mut Context<Self>) {
        self.strike(Phase::Entry, "ProbePrefixes");
        let (probe, _timer) = posted.open();
        let probed = Box::new(probe_prefixes(&mut self.cache, *probe));
        self.strike(Phase::Middle, "ProbePrefixes");
        self.scheduler
            .as_ref()
            .expect("the radix cache actor must know the scheduler before a probe arrives")
            .post(probed);
        self.feed(ctx);
        self.strike(Phase::Exit, "ProbePrefixes");
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

impl Handler<TakeTreeNotes> for RadixCache {
    type Result = MessageResult<TakeTreeNotes>;

    fn handle(&mut self, take: TakeTreeNotes, _: &mut Context<Self>) -> Self::Result {
        let reader = take.reader;
        if !self.tap.as_ref().is_some_and(|tap| tap.is_for(&reader)) {
            self.tap = Some(TreeTap::open(reader, &mut self.cache));
        }
        self.note_for_console();
        let tap = self.tap.as_mut();
        MessageResult(tap.map_or_else(Default::default, |tap| tap.take(&self.cache)))
    }
}

impl Handler<GetLocks> for RadixCache {
    type Result = MessageResult<GetLocks>;

    fn handle(&mut self, get: GetLocks, _: &mut Context<Self>) -> Self::Result {
        let nodes = get.nodes.into_iter();
        MessageResult(nodes.map(|node| self.cache.locks_of(node)).collect())
    }
}

impl Handler<StopActor> for RadixCache {
    type Result = ();

    fn handle(&mut self, _: StopActor, ctx: &mut Context<Self>) {
        stop_actor(&mut self.note, ctx);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use actix::{Addr, Message, System};

    use super::*;
    use crate::messages::TreeReader;
    use souffleur_base::ids::StepId;
    use souffleur_state::cache::eviction::EvictionPolicy;
    use souffleur_state::plan::probe::ProbeKind;
    use souffleur_state::pool::pages::{PageSize, PoolLedger};

    /// Asks whether the cache has a tap, and whether its tree records changes.
    #[derive(Message)]
    #[rtype(result = "(bool, bool)")]
    struct IsNoted;

    impl Handler<IsNoted> for RadixCache {
        type Result = MessageResult<IsNoted>;

        fn handle(&mut self, _: IsNoted, _: &mut Context<Self>) -> Self::Result {
            MessageResult((self.tap.is_some(), self.cache.records_changes()))
        }
    }

    /// Ignores the cache's messages.
    struct Sink;

    impl Actor for Sink {
        type Context = Context<Self>;
    }

    impl Handler<Posted<Box<ReservePages>>> for Sink {
        type Result = ();

        fn handle(&mut self, posted: Posted<Box<ReservePages>>, _: &mut Context<Self>) {
            drop(posted.open());
        }
    }

    impl Handler<Posted<Box<PrefixesProbed>>> for Sink {
        type Result = ();

        fn handle(&mut self, posted: Posted<Box<PrefixesProbed>>, _: &mut Context<Self>) {
            drop(posted.open());
        }
    }

    fn start() -> Addr<RadixCache> {
        let ledger = Arc::new(PoolLedger::new(PageSize::ONE));
        let tree = RadixTree::new(PageSize::ONE, EvictionPolicy::default(), ledger.clone());
        let sink = Sink.start();
        let reserve = Mailbox::of(&sink, "sink", "ReservePages");
        let probed = Mailbox::of(&sink, "sink", "PrefixesProbed");
        let note = DeathNote::unread("radix_cache", ledger);
        let cache = RadixCache::new(tree, reserve, note);
        cache.with_scheduler(probed).start()
    }

    /// Lets the cache work, and asks it.
    async fn is_noted(cache: &Addr<RadixCache>) -> (bool, bool) {
        let probes = Mailbox::of(cache, "radix_cache", "ProbePrefixes");
        probes.post(Box::new(ProbePrefixes {
            step: StepId::new(1),
            settle: Vec::new(),
            keys: Vec::new(),
            kind: ProbeKind::InBatch,
        }));
        cache.send(IsNoted).await.expect("the cache lives")
    }

    #[test]
    fn the_tree_is_noted_only_while_there_is_a_reader() {
        System::new().block_on(async {
            let cache = start();
            assert_eq!(is_noted(&cache).await, (false, false));
            for _ in 0..2 {
                let reader = Arc::new(TreeReader);
                let take = TakeTreeNotes {
                    reader: Arc::downgrade(&reader),
                };
                let notes = cache.send(take).await.expect("the cache lives");
                assert!(notes.is_restart && notes.is_whole);
                assert_eq!(is_noted(&cache).await, (true, true));
                drop(reader);
                assert_eq!(is_noted(&cache).await, (false, false));
            }
        });
    }
}
