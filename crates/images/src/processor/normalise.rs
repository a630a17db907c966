//! Samples of 0 to 255 as the floats that a tower takes.

/// How samples become floats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Normalisation {
    /// Only scaled, in f64, and rounded to f32.
    Scale {
        /// Usually 1/255.
        scale: f64,
    },
    /// Scaled in f64 and rounded to f32, then mean and deviation in f32: transformers' PIL processors.
    Rescaled {
        /// Usually 1/255.
        scale: f64,
        /// For each channel.
        mean: [f64; 3],
        /// For each channel.
        std: [f64; 3],
    },
    /// `(x - mean / scale) / (std / scale)` in f32: processors that have no form in PIL. It differs from the other by an
    /// ulp here and there.
    Fused {
        /// Usually 1/255.
        scale: f64,
        /// For each channel.
        mean: [f64; 3],
        /// For each channel.
        std: [f64; 3],
    },
}

impl Normalisation {
    /// The same numbers in the fused form.
    pub(super) fn fused(self) -> Self {
        match self {
            Self::Rescaled { scale, mean, std } => Self::Fused { scale, mean, std },
            other => other,
        }
    }

    /// The float of each sample, for each channel.
    pub fn table(&self) -> [[f32; 256]; 3] {
        let mut table = [[0.0; 256]; 3];
        for (channel, floats) in table.iter_mut().enumerate() {
            for (sample, float) in floats.iter_mut().enumerate() {
                *float = self.float(sample as u8, channel);
            }
        }
        table
    }

    fn float(&self, sample: u8, channel: usize) -> f32 {
        match self {
            Self::Scale { scale } => (f64::from(sample) * scale) as f32,
            Self::Rescaled { scale, mean, std } => {
                let scaled = (f64::from(sample) * scale) as f32;
                (scaled - mean[channel] as f32) / std[channel] as f32
            }
            Self::Fused { scale, mean, std } => {
                let full = (1.0 / scale) as f32;
                let (mean, std) = (mean[channel] as f32 * full, std[channel] as f32 * full);
                (f32::from(sample) - mean) / std
            }
        }
    }
}
