//! Selects the kernel path (instruction set) of this process.
//!
//! CPUID flags name instructions, not their speed: on some processors `vdpbf16ps` does half the work of plain
//! multiply-adds. So the path that the flags allow is compared with the next simpler one wherever the two differ in an
//! instruction ([`choice`]): by a table of known processors ([`processor`]), else by a short measurement that is saved
//! in a file ([`memory`]). The last bits of results depend on the path, so a machine uses the same path at every start.

mod choice;
mod measure;
mod memory;
mod processor;

use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;

use self::choice::{Comparison, Rates, comparisons, decide};
use self::measure::InterleavedMeasurement;
use self::memory::RatesFile;
use self::processor::{KnownCore, Processor};
use super::probe::Arithmetic;
use super::simd::{ISA_VARIABLE, Isa};

#[derive(Clone, Debug, PartialEq)]
pub struct KernelPath {
    pub isa: Isa,
    pub reason: Reason,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    Forced,
    /// The machine supports no simpler path that could be faster.
    Only,
    /// The published rates of the named core.
    Known(&'static str),
    Measured {
        /// Billions of operations per second of one thread, by instruction.
        giga_ops: Vec<(Arithmetic, f64)>,
        file: PathBuf,
    },
    /// The measurement could not be read or saved: CPU flags decide, so that each start chooses the same path.
    Flags {
        error: String,
    },
}

impl KernelPath {
    /// The path that [`ISA_VARIABLE`] names, else the one for this machine, chosen once per process.
    ///
    /// # Errors
    /// An unknown name, or instructions that the machine lacks.
    pub fn of_process() -> Result<Self, String> {
        static CHOSEN: OnceLock<KernelPath> = OnceLock::new();
        match std::env::var_os(ISA_VARIABLE) {
            Some(name) => Ok(Self {
                isa: Isa::named(&name)?,
                reason: Reason::Forced,
            }),
            None => {
                let choose = || Self::choose(&Machine::this(), &mut InterleavedMeasurement);
                Ok(CHOSEN.get_or_init(choose).clone())
            }
        }
    }

    /// Measures rates only if the processor is unknown and no measurement is saved.
    fn choose(machine: &Machine, rates: &mut dyn Rates) -> Self {
        let available = &machine.available;
        let by_flags = available.last().copied().unwrap_or(Isa::Portable);
        let of = |isa, reason| Self { isa, reason };
        if comparisons(available).is_empty() {
            return of(by_flags, Reason::Only);
        }
        if let Some(mut known) = KnownCore::of(&machine.processor) {
            return of(decide(available, &mut known), Reason::Known(known.name()));
        }
        let rates_file = RatesFile::new(machine.cache.as_deref(), &machine.processor, available);
        let saved = rates_file.and_then(|rates_file| {
            let saved = rates_file.read_or_measure(|| measure_rates(available, rates))?;
            Ok((saved, rates_file))
        });
        match saved {
            Ok((mut saved, rates_file)) => {
                let isa = decide(available, &mut saved);
                let giga_ops = saved.into_giga_ops();
                let file = rates_file.into_file();
                of(isa, Reason::Measured { giga_ops, file })
            }
            Err(error) => {
                tracing::warn!(
                    %error,
                    instruction_set = by_flags.name(),
                    "failed to read or save the measurement of the fastest instruction set: choosing one by CPU flags, \
                     which may be slower; set XDG_CACHE_HOME to a writable folder, or SOUFFLEUR_CPU_ISA to an \
                     instruction set, such as avx2"
                );
                of(by_flags, Reason::Flags { error })
            }
        }
    }
}

impl Isa {
    /// The instruction set that [`ISA_VARIABLE`] names, else that of [`KernelPath`].
    ///
    /// # Errors
    /// An unknown name, or instructions that the machine lacks.
    pub fn chosen() -> Result<Self, String> {
        KernelPath::of_process().map(|path| path.isa)
    }
}

fn measure_rates(available: &[Isa], rates: &mut dyn Rates) -> Vec<(Arithmetic, f64)> {
    let mut instructions: Vec<Arithmetic> = Vec::new();
    for Comparison { with, without, .. } in comparisons(available) {
        for instruction in std::iter::once(with).chain(without.iter().copied()) {
            if !instructions.contains(&instruction) {
                instructions.push(instruction);
            }
        }
    }
    rates.measure(&instructions)
}

impl fmt::Display for KernelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.isa.name())?;
        match &self.reason {
            Reason::Forced => write!(f, ", set by {ISA_VARIABLE}"),
            Reason::Only => write!(f, ", the best supported by the processor"),
            Reason::Known(core) => write!(f, ", known to be the fastest on {core}"),
            Reason::Measured { giga_ops, file } => {
                write!(f, ", measured on one core:")?;
                for (instruction, rate) in giga_ops {
                    write!(f, " {} {rate:.0} GOP/s,", instruction.name())?;
                }
                write!(f, " stored in {}", file.display())
            }
            Reason::Flags { error } => {
                write!(
                    f,
                    ", chosen by CPU flags because no measurement could be read or saved: {error}"
                )
            }
        }
    }
}

struct Machine {
    processor: Processor,
    /// Slowest first.
    available: Vec<Isa>,
    cache: Result<PathBuf, String>,
}

impl Machine {
    fn this() -> Self {
        Self {
            processor: Processor::this(),
            available: Isa::available(),
            cache: memory::cache_folder(|name| std::env::var_os(name)),
        }
    }
}

#[cfg(test)]
mod tests;
