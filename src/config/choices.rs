//! Configuration values that are names, such as `auto`, `float16` or `cuda:0`.

use std::collections::BTreeSet;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::keys::{Form, KeyType};
use super::validate::{MAX_RESTART_PERIOD_S, MAX_RESTARTS};
use souffleur_base::kv_layout::KvDtype;
use souffleur_kernels::cpu::Numa;
use souffleur_kernels::dtype::{Dtype, Quantization};
use souffleur_kernels::gemm::GemmWish;
use souffleur_model::loader::LoadFormat;
use souffleur_model::sparsity::ChannelType;
use souffleur_state::router::LoadBalance;
use souffleur_state::supervision::Intensity;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DtypeChoice {
    /// The type that the weights are stored in.
    #[default]
    Auto,
    Float32,
    Float16,
    Bfloat16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvCacheDtype {
    /// The type of the weights.
    #[default]
    Auto,
    Float32,
    Float16,
    #[serde(alias = "bf16")]
    Bfloat16,
    /// Signed bytes with scales.
    Int8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvWritePolicy {
    #[default]
    WriteThrough,
    /// Stores a prefix once two prompts or outputs have contained it.
    WriteThroughSelective,
}

impl KvWritePolicy {
    /// The number of prompts and outputs that must contain a prefix before the prefix is stored.
    pub fn min_hits(self) -> u32 {
        match self {
            Self::WriteThrough => 1,
            Self::WriteThroughSelective => 2,
        }
    }
}

/// The attention kernels. The names of other engines' backends are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum AttentionBackend {
    /// The device's only backend.
    #[default]
    Auto,
    /// This project's own kernels, on either device.
    Native,
}

impl FromStr for AttentionBackend {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "auto" => Ok(Self::Auto),
            "native" => Ok(Self::Native),
            _ => Err(format!(
                "is {name:?}, must be auto or native, which are the same: on cpu and on cuda there is one backend"
            )),
        }
    }
}

impl TryFrom<String> for AttentionBackend {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        name.parse()
    }
}

impl From<AttentionBackend> for String {
    fn from(backend: AttentionBackend) -> Self {
        match backend {
            AttentionBackend::Auto => "auto".to_owned(),
            AttentionBackend::Native => backend.resolved().to_owned(),
        }
    }
}

impl AttentionBackend {
    pub fn resolved(self) -> &'static str {
        match self {
            Self::Auto | Self::Native => "native",
        }
    }
}

/// Where to compute: `auto`, `cpu`, `cuda`, or GPUs by their numbers, as `cuda:1` or `cuda:0,cuda:2`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Device {
    /// The CPU: a GPU must be requested explicitly.
    #[default]
    Auto,
    Cpu,
    Cuda(Gpus),
}

/// The GPUs that run an engine's replicas, by their numbers among those that the driver shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gpus {
    /// One for each replica from number 0 on, or all if there are more replicas.
    Visible,
    /// At least one, and none twice.
    Listed(Vec<usize>),
}

impl Device {
    /// The GPU with this number.
    pub fn gpu(ordinal: usize) -> Self {
        Self::Cuda(Gpus::Listed(vec![ordinal]))
    }
}

impl Gpus {
    /// The GPU of the first replica.
    pub fn first(&self) -> usize {
        match self {
            Self::Visible => 0,
            Self::Listed(ordinals) => ordinals.first().copied().unwrap_or(0),
        }
    }
}

impl FromStr for Device {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(Gpus::Visible)),
            _ => {
                let ordinals: Option<Vec<usize>> = name.split(',').map(ordinal).collect();
                let ordinals = ordinals.ok_or_else(|| {
                    format!(
                        "is {name:?}, must be auto, cpu, cuda or cuda:N (N from 0), or several GPUs as cuda:0,cuda:1"
                    )
                })?;
                match repeated(&ordinals) {
                    Some(twice) => Err(format!(
                        "is {name:?}, which names cuda:{twice} twice: name it once, and raise dp_size for more replicas"
                    )),
                    None => Ok(Self::Cuda(Gpus::Listed(ordinals))),
                }
            }
        }
    }
}

/// The number in `cuda:N`.
fn ordinal(name: &str) -> Option<usize> {
    let number = name.strip_prefix("cuda:")?;
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse().ok().filter(|_| is_number)
}

fn repeated(ordinals: &[usize]) -> Option<usize> {
    let mut seen = BTreeSet::new();
    let mut ordinals = ordinals.iter().copied();
    ordinals.find(|ordinal| !seen.insert(*ordinal))
}

impl TryFrom<String> for Device {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        name.parse()
    }
}

impl From<Device> for String {
    fn from(device: Device) -> Self {
        match device {
            Device::Auto => "auto".to_owned(),
            Device::Cpu => "cpu".to_owned(),
            Device::Cuda(Gpus::Visible) => "cuda".to_owned(),
            Device::Cuda(Gpus::Listed(ordinals)) => {
                let names = ordinals.iter().map(|ordinal| format!("cuda:{ordinal}"));
                names.collect::<Vec<_>>().join(",")
            }
        }
    }
}

/// How many restarts are allowed in any period: `5/60s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MaxRestarts {
    pub limit: u32,
    pub period_s: u32,
}

impl MaxRestarts {
    pub const DEFAULT: Self = Self {
        limit: 5,
        period_s: 60,
    };

    pub fn intensity(self) -> Intensity {
        Intensity {
            limit: self.limit as usize,
            period_s: f64::from(self.period_s),
        }
    }
}

