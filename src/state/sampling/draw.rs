//! Counter-based random numbers: functions of only a seed and a position.

/// A number in [0, 1): a pure function of seed and output position.
///
/// There is no generator state, so a retracted sequence draws the same numbers again.
pub fn uniform(seed: u64, position: u64) -> f64 {
    let bits = mix(mix(seed.wrapping_add(GOLDEN)) ^ position.wrapping_mul(GOLDEN));
    (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// The seed of the `index`-th sample of a request with `n` > 1; sample 0 keeps the request's own seed.
pub fn seed_of_sample(seed: u64, index: u32) -> u64 {
    match index {
        0 => seed,
        index => mix(seed ^ mix(u64::from(index))),
    }
}

/// 2^64 divided by the golden ratio: the increment of SplitMix64.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of SplitMix64 (Steele, Lea and Flood 2014): every input bit affects every output bit.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_uniform_over_positions_and_over_seeds() {
        for along_positions in [true, false] {
            let mut counts = [0u32; 16];
            for i in 0..16_000 {
                let (seed, position) = if along_positions { (7, i) } else { (i, 7) };
                counts[(uniform(seed, position) * 16.0) as usize] += 1;
            }
            for count in counts {
                assert!((850..1150).contains(&count), "{counts:?}");
            }
        }
    }

    #[test]
    fn samples_of_one_request_have_different_seeds() {
        let mut seeds: Vec<u64> = (0..128).map(|index| seed_of_sample(42, index)).collect();
        assert_eq!(seeds[0], 42);
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 128);
    }
}
