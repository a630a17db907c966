//! Compares the loads of a router with a naive record of its requests, after random events.

use std::collections::BTreeMap;

use souffleur_base::ids::{IntakeId, UnitId};
use souffleur_state::router::LoadBalance;

use super::{Desk, after, tokens};
use crate::chaos_load::Random;

const N_REPLICAS: u32 = 3;
const N_EVENTS: usize = 3000;
const N_FAMILIES: usize = 6;

/// A request that has not ended.
#[derive(Clone, Copy, Debug)]
struct Live {
    unit: u32,
    tokens: usize,
    is_prefilled: bool,
}

struct Naive {
    desk: Desk,
    random: Random,
    requests: BTreeMap<IntakeId, Live>,
    is_live: [bool; N_REPLICAS as usize],
    deaths: usize,
}

impl Naive {
    fn route(&mut self) {
        let family = self.random.below(N_FAMILIES) as u32;
        let own = self.random.within(1..300);
        let prompt = after(&tokens(family, 256), self.desk.n_requests as u32 + 10, own);
        let cached: Vec<_> = (0..N_REPLICAS)
            .map(|_| self.random.percent(70).then(|| self.random.below(257)))
            .collect();
        let (request, unit) = self.desk.try_route(&prompt, &cached);
        let Some(unit) = unit else {
            assert_eq!(self.is_live, [false; N_REPLICAS as usize]);
            return;
        };
        assert!(self.is_live[unit as usize], "replica {unit} is dead");
        let live = Live {
            unit,
            tokens: prompt.len(),
            is_prefilled: false,
        };
        self.requests.insert(request, live);
    }

    fn pick(&mut self) -> Option<IntakeId> {
        let n = self.requests.len();
        if n == 0 {
            return None;
        }
        self.requests.keys().nth(self.random.below(n)).copied()
    }

    fn generate(&mut self) {
        let Some(request) = self.pick() else { return };
        let n = self.random.within(1..4);
        self.desk.router.prefilled(request, self.desk.now_s);
        self.desk.router.generated(request, n);
        if let Some(live) = self.requests.get_mut(&request) {
            live.tokens += n;
            live.is_prefilled = true;
        }
    }

    fn end(&mut self) {
        let Some(request) = self.pick() else { return };
        self.desk.router.ended(request);
        self.requests.remove(&request);
    }

    fn change_replica(&mut self) {
        let index = self.random.below(N_REPLICAS as usize);
        let unit = UnitId::new(index as u32);
        if self.is_live[index] {
            let orphans = self.desk.router.died(unit);
            let of_unit = self.requests.iter();
            let of_unit = of_unit.filter(|(_, live)| live.unit == unit.get());
            let expected: Vec<IntakeId> = of_unit.map(|(request, _)| *request).collect();
            assert_eq!(orphans, expected);
            self.requests.retain(|_, live| live.unit != unit.get());
            self.deaths += 1;
        } else {
            self.desk.router.revived(unit);
        }
        self.is_live[index] = !self.is_live[index];
    }

    fn check(&self) {
        for load in self.desk.router.load() {
            let of_unit = || {
                let requests = self.requests.values();
                requests.filter(|live| live.unit == load.unit.get())
            };
            assert_eq!(load.is_live, self.is_live[load.unit.index()]);
            assert_eq!(load.requests, of_unit().count());
            let total: usize = of_unit().map(|live| live.tokens).sum();
            assert_eq!(load.total_tokens, total);
            let waiting = of_unit().filter(|live| !live.is_prefilled);
            let (n, tokens) = waiting.fold((0, 0), |(n, sum), live| (n + 1, sum + live.tokens));
            // Each request owes at least one token.
            assert!(
                (n..=tokens).contains(&load.owed_tokens),
                "{load:?}: {n} requests of {tokens} tokens"
            );
        }
    }
}

#[test]
fn loads_are_the_sums_of_the_requests_after_random_events() {
    for method in [LoadBalance::Prefix, LoadBalance::TotalTokens] {
        let mut naive = Naive {
            desk: Desk::new(method, N_REPLICAS),
            random: Random::new(54),
            requests: BTreeMap::new(),
            is_live: [true; N_REPLICAS as usize],
            deaths: 0,
        };
        for _ in 0..N_EVENTS {
            naive.desk.now_s += 0.05;
            match naive.random.below(100) {
                0..40 => naive.route(),
                40..65 => naive.generate(),
                65..97 => naive.end(),
                _ => naive.change_replica(),
            }
            naive.check();
        }
        assert!(naive.deaths > 20, "{} deaths", naive.deaths);
    }
}
