//! Metrics of actors that died.

use metrics::{Counter, counter};

pub struct DeathMetrics {
    deaths: Vec<(&'static str, Counter)>,
}

impl DeathMetrics {
    pub fn register(actors: &[&'static str]) -> Self {
        let bind = |actor: &&'static str| (*actor, death_counter(actor));
        Self {
            deaths: actors.iter().map(bind).collect(),
        }
    }

    pub fn died(&self, actor: &'static str) {
        match self.deaths.iter().find(|(name, _)| *name == actor) {
            Some((_, deaths)) => deaths.increment(1),
            None => death_counter(actor).increment(1),
        }
    }
}

fn death_counter(actor: &'static str) -> Counter {
    counter!("souffleur_actor_deaths_total", "actor" => actor)
}