impl FromStr for MaxRestarts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |digits: &str, most: u32| {
            let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
            let number: Option<u32> = digits.parse().ok().filter(|_| is_number);
            number.filter(|number| *number <= most)
        };
        let parse = || {
            let (limit, period) = text.split_once('/')?;
            let period_s = number(period.strip_suffix('s')?, MAX_RESTART_PERIOD_S)?;
            let limit = number(limit, MAX_RESTARTS)?;
            (period_s > 0).then_some(Self { limit, period_s })
        };
        parse().ok_or_else(|| {
            format!(
                "is {text:?}, must be RESTARTS/SECONDSs, as 5/60s for at most 5 restarts in any 60 seconds: 0 to \
                 {MAX_RESTARTS} restarts, 1 to {MAX_RESTART_PERIOD_S} seconds"
            )
        })
    }
}

impl TryFrom<String> for MaxRestarts {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<MaxRestarts> for String {
    fn from(restarts: MaxRestarts) -> Self {
        let MaxRestarts { limit, period_s } = restarts;
        format!("{limit}/{period_s}s")
    }
}

impl DtypeChoice {
    /// The requested type; `None` means the type of the weights.
    pub fn named(self) -> Option<Dtype> {
        match self {
            Self::Auto => None,
            Self::Float32 => Some(Dtype::F32),
            Self::Float16 => Some(Dtype::F16),
            Self::Bfloat16 => Some(Dtype::BF16),
        }
    }
}

impl KvCacheDtype {
    /// The requested type; `None` means the type of the weights.
    pub fn named(self) -> Option<KvDtype> {
        match self {
            Self::Auto => None,
            Self::Float32 => Some(KvDtype::F32),
            Self::Float16 => Some(KvDtype::F16),
            Self::Bfloat16 => Some(KvDtype::BF16),
            Self::Int8 => Some(KvDtype::Int8),
        }
    }
}

impl KeyType for KvCacheDtype {
    const FORM: Form = Form::Name(&["auto", "float32", "float16", "bfloat16", "bf16", "int8"]);
}

impl KeyType for KvWritePolicy {
    const FORM: Form = Form::Name(&["write_through", "write_through_selective"]);
}

impl KeyType for AttentionBackend {
    const FORM: Form = Form::Checked(|name| name.parse::<AttentionBackend>().map(drop));
}

impl KeyType for DtypeChoice {
    const FORM: Form = Form::Name(&["auto", "float32", "float16", "bfloat16"]);
}

impl KeyType for Quantization {
    const FORM: Form = Form::Name(&["int8", "int4"]);
}

impl KeyType for LoadFormat {
    const FORM: Form = Form::Name(&["auto", "dummy"]);
}

impl KeyType for ChannelType {
    const FORM: Form = Form::Name(&["qk", "q", "k"]);
}

impl KeyType for Numa {
    const FORM: Form = Form::Name(&["auto", "off"]);
}

impl KeyType for GemmWish {
    const FORM: Form = Form::Name(&["auto", "cublaslt", "own"]);
}

impl KeyType for LoadBalance {
    const FORM: Form = Form::Name(&["prefix", "round_robin", "total_tokens"]);
}

impl KeyType for Device {
    const FORM: Form = Form::Checked(|name| name.parse::<Device>().map(drop));
}

impl KeyType for MaxRestarts {
    const FORM: Form = Form::Checked(|text| text.parse::<MaxRestarts>().map(drop));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_read_and_written_in_one_form() {
        for (text, device) in [
            ("auto", Device::Auto),
            ("cpu", Device::Cpu),
            ("cuda", Device::Cuda(Gpus::Visible)),
            ("cuda:0", Device::gpu(0)),
            ("cuda:2,cuda:10", Device::Cuda(Gpus::Listed(vec![2, 10]))),
        ] {
            assert_eq!(text.parse::<Device>(), Ok(device.clone()));
            assert_eq!(String::from(device), text);
        }
        for text in [
            "",
            "gpu",
            "cuda:",
            "cuda:x",
            "cuda:+1",
            "cuda:-1",
            "cuda:0,",
            "cuda:0,1",
            "cuda,cuda:1",
            "cuda:0, cuda:1",
        ] {
            let reason = text.parse::<Device>().expect_err(text);
            let start = format!("is {text:?}, must be auto, cpu, cuda or cuda:N");
            assert!(reason.starts_with(&start), "{reason}");
        }
        let reason = "cuda:1,cuda:0,cuda:1".parse::<Device>();
        let reason = reason.expect_err("a GPU is repeated");
        assert!(reason.contains("names cuda:1 twice"), "{reason}");
    }

    #[test]
    fn max_restarts_are_read_and_written_in_one_form() {
        for (text, limit, period_s) in [
            ("5/60s", 5, 60),
            ("0/1s", 0, 1),
            ("1000/86400s", 1000, 86_400),
        ] {
            let restarts = MaxRestarts { limit, period_s };
            assert_eq!(text.parse::<MaxRestarts>(), Ok(restarts));
            assert_eq!(String::from(restarts), text);
        }
        assert_eq!("5/60s".parse::<MaxRestarts>(), Ok(MaxRestarts::DEFAULT));
        for text in [
            "",
            "5",
            "5/",
            "/60s",
            "5/60",
            "5/60 s",
            "5/60m",
            "5/0s",
            "-1/60s",
            "+5/60s",
            "1001/60s",
            "5/86401s",
            "5/60s/1",
            "5.5/60s",
            "99999999999/60s",
        ] {
            let reason = text.parse::<MaxRestarts>().expect_err(text);
            assert!(
                reason.starts_with(&format!("is {text:?}, must be ")),
                "{reason}"
            );
        }
    }
}
