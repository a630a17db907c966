//! The Router's handlers of hosts' messages: they go to all replicas, or to the one that has the prefix.

use std::pin::Pin;
use std::sync::Arc;

use actix::dev::{MessageResponse, OneshotSender};
use actix::{
    ActorFutureExt, AsyncContext, Context, Handler, MailboxError, Message, ResponseFuture,
    WrapFuture,
};

use super::{Router, each};
use crate::doors::Doors;
use crate::messages::{
    EngineView, FlushCache, GetLoad, GetLoads, GetLocks, GetStats, GetView, PeekPrefix, PinPrefix,
    PinSoftly, PoliciesSet, PrefixPinned, SetPaused, SetPolicy, TakeTreeNotes, TreeNotes,
    UnpinPrefix, UnpinSoftly, ViewedRequests,
};
use souffleur_base::error::RequestError;
use souffleur_metrics::EngineLoad;
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::scheduler::CacheFlushed;
use souffleur_state::scheduler::stats::EngineStats;

impl Router {
    fn running(&self) -> impl Iterator<Item = &Doors> {
        self.replicas.iter().filter_map(Option::as_deref)
    }

    /// Asks the replicas that run, in the order of their ids.
    fn ask<F>(&self, ask: impl Fn(&Doors) -> F) -> Vec<F> {
        self.running().map(ask).collect()
    }

    /// Asks each replica that runs how much of a prefix it has cached. Returns the addresses of the one that has most,
    /// with its index.
    fn nearest(
        &self,
        namespace: &Namespace,
        tokens: &Arc<[u32]>,
    ) -> impl Future<Output = Option<(usize, Box<Doors>)>> + use<> {
        let replicas = self.replicas.iter().enumerate();
        let running = replicas.filter_map(|(index, doors)| Some((index, doors.as_ref()?)));
        let asked = running.map(|(index, doors)| {
            let peek = PeekPrefix {
                namespace: namespace.clone(),
                tokens: tokens.clone(),
            };
            (index, doors.clone(), doors.peek.send(peek))
        });
        let asked: Vec<_> = asked.collect();
        async move {
            let mut nearest: Option<(usize, usize, Box<Doors>)> = None;
            for (index, doors, cached) in asked {
                let Ok(cached) = cached.await else {
                    continue;
                };
                if nearest.as_ref().is_none_or(|(most, ..)| cached > *most) {
                    nearest = Some((cached, index, doors));
                }
            }
            nearest.map(|(_, index, doors)| (index, doors))
        }
    }
}

/// An answer to a host; `None` if no replica has answered. Then the host's message fails like one to a dead actor.
pub struct Answer<T>(Pin<Box<dyn Future<Output = Option<T>>>>);

impl<T> Answer<T> {
    fn new(answer: impl Future<Output = Option<T>> + 'static) -> Self {
        Self(Box::pin(answer))
    }
}

impl<M: Message> MessageResponse<Router, M> for Answer<M::Result> {
    fn handle(self, _: &mut Context<Router>, host: Option<OneshotSender<M::Result>>) {
        actix::spawn(async move {
            if let (Some(answer), Some(host)) = (self.0.await, host) {
                // The host may be gone.
                let _ = host.send(answer);
            }
        });
    }
}

/// The answers of the replicas that lived long enough.
async fn answers<T>(asked: Vec<impl Future<Output = Result<T, MailboxError>>>) -> Vec<T> {
    let mut answers = Vec::with_capacity(asked.len());
    for asked in asked {
        answers.extend(asked.await.ok());
    }
    answers
}

fn down() -> RequestError {
    RequestError::EngineDown("no replica runs: try again later".to_owned())
}

impl Handler<PeekPrefix> for Router {
    type Result = Answer<usize>;

    fn handle(&mut self, peek: PeekPrefix, _: &mut Context<Self>) -> Self::Result {
        let asked = self.ask(|doors| {
            doors.peek.send(PeekPrefix {
                namespace: peek.namespace.clone(),
                tokens: peek.tokens.clone(),
            })
        });
        Answer::new(async move { answers(asked).await.into_iter().max() })
    }
}

impl Handler<PinPrefix> for Router {
    type Result = ResponseFuture<Result<PrefixPinned, RequestError>>;

