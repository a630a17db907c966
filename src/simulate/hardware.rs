//! The bandwidth, compute rates and memory of a device, read from `config/hardware/*.toml`.

use std::path::Path;

use figment::Figment;
use figment::providers::{Format, Toml};
use serde::{Deserialize, Serialize};

use super::SimulateError;
use souffleur_kernels::dtype::Dtype;

const KNOWN: [(&str, &str); 6] = [
    (
        "h100-sxm",
        include_str!("../../config/hardware/h100-sxm.toml"),
    ),
    ("h200", include_str!("../../config/hardware/h200.toml")),
    (
        "a100-80g",
        include_str!("../../config/hardware/a100-80g.toml"),
    ),
    ("l40s", include_str!("../../config/hardware/l40s.toml")),
    (
        "rtx-4090",
        include_str!("../../config/hardware/rtx-4090.toml"),
    ),
    (
        "zen4-2-cores",
        include_str!("../../config/hardware/zen4-2-cores.toml"),
    ),
];
const MAX_FILE_BYTES: u64 = 1 << 16;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    pub name: String,
    /// The source of the numbers.
    pub source: String,
    pub memory_gib: f64,
    /// Peak memory bandwidth, in GB/s (10^9 bytes).
    pub bandwidth_gb_s: f64,
    /// Bandwidth to the other devices in one direction, in GB/s; `None` if tensor parallelism is not possible.
    pub link_gb_s: Option<f64>,
    /// Bandwidth to host memory in one direction, in GB/s; `None` if the device computes in host memory.
    pub host_link_gb_s: Option<f64>,
    /// Read rate of the KV store's disk, in GB/s: an assumption, since the disk is not part of the device. `None` if
    /// no store can be simulated.
    pub disk_read_gb_s: Option<f64>,
    /// Write rate of the disk, see `disk_read_gb_s`.
    pub disk_write_gb_s: Option<f64>,
    /// The time of a disk read before its first byte, in microseconds.
    pub disk_latency_us: Option<f64>,
    pub tflops: Tflops,
    /// The fraction of the peak bandwidth that kernels reach: an assumption, not from a data sheet.
    pub bandwidth_efficiency: f64,
    /// The fraction of the peak FLOP/s that kernels reach: also an assumption.
    pub flops_efficiency: f64,
    /// The fraction of the shorter of the times for bytes and for FLOPs that the longer one hides: 1 if kernels load and
    /// compute at the same time, 0 if one after the other. Also an assumption.
    #[serde(default = "full_overlap")]
    pub overlap: f64,
    /// The overhead of a step, such as launches and sampling, in microseconds: also an assumption.
    pub step_overhead_us: f64,
    /// Rows of a matrix product, one for each query token, that kernels compute together: more rows are rounded up to
    /// whole groups. `None` if the time of a product grows by single rows.
    pub group_rows: Option<u32>,
    /// The fraction of memory for weights and KV pool, if not configured; `None` for the engine's default.
    pub mem_fraction_static: Option<f64>,
}

/// Peak rates of dense matrix products, in 10^12 operations per second (a multiply-add counts as two).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tflops {
    /// For 32-bit floats (or TF32 in the matrix units).
    pub float32: f64,
    /// For 16-bit floats, FP16 and BF16.
    pub float16: f64,
    pub int8: f64,
}

fn full_overlap() -> f64 {
    1.0
}

