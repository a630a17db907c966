//! The file that stores a processor's measured instruction rates, so that each start chooses the same kernel path.
//!
//! One file per processor, set of paths and program version, in the user's cache folder. If several processes measure
//! at once, the first writes it and the others read it.

use std::ffi::OsString;
use std::fmt::Write;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::super::probe::Arithmetic;
use super::super::simd::Isa;
use super::choice::Rates;
use super::processor::Processor;

const HEADER: &str = "souffleur kernel rates 1";
const MOST_BYTES: u64 = 4096;
/// Rates of debug kernels say nothing about a release build.
const BUILD: &str = if cfg!(debug_assertions) { "-debug" } else { "" };

/// The cache folder of this program: `XDG_CACHE_HOME/souffleur`, else `HOME/.cache/souffleur`. Empty variables and
/// relative paths count as unset.
///
/// # Errors
/// If neither is an absolute path.
pub fn cache_folder(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, String> {
    let absolute = |name| {
        let path = PathBuf::from(variable(name)?);
        path.is_absolute().then_some(path)
    };
    let cache =
        absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    let cache = cache.ok_or("neither XDG_CACHE_HOME nor HOME is an absolute path")?;
    Ok(cache.join("souffleur"))
}

#[derive(Clone, Debug, PartialEq)]
pub struct SavedRates(Vec<(Arithmetic, f64)>);

impl SavedRates {
    /// Billions of operations per second, by instruction.
    pub fn into_giga_ops(self) -> Vec<(Arithmetic, f64)> {
        self.0
    }
}

impl Rates for SavedRates {
    fn measure(&mut self, instructions: &[Arithmetic]) -> Vec<(Arithmetic, f64)> {
        let known = self.0.iter().filter(|(of, _)| instructions.contains(of));
        known.copied().collect()
    }
}

pub struct RatesFile {
    file: PathBuf,
    head: String,
}

impl RatesFile {
    /// # Errors
    /// The error of `cache`.
    pub fn new(
        cache: Result<&Path, &String>,
        processor: &Processor,
        available: &[Isa],
    ) -> Result<Self, String> {
        let cache = cache.map_err(String::clone)?;
        let Processor {
            vendor,
            family,
            model,
            stepping,
        } = processor;
        let version = env!("CARGO_PKG_VERSION");
        let best = available.last().map_or("portable", |isa| isa.name());
        let name = format!(
            "kernel-rates-{vendor}-{family}-{model}-{stepping}-{best}-{version}{BUILD}.txt"
        );
        let paths: Vec<_> = available.iter().map(|isa| isa.name()).collect();
        let head = format!(
            "{HEADER}\nprocessor {vendor} family {family} model {model} stepping {stepping}\npaths {}\nversion {version}{BUILD}\n",
            paths.join(" ")
        );
        Ok(Self {
            file: cache.join(name),
            head,
        })
    }

    pub fn into_file(self) -> PathBuf {
        self.file
    }

    /// Reads the rates from the file. If the file is missing or invalid, calls `measure` and stores the result.
    ///
    /// # Errors
    /// If the file cannot be read or written; names the file.
    pub fn read_or_measure(
        &self,
        measure: impl FnOnce() -> Vec<(Arithmetic, f64)>,
    ) -> Result<SavedRates, String> {
        let shown = self.file.display();
        let failed = |error: io::Error| format!("{shown}: {error}");
        match self.read().map_err(failed)? {
            Some(saved) => Ok(saved),
            None => {
                self.write(&self.text(&measure())).map_err(failed)?;
                // Use the file's rounded numbers, as later starts do.
                let written = self.read().map_err(failed)?;
                written.ok_or_else(|| format!("{shown}: differs from the text that was written"))
            }
        }
    }

    fn read(&self) -> io::Result<Option<SavedRates>> {
        let file = match File::open(&self.file) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut bytes = Vec::new();
        file.take(MOST_BYTES).read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        Ok(self.parse(&text))
    }

    fn parse(&self, text: &str) -> Option<SavedRates> {
        let rates = text.strip_prefix(&self.head)?.strip_suffix("end\n")?;
        let rates = rates.lines().map(|line| {
            let (name, rate) = line.rsplit_once(": ")?;
            let instruction = Arithmetic::ALL.into_iter().find(|of| of.name() == name)?;
            let rate = rate.parse::<f64>().ok()?;
            (rate.is_finite() && rate >= 0.0).then_some((instruction, rate))
        });
        rates.collect::<Option<_>>().map(SavedRates)
    }

    fn text(&self, rates: &[(Arithmetic, f64)]) -> String {
        let mut text = self.head.clone();
        for (instruction, rate) in rates {
            let _ = writeln!(text, "{}: {:.1}", instruction.name(), rate / 1e9);
        }
        text + "end\n"
    }

    /// Creates the file atomically, unless another process has created a valid one.
    fn write(&self, text: &str) -> io::Result<()> {
        if let Some(folder) = self.file.parent() {
            fs::create_dir_all(folder)?;
        }
        static WRITTEN: AtomicU32 = AtomicU32::new(0);
        let n = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let partial = format!("{}-{n}.partial", std::process::id());
        let partial = self.file.with_extension(partial);
        let put = || {
            fs::write(&partial, text)?;
            match fs::hard_link(&partial, &self.file) {
                Err(_) if self.read()?.is_some() => Ok(()),
                // The existing file is damaged, or the file system has no hard links.
                Err(_) => fs::rename(&partial, &self.file),
                Ok(()) => Ok(()),
            }
        };
        let put = put();
        let _ = fs::remove_file(&partial);
        put
    }
}
