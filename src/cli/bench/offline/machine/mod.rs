//! Measures the machine's peak rates, and derives the least time of work at these rates.
//!
//! On a CPU, measurements of machine and engine alternate, so that other load on the host affects both equally.

pub mod floors;
mod gpu;

use serde::Serialize;
use souffleur::config::{Device as DeviceRequest, EngineConfig};
use souffleur::executor::memory_plan::available_bytes;
use souffleur::kernels::cpu::probe::{Arithmetic, ReadProbe};
use souffleur::kernels::cpu::{Isa, default_threads};
use souffleur::kernels::dtype::Dtype;

use crate::cli::failure::Failure;
use floors::Peak;
use gpu::GpuRates;

/// Least size assumed for the last-level cache: some systems report a smaller size or none.
const MIN_CACHE_BYTES: u64 = 32 << 20;
/// Buffer size as a multiple of the last-level cache: no pass finds data of the previous pass in the cache.
const FACTOR: u64 = 16;
const MAX_BUFFER_BYTES: u64 = 2 << 30;
/// The buffer takes at most `1 / MEMORY_SHARE` of the available memory.
const MEMORY_SHARE: u64 = 8;

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rates {
    pub threads: usize,
    pub read_bytes_per_s: f64,
    /// f32 operations per second; a multiply-add counts as two.
    pub f32_ops_per_s: f64,
    /// Operations per second of `vdpbf16ps`, or of AMX's `tdpbf16ps` if that is faster; `None` if the CPU has neither.
    pub bf16_ops_per_s: Option<f64>,
    /// Operations per second of `vpdpbusd` or AMX's `tdpbsud`, the faster one, else of `vpmaddwd`; `None` without AVX2.
    pub int8_ops_per_s: Option<f64>,
    /// Operations per second with block-quantised weights: of `vpdpbusd`, or else `vpmaddubsw`; `None` without AVX2.
    pub block_ops_per_s: Option<f64>,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
pub enum MachineRates {
    Cpu { one: Rates, all: Rates },
    Gpu(GpuRates),
}

/// The device on which the engine computes.
pub enum BenchDevice {
    Cpu { threads: usize },
    Gpu(Gpu),
}

/// A GPU and its rates, measured once, since the engine takes all of its memory afterwards.
pub struct Gpu {
    pub name: String,
    rates: GpuRates,
}

impl BenchDevice {
    /// The device of a configuration; measures a GPU with elements of `dtype`.
    pub fn read(config: &EngineConfig, dtype: Dtype) -> Result<Self, Failure> {
        let DeviceRequest::Cuda(gpus) = &config.device else {
            return Ok(Self::Cpu {
                threads: match config.threads {
                    0 => default_threads(),
                    threads => threads,
                },
            });
        };
        let (name, rates) = gpu::measure(gpus.first(), dtype)?;
        Ok(Self::Gpu(Gpu { name, rates }))
    }

    pub fn gpu(&self) -> Option<&Gpu> {
        match self {
            Self::Cpu { .. } => None,
            Self::Gpu(gpu) => Some(gpu),
        }
    }

    pub fn threads(&self) -> usize {
        match self {
            Self::Cpu { threads } => *threads,
            Self::Gpu(_) => 0,
        }
    }

    pub fn kernel_path(&self) -> Result<&'static str, Failure> {
        match self {
            Self::Cpu { .. } => Ok(Isa::chosen().map_err(Failure::failed)?.name()),
            Self::Gpu(_) => Ok("cuda"),
        }
    }
}

pub enum Machine {
    Cpu { memory: ReadProbe, threads: usize },
    Gpu(GpuRates),
}

impl Machine {
    pub fn new(device: &BenchDevice) -> Result<Self, Failure> {
        let threads = match device {
            BenchDevice::Cpu { threads } => *threads,
            BenchDevice::Gpu(gpu) => return Ok(Self::Gpu(gpu.rates)),
        };
        let available = available_bytes().map_err(Failure::failed)?;
        let bytes = buffer_bytes(last_cache_bytes(), available);
        let memory = ReadProbe::new(usize::try_from(bytes).unwrap_or(usize::MAX));
        let memory = memory.map_err(Failure::to(format_args!(
            "allocate {bytes} bytes to measure the memory's bandwidth"
        )))?;
        Ok(Self::Cpu { memory, threads })
    }

    pub fn measure(&self) -> MachineRates {
        match self {
            Self::Cpu { memory, threads } => MachineRates::Cpu {
                one: rates(memory, 1),
                all: rates(memory, *threads),
            },
            Self::Gpu(rates) => MachineRates::Gpu(*rates),
        }
    }

    /// Measures only the read bandwidth, with all threads. Used before every load, since other programs affect it.
    pub fn read_bytes_per_s(&self) -> f64 {
        match self {
            Self::Cpu { memory, threads } => memory.bytes_per_second(*threads),
            Self::Gpu(rates) => rates.bytes_per_s(),
        }
    }
}

/// Speed of `vpmaddubsw` relative to `vpmaddwd`, in multiplied elements per second.
const MADDUBS_SPEEDUP: f64 = 2.0;

