//! Microbenchmarks of each GPU kernel, compared with its lower bound (roofline).
//!
//! Peak rates are measured first: device copies, reads, and a large product. A kernel's lower bound is the time of its
//! bytes or of its operations at these rates, whichever is longer. Launches are captured in a graph, which excludes
//! host time, and rotate over copies of their operands that exceed the GPU's cache, as a model's layers do.

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

#[derive(Clone, Debug, thiserror::Error)]
pub enum TimingError {
    #[error(transparent)]
    Kernels(#[from] KernelsUnavailable),
    #[error(transparent)]
    Driver(#[from] DriverError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The shapes of Llama-3.1-8B.
    Full,
    /// A smoke test: tiny shapes, each once.
    Tiny,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timing {
    pub name: String,
    /// Time of one launch, the median of the rounds.
    pub seconds: f64,
    /// Minimum bytes read and written.
    pub bytes: u64,
    /// A multiply-add counts as two operations.
    pub flop: u64,
}

impl Timing {
    pub fn floor_seconds(&self, rates: &Rates) -> f64 {
        let moving = self.bytes as f64 / rates.bytes_per_s();
        let computing = self.flop as f64 / rates.flop_per_s;
        moving.max(computing)
    }
}

/// Measures the GPU's peak rates.
///
/// # Errors
/// If kernels cannot be loaded, or the driver reports an error.
pub fn rates(device: &Device, element: ElementType) -> Result<Rates, TimingError> {
    let modules = Modules::load(device)?;
    let lab = Lab::new(device, &modules, Extent::Full)?;
    Ok(lab.rates(element)?)
}

/// Measures the GPU's peak rates, then each kernel; `report` receives each timing immediately.
///
/// # Errors
/// If kernels cannot be loaded, or the driver reports an error.
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
