//! Formats sizes as text, such as `1.5 GiB`.

use std::fmt;

pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        match units.into_iter().find(|(shift, _)| self.0 >> shift > 0) {
            Some((shift, unit)) => {
                write!(f, "{:.1} {unit}", self.0 as f64 / (1_u64 << shift) as f64)
            }
            None => write!(f, "{} B", self.0),
        }
    }
}
