//! A schedule: requests, deaths, pauses, and the seed of the order in which messages are handled.

use std::ops::RangeInclusive;

/// SplitMix64: the same sequence at every run, on every machine.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn within(&mut self, range: RangeInclusive<usize>) -> usize {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }
}

/// A request that kills an actor whenever it gets as far as an output token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Poison {
    /// The index of the output token.
    pub at_output: usize,
    /// Kills the executor's thread; otherwise the Scheduler.
    pub in_executor: bool,
    /// The dying actor knows which request it had in hand.
    pub is_named: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// The number of moves after which the request arrives.
    pub at: u32,
    pub prompt: Vec<u32>,
    pub max_new_tokens: usize,
    /// Output tokens up to the end of a stop string.
    pub stop_at: Option<usize>,
    /// The number of moves after which the client leaves.
    pub cancel_at: Option<u32>,
    pub poison: Option<Poison>,
}

/// The handler that runs at a move dies after some of its effects.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeathPlan {
    pub at: u32,
    pub after_effects: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The seed of the order; 0 takes the receivers in turn.
    pub order: u64,
    /// A receiver handles messages in the order in which they were sent, as with one mailbox for all senders. Otherwise
    /// only the messages of one sender have an order.
    pub has_mailboxes: bool,
    pub page_size: u32,
    pub n_pages: u32,
    pub n_rows: u32,
    pub chunk_tokens: Option<usize>,
    pub policy: &'static str,
    /// Running requests reserve almost no memory for their outputs, so these can outgrow the pool.
    pub overcommits: bool,
    pub n_units: u32,
    /// The second unit is not started again: the first one takes over its requests.
    pub retires: bool,
    /// Seconds that pass with each move.
    pub tick_s: f64,
    pub asks: Vec<Ask>,
    /// In order of their moves.
    pub deaths: Vec<DeathPlan>,
    /// The moves after which the host pauses and resumes the engine.
    pub pause: Option<(u32, u32)>,
}

const FAMILY: [u32; 8] = [11, 12, 13, 14, 15, 16, 17, 18];

struct Load {
    overcommits: bool,
    outputs: RangeInclusive<usize>,
    /// Requests arrive before this move.
    arrivals: usize,
    /// The pool's tokens beyond those of the longest request.
    spare_tokens: RangeInclusive<usize>,
    last_death: usize,
}

const ROOMY: Load = Load {
    overcommits: false,
    outputs: 1..=6,
    arrivals: 40,
    spare_tokens: 14..=50,
    last_death: 120,
};

/// Prompts fit into the tokens that a request leaves, and the outputs outgrow them.
const OVERCOMMITTED: Load = Load {
    overcommits: true,
    outputs: 20..=30,
    arrivals: 20,
    spare_tokens: 8..=20,
    last_death: 300,
};

impl Scenario {
    pub fn from_seed(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let page_size = [1, 1, 4][random.below(3)];
        let is_storm = random.percent(8);
        let n_deaths = if is_storm {
            random.within(6..=9)
        } else {
            random.below(4)
        };
        let n_asks = random.within(1..=4);
        let load = if n_asks > 1 && random.percent(40) {
            OVERCOMMITTED
        } else {
            ROOMY
        };
        let mut asks: Vec<Ask> = (0..n_asks).map(|_| ask(&mut random, &load)).collect();
        let spare = random.within(load.spare_tokens);
        let tokens = tokens_for_longest(&asks, page_size as usize) + spare;
        // Which results a dead unit had sent is certain only with mailboxes.
        let has_mailboxes = random.percent(60);
        if has_mailboxes && random.percent(40) {
            let place = random.below(n_asks);
            asks[place].poison = Some(Poison {
                at_output: random.below(asks[place].max_new_tokens),
                in_executor: random.percent(50),
                is_named: random.percent(50),
            });
        }
        let mut deaths: Vec<DeathPlan> = (0..n_deaths)
            .map(|_| DeathPlan {
                at: random.within(1..=load.last_death) as u32,
                after_effects: random.below(5) as u32,
            })
            .collect();
        deaths.sort_by_key(|death| death.at);
        let n_units = if random.percent(20) { 2 } else { 1 };
        Self {
            order: seed | 1,
            has_mailboxes,
            page_size,
            n_pages: (tokens as u32).div_ceil(page_size),
            n_rows: random.within(2..=5) as u32,
            chunk_tokens: random.percent(30).then_some(4),
            policy: ["fcfs", "fcfs", "lpm"][random.below(3)],
            overcommits: load.overcommits,
            n_units,
            retires: n_units == 2 && random.percent(50),
            tick_s: [0.01, 0.01, 1.0, 15.0][random.below(4)],
            asks,
            deaths,
            pause: random.percent(15).then(|| {
                let from = random.below(60) as u32;
                (from, from + random.within(1..=80) as u32)
            }),
        }
    }

