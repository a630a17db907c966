//! Samples of 0 to 255 as the floats that a tower takes.

/// How samples become floats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Normalisation {
    /// Samples are scaled in f64 and rounded to f32; mean and deviation are not applied.
    Scale {
        /// Usually 1/255.
        scale: f64,
    },
    /// Samples are scaled in f64 and rounded to f32, then normalised in f32, as transformers' PIL processors do.
    Rescaled {
        /// Usually 1/255.
        scale: f64,
        /// For each channel.
        mean: [f64; 3],
        /// For each channel.
        std: [f64; 3],
    },
    /// `(x - mean / scale) / (std / scale)` in f32, as processors without a PIL version compute it. Some results differ
    /// from [`Self::Rescaled`] by an ulp.
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
    /// The fused form with the same scale, mean and deviation.
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
