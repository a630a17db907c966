//! Computes medians, percentiles and line fits of samples.

use serde::Serialize;

/// Returns a percentile, interpolated linearly as by numpy's default; `None` without samples.
pub fn percentile(samples: &[f64], percent: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let place = percent.clamp(0.0, 100.0) / 100.0 * (sorted.len().checked_sub(1)? as f64);
    let (below, above) = (
        sorted[place.floor() as usize],
        sorted[place.ceil() as usize],
    );
    Some(below + (above - below) * place.fract())
}

/// Median and spread of repeated samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quartiles {
    pub lower: f64,
    pub median: f64,
    pub upper: f64,
}

impl Quartiles {
    /// `None` without samples.
    pub fn of(samples: &[f64]) -> Option<Self> {
        Some(Self {
            lower: percentile(samples, 25.0)?,
            median: percentile(samples, 50.0)?,
            upper: percentile(samples, 75.0)?,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
}

impl Summary {
    /// `None` without samples.
    pub fn of(samples: &[f64]) -> Option<Self> {
        Some(Self {
            mean: samples.iter().sum::<f64>() / samples.len() as f64,
            p50: percentile(samples, 50.0)?,
            p90: percentile(samples, 90.0)?,
            p99: percentile(samples, 99.0)?,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Line {
    pub intercept: f64,
    pub slope: f64,
}

impl Line {
    /// Fits a line by least squares; `None` unless two points differ in x.
    pub fn fit(points: &[(f64, f64)]) -> Option<Self> {
        let n = points.len() as f64;
        let mean_x = points.iter().map(|(x, _)| x).sum::<f64>() / n;
        let mean_y = points.iter().map(|(_, y)| y).sum::<f64>() / n;
        let spread: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
        let shared: f64 = points
            .iter()
            .map(|(x, y)| (x - mean_x) * (y - mean_y))
            .sum();
        let slope = (spread > 0.0).then(|| shared / spread)?;
        Some(Self {
            intercept: mean_y - slope * mean_x,
            slope,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_lie_between_their_neighbours() {
        let samples = [40.0, 10.0, 30.0, 20.0];
        for (percent, expected) in [
            (0.0, 10.0),
            (25.0, 17.5),
            (50.0, 25.0),
            (90.0, 37.0),
            (100.0, 40.0),
        ] {
            let got = percentile(&samples, percent).expect("the list has samples");
            assert!((got - expected).abs() < 1e-12, "{percent}: {got}");
        }
        assert_eq!(percentile(&[7.0], 99.0), Some(7.0));
        assert_eq!(percentile(&[], 50.0), None);
    }

    #[test]
    fn summaries_need_samples() {
        let samples: Vec<f64> = (1..=101).map(f64::from).collect();
        let expected = Summary {
            mean: 51.0,
            p50: 51.0,
            p90: 91.0,
            p99: 100.0,
        };
        assert_eq!(Summary::of(&samples), Some(expected));
        assert_eq!(Summary::of(&[]), None);
        let quartiles = Quartiles::of(&samples).expect("the list has samples");
        assert_eq!(
            (quartiles.lower, quartiles.median, quartiles.upper),
            (26.0, 51.0, 76.0)
        );
        assert_eq!(Quartiles::of(&[]), None);
    }

    #[test]
    fn points_on_a_line_are_fitted_exactly() {
        let line = Line::fit(&[(1.0, 5.0), (2.0, 7.0), (4.0, 11.0)]).expect("two x values");
        assert_eq!((line.slope, line.intercept), (2.0, 3.0));
        let middle = Line::fit(&[(0.0, 0.0), (0.0, 2.0), (1.0, 3.0)]).expect("two x values");
        assert!((middle.slope - 2.0).abs() < 1e-12 && (middle.intercept - 1.0).abs() < 1e-12);
        assert_eq!(Line::fit(&[(3.0, 1.0), (3.0, 2.0)]), None);
        assert_eq!(Line::fit(&[]), None);
    }
}