    /// The number of the pin tells its replica.
    fn handle(&mut self, pin: PinPrefix, _: &mut Context<Self>) -> Self::Result {
        let nearest = self.nearest(&pin.namespace, &pin.tokens);
        let n_replicas = self.replicas.len() as u64;
        Box::pin(async move {
            let (index, doors) = nearest.await.ok_or_else(down)?;
            let pinned = doors.pin.send(pin).await.map_err(|_| down())??;
            Ok(PrefixPinned {
                pin: pinned.pin * n_replicas + index as u64,
                ..pinned
            })
        })
    }
}

impl Handler<UnpinPrefix> for Router {
    type Result = Answer<bool>;

    /// A replica that is started again has its pins again, so a pin of one that does not run may still exist.
    fn handle(&mut self, unpin: UnpinPrefix, _: &mut Context<Self>) -> Self::Result {
        let n_replicas = self.replicas.len() as u64;
        let (pin, index) = (unpin.pin / n_replicas, unpin.pin % n_replicas);
        let doors = self.replicas[index as usize].as_deref();
        let asked = doors.map(|doors| doors.unpin.send(UnpinPrefix { pin }));
        Answer::new(async move { asked?.await.ok() })
    }
}

impl Handler<PinSoftly> for Router {
    type Result = ();

    fn handle(&mut self, pin: PinSoftly, ctx: &mut Context<Self>) {
        self.pinning.insert(pin.name);
        let nearest = self.nearest(&pin.namespace, &pin.tokens).into_actor(self);
        ctx.spawn(nearest.map(move |nearest, router, _| {
            // It may have been released meanwhile.
            let is_wanted = router.pinning.remove(&pin.name);
            let Some((index, doors)) = nearest.filter(|_| is_wanted) else {
                return;
            };
            // The replaced pin may be in another replica.
            let others = router.replicas.iter().enumerate();
            let others = others.filter(|(other, _)| *other != index);
            let others = others.filter_map(|(_, doors)| doors.as_deref());
            if let Some(name) = pin.replaces {
                others.for_each(|doors| doors.unpin_softly.do_send(UnpinSoftly { name }));
            }
            doors.pin_softly.do_send(pin);
        }));
    }
}

impl Handler<UnpinSoftly> for Router {
    type Result = ();

    /// A Scheduler ignores a pin that it does not have.
    fn handle(&mut self, unpin: UnpinSoftly, _: &mut Context<Self>) {
        let UnpinSoftly { name } = unpin;
        self.pinning.remove(&name);
        for doors in self.running() {
            doors.unpin_softly.do_send(UnpinSoftly { name });
        }
    }
}

impl Handler<SetPolicy> for Router {
    type Result = ResponseFuture<Result<PoliciesSet, RequestError>>;

    /// All replicas accept the same names.
    fn handle(&mut self, set: SetPolicy, _: &mut Context<Self>) -> Self::Result {
        let asked = self.ask(|doors| {
            doors.set_policy.send(SetPolicy {
                schedule_policy: set.schedule_policy.clone(),
                radix_eviction_policy: set.radix_eviction_policy.clone(),
            })
        });
        Box::pin(async move {
            let set: Result<Vec<PoliciesSet>, RequestError> =
                answers(asked).await.into_iter().collect();
            set?.pop().ok_or_else(down)
        })
    }
}

impl Handler<FlushCache> for Router {
    type Result = ResponseFuture<Result<CacheFlushed, RequestError>>;

    /// Refuses without flushing any replica if one has requests.
    fn handle(&mut self, _: FlushCache, _: &mut Context<Self>) -> Self::Result {
        let asked = self.ask(|doors| doors.stats.send(GetStats));
        let flush = self.ask(|doors| doors.flush.clone());
        Box::pin(async move {
            let stats = EngineStats::sum(&answers(asked).await);
            let (running, waiting) = (stats.running_requests, stats.waiting_requests);
            if running + waiting > 0 {
                return Err(RequestError::Busy { running, waiting });
            }
            let asked = flush.iter().map(|flush| flush.send(FlushCache)).collect();
            let mut flushed = answers(asked).await.into_iter();
            let mut sum = flushed.next().ok_or_else(down)??;
            for flushed in flushed {
                let flushed = flushed?;
                sum.flushed_tokens += flushed.flushed_tokens;
                sum.flushed_pages += flushed.flushed_pages;
                sum.kept_tokens += flushed.kept_tokens;
            }
            Ok(sum)
        })
    }
}

