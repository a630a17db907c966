//! Scheduling policy: a random order, redrawn for each plan from a fixed seed, so that a replay repeats it.

use super::{SchedulePolicy, Waiting};

pub(super) const NAME: &str = "random";

const SEED: u64 = 0x5eed_0f50_ff1e_0000;
/// 2^64 divided by the golden ratio: the increment of SplitMix64.
const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Default)]
pub(super) struct Random {
    rounds: u64,
}

impl SchedulePolicy for Random {
    fn name(&self) -> &'static str {
        NAME
    }

    fn order(&mut self, waiting: &mut [Waiting]) {
        self.rounds += 1;
        let round = mix(SEED.wrapping_add(self.rounds.wrapping_mul(INCREMENT)));
        waiting.sort_by_key(|request| mix(round ^ request.seq.get()));
    }
}

/// The output function of SplitMix64 (Steele, Lea, Flood 2014): a bijection that spreads every bit.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