    /// Smaller for scenarios with fewer parts and smaller numbers. The seed of the order does not count, except for 0.
    pub fn size(&self) -> u64 {
        let of_ask = |ask: &Ask| {
            let options = usize::from(ask.stop_at.is_some())
                + usize::from(ask.cancel_at.is_some())
                + usize::from(ask.poison.is_some());
            1_000 * (1 + options) + ask.at as usize + ask.prompt.len() + ask.max_new_tokens
        };
        let of_death = |death: &DeathPlan| 2_000 + death.at as usize + death.after_effects as usize;
        let flags = [
            self.pause.is_some(),
            self.n_units > 1,
            self.retires,
            self.order > 0,
            !self.has_mailboxes,
            self.chunk_tokens.is_some(),
            self.policy != "fcfs",
            self.overcommits,
        ];
        let asks: usize = self.asks.iter().map(of_ask).sum();
        let deaths: usize = self.deaths.iter().map(of_death).sum();
        let flags = flags.into_iter().filter(|flag| *flag).count();
        (asks + deaths + 500 * flags) as u64
    }

    /// Scenarios with a part less, or with a smaller number.
    pub fn smaller(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut add = |change: &dyn Fn(&mut Self)| {
            let mut smaller = self.clone();
            change(&mut smaller);
            if smaller != *self {
                all.push(smaller);
            }
        };
        for place in 0..self.asks.len() {
            if self.asks.len() > 1 {
                add(&|smaller: &mut Self| drop(smaller.asks.remove(place)));
            }
        }
        for place in 0..self.deaths.len() {
            add(&|smaller: &mut Self| {
                smaller.deaths.remove(place);
            });
        }
        add(&|smaller: &mut Self| smaller.pause = None);
        add(&|smaller: &mut Self| (smaller.n_units, smaller.retires) = (1, false));
        add(&|smaller: &mut Self| smaller.retires = false);
        add(&|smaller: &mut Self| smaller.order = 0);
        add(&|smaller: &mut Self| smaller.has_mailboxes = true);
        add(&|smaller: &mut Self| smaller.chunk_tokens = None);
        add(&|smaller: &mut Self| smaller.policy = "fcfs");
        add(&|smaller: &mut Self| smaller.overcommits = false);
        for place in 0..self.asks.len() {
            add(&|smaller: &mut Self| smaller.asks[place].poison = None);
            add(&|smaller: &mut Self| smaller.asks[place].stop_at = None);
            add(&|smaller: &mut Self| smaller.asks[place].cancel_at = None);
            add(&|smaller: &mut Self| smaller.asks[place].at = 0);
            add(&|smaller: &mut Self| smaller.asks[place].prompt.truncate(1));
            add(&|smaller: &mut Self| {
                let ask = &mut smaller.asks[place];
                ask.max_new_tokens = ask.max_new_tokens.div_ceil(2);
            });
        }
        for place in 0..self.deaths.len() {
            add(&|smaller: &mut Self| smaller.deaths[place].after_effects = 0);
            add(&|smaller: &mut Self| {
                let previous = place
                    .checked_sub(1)
                    .map_or(1, |last| smaller.deaths[last].at);
                let death = &mut smaller.deaths[place];
                death.at = death.at.min((death.at / 2).max(previous));
            });
            add(&|smaller: &mut Self| {
                let previous = place
                    .checked_sub(1)
                    .map_or(1, |last| smaller.deaths[last].at);
                let death = &mut smaller.deaths[place];
                death.at = death.at.min((death.at - 1).max(previous));
            });
        }
        all
    }
}

/// Tokens of a pool in which each of the requests fits alone: the Scheduler wants more than a page for each beyond its
/// prompt and output.
fn tokens_for_longest(asks: &[Ask], page_size: usize) -> usize {
    let all = asks.iter().map(|ask| ask.prompt.len() + ask.max_new_tokens);
    all.max().unwrap_or(0) + page_size + 1
}

fn ask(random: &mut Random, load: &Load) -> Ask {
    let shared = random.below(FAMILY.len() + 1);
    let mut prompt = FAMILY[..shared].to_vec();
    prompt.extend((0..random.within(1..=4)).map(|_| random.below(64) as u32));
    let max_new_tokens = random.within(load.outputs.clone());
    Ask {
        at: random.below(load.arrivals) as u32,
        prompt,
        max_new_tokens,
        stop_at: random
            .percent(15)
            .then(|| random.within(1..=max_new_tokens)),
        cancel_at: random.percent(10).then(|| random.below(100) as u32),
        poison: None,
    }
}
