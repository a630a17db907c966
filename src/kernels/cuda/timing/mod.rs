//! Times each kernel on this GPU, and computes the least time that it could take.
//!
//! First it measures the GPU's peak rates: copying within its memory, reading, and a large product. The floor of a
//! kernel is then the bytes that it must move, or the operations that it must do, whichever takes longer at those
//! rates. Launches are recorded in a graph, so that the host does not count, and rotate over copies of their operands
//! that are larger together than the GPU's cache, as the layers of a model do.

mod attention;
mod lab;
mod products;
mod rows;
mod sampling;

use serde::Serialize;

use self::lab::Lab;
pub use self::lab::Rates;
use super::driver::{Device, DriverError};
use super::pack::{KernelsUnavailable, Modules};
use super::params::ElementType;

/// Why nothing was measured.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TimingError {
    /// There are no kernels for this GPU.
    #[error(transparent)]
    Kernels(#[from] KernelsUnavailable),
    /// The driver refused something.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// The amount of work that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The shapes of Llama-3.1-8B, on a GPU.
    Full,
    /// Tiny shapes, each once: a smoke test.
    Tiny,
}

/// One kernel on one shape.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timing {
    /// The operation and its shape.
    pub name: String,
    /// Time of one launch, the median of the rounds.
    pub seconds: f64,
    /// Bytes that it must read and write.
    pub bytes: u64,
    /// Operations that it must do, multiplication and addition counted as two.
    pub flop: u64,
}

impl Timing {
    /// The least seconds that it could take.
    pub fn floor_seconds(&self, rates: &Rates) -> f64 {
        let moving = self.bytes as f64 / rates.bytes_per_s();
        let computing = self.flop as f64 / rates.flop_per_s;
        moving.max(computing)
    }
}

/// Measures the GPU's peak rates, with elements of a type.
///
/// # Errors
/// There are no kernels, or the driver refuses something.
pub fn rates(device: &Device, element: ElementType) -> Result<Rates, TimingError> {
    let modules = Modules::load(device)?;
    let lab = Lab::new(device, &modules, Extent::Full)?;
    Ok(lab.rates(element)?)
}

/// Measures the GPU, then each kernel; `report` gets each timing at once, with the GPU's rates.
///
/// # Errors
/// There are no kernels, or the driver refuses something.
pub fn measure(
    device: &Device,
    extent: Extent,
    report: &mut dyn FnMut(&Rates, Timing),
) -> Result<Rates, TimingError> {
    let modules = Modules::load(device)?;
    let mut lab = Lab::new(device, &modules, extent)?;
    let rates = lab.rates(ElementType::Bf16)?;
    let report = &mut |timing| report(&rates, timing);
    products::measure(&mut lab, report)?;
    attention::measure(&mut lab, report)?;
    rows::measure(&mut lab, report)?;
    sampling::measure(&mut lab, report)?;
    Ok(rates)
}
