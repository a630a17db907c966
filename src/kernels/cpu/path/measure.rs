//! Measures instruction rates on this thread, interleaved so that other load affects all instructions alike.

use std::time::Instant;

use super::super::probe::Arithmetic;
use super::choice::Rates;

/// Timed passes of each instruction, of which the best counts. An untimed pass before them warms up the core.
const PASSES: usize = 9;
/// Takes about a millisecond.
const F32_OPS_PER_PASS: usize = 1 << 27;

#[derive(Clone, Copy, Debug, Default)]
pub struct InterleavedMeasurement;

impl Rates for InterleavedMeasurement {
    fn measure(&mut self, instructions: &[Arithmetic]) -> Vec<(Arithmetic, f64)> {
        let present = instructions.iter().filter(|of| of.is_present());
        let mut rates: Vec<_> = present.map(|of| (*of, 0.0)).collect();
        for pass in 0..=PASSES {
            for (instruction, best) in &mut rates {
                let began = Instant::now();
                let ops = instruction.pass(F32_OPS_PER_PASS);
                let rate = ops as f64 / began.elapsed().as_secs_f64().max(1e-9);
                *best = match pass {
                    0 => 0.0,
                    _ => rate.max(*best),
                };
            }
        }
        rates
    }
}
