//! Lists the requests that the Tokenizer knows, for `/debug/requests`.

use std::time::Instant;

use actix::{Context, Handler, MessageResult};

use crate::messages::{EncodingRequest, GetRequests, KnownRequests, ViewedRequests};
use souffleur_base::ids::RequestId;

use super::Tokenizer;
use super::estate::Estate;

impl Handler<GetRequests> for Tokenizer {
    type Result = MessageResult<GetRequests>;

    fn handle(&mut self, get: GetRequests, _: &mut Context<Self>) -> Self::Result {
        let now = Instant::now();
        MessageResult(match get.requests {
            ViewedRequests::First(most) => self.estate.known_requests(most, now),
            ViewedRequests::One(rid) => self.estate.known_request(&rid, now),
        })
    }
}

impl Estate {
    fn known_requests(&self, most: usize, now: Instant) -> KnownRequests {
        let (entered, n_entered) = self.docket.live_requests(self.seconds_at(now), most);
        KnownRequests {
            entered,
            encoding: encoding(self.intake.rids().take(most), now),
            n_requests: n_entered + self.intake.rids().count(),
        }
    }

    fn known_request(&self, rid: &RequestId, now: Instant) -> KnownRequests {
        let entered = self.intakes.get(rid).into_iter();
        let entered =
            entered.filter_map(|intake| self.docket.live_request(*intake, self.seconds_at(now)));
        let of_rid = self.intake.rids().filter(|(other, _)| *other == rid);
        KnownRequests {
            entered: entered.collect(),
            encoding: encoding(of_rid, now),
            n_requests: self.docket.len() + self.intake.rids().count(),
        }
    }
}

fn encoding<'a>(
    requests: impl Iterator<Item = (&'a RequestId, Instant)>,
    now: Instant,
) -> Vec<EncodingRequest> {
    let requests = requests.map(|(rid, since)| EncodingRequest {
        rid: rid.clone(),
        age: now.saturating_duration_since(since),
    });
    requests.collect()
}