impl Handler<SetPaused> for Router {
    type Result = Answer<()>;

    fn handle(&mut self, set: SetPaused, _: &mut Context<Self>) -> Self::Result {
        let SetPaused { paused } = set;
        let asked = self.ask(|doors| doors.pause.send(SetPaused { paused }));
        Answer::new(async move {
            let paused = answers(asked).await;
            (!paused.is_empty()).then_some(())
        })
    }
}

impl Handler<GetStats> for Router {
    type Result = Answer<EngineStats>;

    fn handle(&mut self, _: GetStats, _: &mut Context<Self>) -> Self::Result {
        let asked = self.ask(|doors| doors.stats.send(GetStats));
        Answer::new(async move {
            let stats = answers(asked).await;
            (!stats.is_empty()).then(|| EngineStats::sum(&stats))
        })
    }
}

impl Handler<GetLoad> for Router {
    type Result = Answer<EngineLoad>;

    fn handle(&mut self, _: GetLoad, _: &mut Context<Self>) -> Self::Result {
        let asked = self.ask(|doors| doors.load.send(GetLoad));
        Answer::new(async move {
            let loads = answers(asked).await;
            (!loads.is_empty()).then(|| EngineLoad::sum(&loads))
        })
    }
}

impl Handler<GetLoads> for Router {
    type Result = Answer<Vec<Option<EngineLoad>>>;

    fn handle(&mut self, _: GetLoads, _: &mut Context<Self>) -> Self::Result {
        let replicas = self.replicas.iter().map(Option::as_deref);
        let ask = |doors: &Doors| doors.load.send(GetLoad);
        let asked = each(replicas.map(|doors| doors.map(ask)).collect());
        Answer::new(async move {
            let loads = asked.await;
            loads.iter().any(Option::is_some).then_some(loads)
        })
    }
}

impl Handler<GetView> for Router {
    type Result = Answer<Box<EngineView>>;

    /// The requests and pins of all replicas; the steps and pools of the first one.
    fn handle(&mut self, view: GetView, _: &mut Context<Self>) -> Self::Result {
        let GetView {
            steps_after,
            requests,
        } = view;
        let asked = self.ask(|doors| {
            doors.view.send(GetView {
                steps_after,
                requests: requests.clone(),
            })
        });
        let most = match requests {
            ViewedRequests::First(most) => most,
            ViewedRequests::One(_) => usize::MAX,
        };
        Answer::new(async move {
            let mut views = answers(asked).await.into_iter();
            let mut whole = views.next()?;
            let mut stats = vec![whole.stats];
            for view in views {
                let view = *view;
                stats.push(view.stats);
                whole.output_tokens += view.output_tokens;
                whole.requests.extend(view.requests);
                whole.n_requests += view.n_requests;
                whole.pins.extend(view.pins);
            }
            whole.stats = EngineStats::sum(&stats);
            whole.requests.truncate(most);
            Some(whole)
        })
    }
}

impl Handler<TakeTreeNotes> for Router {
    type Result = ResponseFuture<TreeNotes>;

    /// The tree of the first replica.
    fn handle(&mut self, take: TakeTreeNotes, _: &mut Context<Self>) -> Self::Result {
        let first = self.running().next();
        let asked = first.map(|doors| doors.tree_notes.send(take));
        Box::pin(async move {
            match asked {
                Some(asked) => asked.await.unwrap_or_default(),
                None => TreeNotes::default(),
            }
        })
    }
}

impl Handler<GetLocks> for Router {
    type Result = ResponseFuture<Vec<u32>>;

    /// Answers for the nodes of the first replica.
    fn handle(&mut self, get: GetLocks, _: &mut Context<Self>) -> Self::Result {
        let unlocked = vec![0; get.nodes.len()];
        let first = self.running().next();
        let asked = first.map(|doors| doors.locks.send(get));
        Box::pin(async move {
            match asked {
                Some(asked) => asked.await.unwrap_or(unlocked),
                None => unlocked,
            }
        })
    }
}