/// Measures the rates of the machine's best instructions, whatever kernels the engine uses.
fn rates(memory: &ReadProbe, threads: usize) -> Rates {
    let rate = |arithmetic: Arithmetic| arithmetic.ops_per_second(threads);
    let int8_dot = rate(Arithmetic::Int8Dot);
    let maddwd = match int8_dot {
        Some(_) => None,
        None => rate(Arithmetic::Int8Shorts),
    };
    Rates {
        threads,
        read_bytes_per_s: memory.bytes_per_second(threads),
        f32_ops_per_s: rate(Arithmetic::F32).unwrap_or_default(),
        bf16_ops_per_s: best(rate(Arithmetic::Bf16Dot), rate(Arithmetic::Bf16Tiles)),
        int8_ops_per_s: best(int8_dot, rate(Arithmetic::Int8Tiles)).or(maddwd),
        block_ops_per_s: int8_dot.or(maddwd.map(|rate| MADDUBS_SPEEDUP * rate)),
    }
}

fn best(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    [one, other].into_iter().flatten().reduce(f64::max)
}

impl MachineRates {
    /// The peak rates for a model in `dtype`.
    pub fn peak(&self, dtype: Dtype, read_bytes_per_s: f64) -> Peak {
        match self {
            Self::Cpu { all, .. } => all.peak(dtype, read_bytes_per_s),
            Self::Gpu(rates) => Peak {
                read_bytes_per_s,
                weight_ops_per_s: floors::ByProduct::all(rates.flop_per_s),
                attention_ops_per_s: rates.flop_per_s,
                state_ops_per_s: rates.flop_per_s,
            },
        }
    }

    /// Bytes read per second; on a GPU, bytes read and written by a copy if that rate is higher.
    pub fn read_bytes_per_s(&self) -> f64 {
        match self {
            Self::Cpu { all, .. } => all.read_bytes_per_s,
            Self::Gpu(rates) => rates.bytes_per_s(),
        }
    }
}

impl Rates {
    /// The peak rates for all kinds of weights, and for keys and values in `dtype`.
    pub fn peak(&self, dtype: Dtype, read_bytes_per_s: f64) -> Peak {
        let f32 = self.f32_ops_per_s;
        // If bf16 or int8 instructions are slower than those for f32, f32 products set the floor.
        let or_f32 = |rate: Option<f64>| rate.map_or(f32, |rate| rate.max(f32));
        let weights = floors::ByProduct {
            f32,
            bf16: or_f32(self.bf16_ops_per_s),
            int8: or_f32(self.int8_ops_per_s),
            blocks: or_f32(self.block_ops_per_s),
        };
        Peak {
            read_bytes_per_s,
            weight_ops_per_s: weights,
            attention_ops_per_s: match dtype {
                Dtype::BF16 => weights.bf16,
                Dtype::F16 | Dtype::F32 => f32,
            },
            state_ops_per_s: self.f32_ops_per_s,
        }
    }
}

fn buffer_bytes(cache_bytes: u64, available_bytes: u64) -> u64 {
    let size = cache_bytes.max(MIN_CACHE_BYTES).saturating_mul(FACTOR);
    size.min(MAX_BUFFER_BYTES)
        .min(available_bytes / MEMORY_SHARE)
}

/// The largest cache of the first core as Linux reports it; 0 on other systems.
fn last_cache_bytes() -> u64 {
    let size = |index: usize| {
        let file = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let text = std::fs::read_to_string(file).ok()?;
        text.trim().strip_suffix('K')?.parse::<u64>().ok()
    };
    (0..8).filter_map(size).max().unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffer_is_far_larger_than_the_cache_and_far_smaller_than_memory() {
        let (mib, gib) = (1 << 20, 1 << 30);
        assert_eq!(buffer_bytes(0, 64 * gib), 512 * mib);
        assert_eq!(buffer_bytes(64 * mib, 64 * gib), gib);
        assert_eq!(buffer_bytes(gib, 64 * gib), 2 * gib);
        assert_eq!(buffer_bytes(0, gib), 128 * mib);
    }

    #[test]
    fn each_kind_of_product_is_compared_with_its_best_instruction() {
        let rates = Rates {
            threads: 2,
            read_bytes_per_s: 1.0,
            f32_ops_per_s: 2.0,
            bf16_ops_per_s: Some(3.0),
            int8_ops_per_s: Some(4.0),
            block_ops_per_s: Some(5.0),
        };
        let of = |rates: &Rates, dtype| {
            let peak = rates.peak(dtype, 9.0);
            assert_eq!(peak.read_bytes_per_s, 9.0);
            let floors::ByProduct {
                f32,
                bf16,
                int8,
                blocks,
            } = peak.weight_ops_per_s;
            ([f32, bf16, int8, blocks], peak.attention_ops_per_s)
        };
        let all = [2.0, 3.0, 4.0, 5.0];
        assert_eq!(of(&rates, Dtype::BF16), (all, 3.0));
        assert_eq!(of(&rates, Dtype::F16), (all, 2.0));
        // A CPU whose bf16 products are slower than its f32 products.
        let slow = Rates {
            bf16_ops_per_s: Some(1.0),
            ..rates
        };
        assert_eq!(of(&slow, Dtype::BF16), ([2.0, 2.0, 4.0, 5.0], 2.0));
        let plain = Rates {
            bf16_ops_per_s: None,
            int8_ops_per_s: None,
            block_ops_per_s: None,
            ..rates
        };
        assert_eq!(of(&plain, Dtype::BF16), ([2.0; 4], 2.0));
        assert_eq!(best(Some(1.0), Some(2.0)), Some(2.0));
        assert_eq!(best(None, Some(2.0)), Some(2.0));
        assert_eq!(best(None, None), None);
    }
}
