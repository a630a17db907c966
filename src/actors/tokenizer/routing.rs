//! The Tokenizer's part in the choice of replicas. With one unit, no message is sent.

use actix::{Context, Handler};

use super::Tokenizer;
use crate::mailbox::Posted;
use crate::messages::{
    AdoptRequests, Adopted, GeneratedTokens, RouteNews, RouteRequest, Routed, RouterLinks,
    RouterStarted, UnitDied,
};
use souffleur_base::ids::{IntakeId, UnitId};
use souffleur_chaos::Phase;
use souffleur_state::scheduler::news::RequestTokens;
use souffleur_state::scheduler::submission::Submission;
use souffleur_state::supervision::Incarnation;

impl Tokenizer {
    /// Enters a request into the docket, and sends it to its unit, or asks the Router for one.
    pub(super) fn enter(&mut self, request: Submission, now_s: f64) {
        if !self.settings.has_replicas {
            self.estate.docket.enter(request, UnitId::FIRST, now_s);
            return self.post_due();
        }
        let asked = RouteRequest::of(&request, &[]);
        self.estate.docket.enter_unrouted(request, now_s);
        // Without a Router, the next one is asked.
        if let Some(router) = self.router_links() {
            router.route.post(asked);
        }
    }

    /// Tells the Router which requests a unit has, or all units.
    pub(super) fn let_router_adopt(&self, of_unit: Option<UnitId>) {
        let Some(router) = self.router_links() else {
            return;
        };
        let docket = &self.estate.docket;
        let routed = docket.routed().into_iter();
        let routed = routed.filter(|(_, unit, _)| of_unit.is_none_or(|of_unit| of_unit == *unit));
        let requests = routed.filter_map(|(intake, unit, is_prefilled)| {
            let entry = docket.get(intake)?;
            Some(Adopted {
                request: RouteRequest::of(entry.request(), entry.told()),
                unit,
                is_prefilled,
            })
        });
        let requests: Vec<Adopted> = requests.collect();
        if !requests.is_empty() {
            router.adopt.post(AdoptRequests { requests });
        }
    }

    pub(super) fn tell_router_of_end(&self, intake: IntakeId) {
        if let Some(router) = self.router_links() {
            router.news.post(RouteNews::Ended(intake));
        }
    }

    /// Drops late results of requests that have moved to another unit, which computes them again.
    pub(super) fn drop_results_of_moved(&self, from: Incarnation, batch: &mut Vec<RequestTokens>) {
        if self.settings.has_replicas {
            self.estate.docket.drop_results_of_moved(from.unit, batch);
        }
    }

    /// Tells the Router of tokens that the docket has noted.
    pub(super) fn tell_router_of_tokens(&self, from: Incarnation, batch: &[RequestTokens]) {
        let Some(router) = self.router_links() else {
            return;
        };
        let of_unit = |update: &RequestTokens| {
            let entry = self.estate.docket.get(update.intake)?;
            let n_tokens = update.tokens.len();
            if entry.unit() != from.unit || n_tokens == 0 {
                return None;
            }
            let is_first = entry.told().len() == n_tokens && !entry.has_resumed();
            let prompt = entry.request().prompt.len();
            let uncached = prompt.saturating_sub(update.cached_tokens as usize);
            Some(GeneratedTokens {
                intake: update.intake,
                tokens: n_tokens,
                computed: is_first.then_some(uncached),
            })
        };
        let tokens: Vec<GeneratedTokens> = batch.iter().filter_map(of_unit).collect();
        if !tokens.is_empty() {
            router.news.post(RouteNews::Generated(tokens));
        }
    }

    /// Asks for the units of requests that have none. Without a Router, the next one is asked.
    fn ask_router(&self, unrouted: &[IntakeId]) {
        let entries = unrouted
            .iter()
            .filter_map(|intake| self.estate.docket.get(*intake));
        if let Some(router) = self.router_links() {
            entries.for_each(|entry| {
                router
                    .route
                    .post(RouteRequest::of(entry.request(), entry.told()))
            });
        }
    }

    fn router_links(&self) -> Option<&RouterLinks> {
        self.router.as_ref().map(|router| &router.links)
    }
}

impl Handler<RouterStarted> for Tokenizer {
    type Result = ();

    fn handle(&mut self, started: RouterStarted, _: &mut Context<Self>) {
        self.strike(Phase::Entry, "RouterStarted");
        self.router = Some(started);
        self.let_router_adopt(None);
        self.ask_router(&self.estate.docket.unrouted());
    }
}

impl Handler<UnitDied> for Tokenizer {
    type Result = ();

    fn handle(&mut self, UnitDied { unit, suspicion }: UnitDied, _: &mut Context<Self>) {
        self.strike(Phase::Entry, "UnitDied");
        let docket = &mut self.estate.docket;
        let moved = match suspicion {
            Some(suspicion) => docket.move_away(unit, &suspicion),
            None => docket.retire(unit),
        };
        self.ask_router(&moved);
    }
}

impl Handler<Posted<Routed>> for Tokenizer {
    type Result = ();

    fn handle(&mut self, posted: Posted<Routed>, _: &mut Context<Self>) {
        let (routed, _timer) = posted.open();
        self.strike(Phase::Entry, "Routed");
        let Routed {
            router,
            intake,
            unit,
        } = routed;
        if self
            .router
            .as_ref()
            .is_none_or(|current| current.number != router)
        {
            return;
        }
        if self.estate.docket.route(intake, unit) {
            self.post_due();
        } else if self.estate.docket.is_unrouted(intake) {
            // The unit has died since the Router chose it.
            self.ask_router(&[intake]);
        } else if self.estate.docket.get(intake).is_none() {
            // It ended before the Router had chosen.
            self.tell_router_of_end(intake);
        }
    }
}