impl Hardware {
    pub fn names() -> impl Iterator<Item = &'static str> {
        KNOWN.iter().map(|(name, _)| *name)
    }

    /// Loads a known device or a TOML file. The error lists the known names, or names the file's invalid key and value.
    pub fn load(name_or_file: &str) -> Result<Self, SimulateError> {
        if let Some((name, text)) = KNOWN.iter().find(|(name, _)| *name == name_or_file) {
            return Self::parse(Path::new(name), text);
        }
        let file = Path::new(name_or_file);
        let is_file = std::fs::metadata(file)
            .is_ok_and(|metadata| metadata.is_file() && metadata.len() <= MAX_FILE_BYTES);
        if !is_file {
            let names: Vec<_> = Self::names().collect();
            let reason = format!(
                "is {name_or_file:?}, must be one of {}, or a TOML file of at most {MAX_FILE_BYTES} bytes",
                names.join(", ")
            );
            return Err(SimulateError::value("hardware", reason));
        }
        let text =
            std::fs::read_to_string(file).map_err(|error| SimulateError::file(file, error))?;
        Self::parse(file, &text)
    }

    fn parse(file: &Path, text: &str) -> Result<Self, SimulateError> {
        let parsed: Result<Self, _> = Figment::from(Toml::string(text)).extract();
        let hardware = parsed.map_err(|error| SimulateError::file(file, error))?;
        let ranges = [
            ("memory_gib", hardware.memory_gib, 1e-3, 1e6),
            ("bandwidth_gb_s", hardware.bandwidth_gb_s, 1e-3, 1e9),
            ("link_gb_s", hardware.link_gb_s.unwrap_or(1.0), 1e-3, 1e9),
            (
                "host_link_gb_s",
                hardware.host_link_gb_s.unwrap_or(1.0),
                1e-3,
                1e9,
            ),
            (
                "disk_read_gb_s",
                hardware.disk_read_gb_s.unwrap_or(1.0),
                1e-6,
                1e9,
            ),
            (
                "disk_write_gb_s",
                hardware.disk_write_gb_s.unwrap_or(1.0),
                1e-6,
                1e9,
            ),
            (
                "disk_latency_us",
                hardware.disk_latency_us.unwrap_or(1.0),
                0.0,
                1e9,
            ),
            ("tflops.float32", hardware.tflops.float32, 1e-6, 1e9),
            ("tflops.float16", hardware.tflops.float16, 1e-6, 1e9),
            ("tflops.int8", hardware.tflops.int8, 1e-6, 1e9),
            (
                "bandwidth_efficiency",
                hardware.bandwidth_efficiency,
                1e-3,
                1.0,
            ),
            ("flops_efficiency", hardware.flops_efficiency, 1e-3, 1.0),
            ("overlap", hardware.overlap, 0.0, 1.0),
            ("step_overhead_us", hardware.step_overhead_us, 0.0, 1e9),
            (
                "group_rows",
                hardware.group_rows.map_or(1.0, f64::from),
                1.0,
                65_536.0,
            ),
            (
                "mem_fraction_static",
                hardware.mem_fraction_static.unwrap_or(0.5),
                1e-3,
                0.999,
            ),
        ];
        for (key, value, min, max) in ranges {
            if !(min..=max).contains(&value) {
                let reason = format!("{key} is {value}, must lie between {min} and {max}");
                return Err(SimulateError::file(file, reason));
            }
        }
        Ok(hardware)
    }

    /// The peak rate of matrix products in this dtype, in operations per second.
    pub fn peak_flops(&self, dtype: Dtype) -> f64 {
        let tflops = match dtype {
            Dtype::F32 => self.tflops.float32,
            Dtype::F16 | Dtype::BF16 => self.tflops.float16,
        };
        tflops * 1e12
    }

    pub fn memory_bytes(&self) -> u64 {
        (self.memory_gib * f64::from(1_u32 << 30)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_device_loads_and_has_a_source() {
        for name in Hardware::names() {
            let hardware = Hardware::load(name).expect("it is compiled in");
            assert!(!hardware.source.is_empty(), "{name}");
            assert!(
                hardware.peak_flops(Dtype::BF16) >= hardware.peak_flops(Dtype::F32),
                "{name}"
            );
        }
        let without_key = Hardware::load("h100-sxm").expect("it is compiled in");
        assert_eq!(without_key.overlap, 1.0);
    }

    #[test]
    fn errors_name_the_unknown_device_or_the_invalid_key() {
        let error_for = |text: &str| {
            Hardware::parse(Path::new("gpu.toml"), text)
                .expect_err("it is wrong")
                .to_string()
        };
        let good = KNOWN[0].1;
        assert!(error_for("name = 1").contains("gpu.toml"));
        let zero = good.replace("bandwidth_gb_s = 3350", "bandwidth_gb_s = 0");
        assert_eq!(
            error_for(&zero),
            "gpu.toml: bandwidth_gb_s is 0, must lie between 0.001 and 1000000000"
        );
        let overlap = format!("overlap = 1.5\n{good}");
        assert_eq!(
            error_for(&overlap),
            "gpu.toml: overlap is 1.5, must lie between 0 and 1"
        );
        let surplus = format!("cores = 3\n{good}");
        let error = error_for(&surplus);
        assert!(error.contains("cores"), "{error}");
        let unknown = Hardware::load("h1000")
            .expect_err("there is none")
            .to_string();
        assert!(
            unknown.contains("\"h1000\"") && unknown.contains("h100-sxm"),
            "{unknown}"
        );
    }
}
