//! Measures the highest bandwidth and compute rate of a GPU, in builds with CUDA.

#[cfg(feature = "cuda")]
pub use souffleur::kernels::cuda::timing::Rates as GpuRates;
use souffleur::kernels::dtype::Dtype;

use crate::cli::failure::Failure;

/// Opens a GPU and measures it, with elements of `dtype`. Returns its name and rates.
#[cfg(feature = "cuda")]
pub fn measure(ordinal: usize, dtype: Dtype) -> Result<(String, GpuRates), Failure> {
    use souffleur::kernels::cuda::driver::Device;
    use souffleur::kernels::cuda::params::ElementType;
    use souffleur::kernels::cuda::timing;

    let device = Device::open(ordinal).map_err(Failure::failed)?;
    let element = match dtype {
        Dtype::F32 => ElementType::F32,
        Dtype::F16 | Dtype::BF16 => ElementType::Bf16,
    };
    let rates = timing::rates(&device, element).map_err(Failure::failed)?;
    Ok((device.info().name.clone(), rates))
}

/// Replaces the type of the CUDA kernels in builds without CUDA.
#[cfg(not(feature = "cuda"))]
#[derive(Clone, Copy, Debug, serde::Serialize)]
#[allow(dead_code, reason = "builds without the feature never construct it")]
pub struct GpuRates {
    pub copy_bytes_per_s: f64,
    pub read_bytes_per_s: f64,
    pub flop_per_s: f64,
    pub product: &'static str,
}

#[cfg(not(feature = "cuda"))]
impl GpuRates {
    pub fn bytes_per_s(&self) -> f64 {
        self.copy_bytes_per_s.max(self.read_bytes_per_s)
    }
}

#[cfg(not(feature = "cuda"))]
pub fn measure(ordinal: usize, _: Dtype) -> Result<(String, GpuRates), Failure> {
    Err(Failure::Usage(format!(
        "--device cuda:{ordinal}: this program was built without CUDA: build it with the feature cuda, or use cpu"
    )))
}
