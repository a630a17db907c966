//! Times single requests that pass the Router, in pairs with requests to an engine without one.

use std::time::{Duration, Instant};

use souffleur::config::EngineConfig;
use souffleur::engine::EngineHandle;

use crate::engines;
use crate::quantile;
use crate::trace::tokens;

/// The Router looks up a prompt of this length in each cache, which has most of its tokens.
const SHARED_TOKENS: usize = 1024;
const NEW_TOKENS: usize = 64;
/// Pairs before the first that counts.
const WARM_PAIRS: usize = 32;
const MAX_TOTAL_TOKENS: usize = 1 << 17;
const MOST_US: f64 = 50.0;

/// Microseconds of the pairs.
pub struct Cost {
    without: Vec<f64>,
    with: Vec<f64>,
}

pub async fn measure(pairs: usize) -> anyhow::Result<Cost> {
    let [without, with] = [start(1)?, start(2)?];
    let cost = alternate(&without, &with, pairs).await;
    without.shutdown(Duration::ZERO).await;
    with.shutdown(Duration::ZERO).await;
    cost
}

fn start(dp_size: usize) -> anyhow::Result<EngineHandle> {
    engines::without_model(EngineConfig {
        dp_size,
        max_total_tokens: Some(MAX_TOTAL_TOKENS),
        max_running_requests: Some(8),
        ..EngineConfig::default()
    })
}

async fn alternate(
    without: &EngineHandle,
    with: &EngineHandle,
    pairs: usize,
) -> anyhow::Result<Cost> {
    let vocab_size = u32::try_from(without.model().vocab_size)?;
    let mut random = fastrand::Rng::with_seed(1);
    let shared = tokens(&mut random, SHARED_TOKENS, vocab_size);
    let mut cost = Cost {
        without: Vec::with_capacity(pairs),
        with: Vec::with_capacity(pairs),
    };
    for pair in 0..WARM_PAIRS + pairs {
        let mut prompt = shared.clone();
        prompt.extend(tokens(&mut random, NEW_TOKENS, vocab_size));
        // Each engine is the first one in every other pair.
        let (us_without, us_with) = if pair.is_multiple_of(2) {
            let us_without = time_us(without, &prompt).await?;
            (us_without, time_us(with, &prompt).await?)
        } else {
            let us_with = time_us(with, &prompt).await?;
            (time_us(without, &prompt).await?, us_with)
        };
        if pair >= WARM_PAIRS {
            cost.without.push(us_without);
            cost.with.push(us_with);
        }
    }
    Ok(cost)
}

/// The time from a request to the end of its answer of one token.
async fn time_us(engine: &EngineHandle, prompt: &[u32]) -> anyhow::Result<f64> {
    let request = engines::request(prompt, 1);
    let sent = Instant::now();
    let generation = engine.generate(request)?;
    engines::read(generation).await?;
    Ok(sent.elapsed().as_secs_f64() * 1e6)
}

impl Cost {
    pub fn text(&self) -> String {
        let [lower, median, upper] = [0.25, 0.5, 0.75].map(|share| self.difference_us(share));
        format!(
            "One request at a time: {:.0} us without a Router, {:.0} with one (medians of {} pairs); the Router adds \
             {median:.1} us [{lower:.1}, {upper:.1}].\n",
            quantile(self.without.clone(), 0.5),
            quantile(self.with.clone(), 0.5),
            self.with.len()
        )
    }

    /// The goal, if it is missed.
    pub fn missed(&self) -> Option<String> {
        let median = self.difference_us(0.5);
        (median > MOST_US)
            .then(|| format!("the Router adds {median:.1} us to a request, the goal is {MOST_US}"))
    }

    /// A quantile of the differences of the pairs.
    fn difference_us(&self, share: f64) -> f64 {
        let pairs = self.with.iter().zip(&self.without);
        quantile(pairs.map(|(with, without)| with - without).collect(), share)
    }
}
