//! Generates a synthetic load: requests with random arrival times, lengths and shared prefixes.

use std::fmt;
use std::str::FromStr;

use fastrand::Rng;

use super::SimulateError;
use super::trace::{
    Blocks, MAX_REQUESTS, MAX_TOKENS, Prompt, Segment, Trace, TraceRequest, blocks_for,
};

#[derive(Clone, Debug, PartialEq)]
pub struct SyntheticLoad {
    pub requests: usize,
    /// Requests per second.
    pub rate: f64,
    /// The distribution of arrival times.
    pub arrivals: Arrivals,
    /// The number of prompt tokens, in addition to a shared prefix.
    pub input_tokens: Lengths,
    pub output_tokens: Lengths,
    pub shared_prefixes: u32,
    /// The length of each shared prefix, in tokens.
    pub shared_prefix_tokens: u32,
    /// The fraction of requests that start with a shared prefix, from 0 to 1.
    pub shared_fraction: f64,
    /// The random seed: the same seed gives the same load.
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arrivals {
    /// A Poisson process: exponential gaps between requests.
    #[default]
    Poisson,
    Uniform,
    Burst,
}

impl FromStr for Arrivals {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "poisson" => Ok(Self::Poisson),
            "uniform" => Ok(Self::Uniform),
            "burst" => Ok(Self::Burst),
            _ => Err(format!("is {text:?}, must be poisson, uniform or burst")),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lengths {
    Fixed(u32),
    /// Uniform from the first to the second, both included.
    Uniform(u32, u32),
    Exponential(f64),
    /// The median, and the standard deviation of the logarithm.
    Lognormal(f64, f64),
}

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "is {text:?}, must be a number of tokens up to {MAX_TOKENS}, uniform:FROM..TO, exponential:MEAN or \
                 lognormal:MEDIAN,SIGMA with a sigma from 0 to 4"
            )
        };
        let number = |text: &str| -> Option<f64> {
            let number = text.trim().parse().ok()?;
            (0.0..=f64::from(MAX_TOKENS))
                .contains(&number)
                .then_some(number)
        };
        let parsed = match text.split_once(':') {
            None => number(text)
                .filter(|n| n.fract() == 0.0)
                .map(|n| Self::Fixed(n as u32)),
            Some(("uniform", range)) => range.split_once("..").and_then(|(from, to)| {
                let (from, to) = (number(from)?, number(to)?);
                let is_range = from <= to && from.fract() == 0.0 && to.fract() == 0.0;
                is_range.then_some(Self::Uniform(from as u32, to as u32))
            }),
            Some(("exponential", mean)) => number(mean).map(Self::Exponential),
            Some(("lognormal", parameters)) => {
                parameters.split_once(',').and_then(|(median, sigma)| {
                    let (median, sigma) = (number(median)?, number(sigma)?);
                    (sigma <= 4.0).then_some(Self::Lognormal(median, sigma))
                })
            }
            Some(_) => None,
        };
        parsed.ok_or_else(wrong)
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(tokens) => write!(f, "{tokens}"),
            Self::Uniform(from, to) => write!(f, "uniform:{from}..{to}"),
            Self::Exponential(mean) => write!(f, "exponential:{mean}"),
            Self::Lognormal(median, sigma) => write!(f, "lognormal:{median},{sigma}"),
        }
    }
}

impl Lengths {
    fn draw(self, rng: &mut Rng) -> u32 {
        let drawn = match self {
            Self::Fixed(tokens) => return tokens,
            Self::Uniform(from, to) => return rng.u32(from..=to),
            Self::Exponential(mean) => mean * exponential(rng),
            Self::Lognormal(median, sigma) => median * (sigma * normal(rng)).exp(),
        };
        // The cast saturates, so that large values are clipped.
        (drawn.round() as u32).min(MAX_TOKENS / 2)
    }
}

impl SyntheticLoad {
    /// Generates the requests. Fails if a parameter is out of range.
    pub fn trace(&self) -> Result<Trace, SimulateError> {
        self.check()?;
        let mut rng = Rng::with_seed(self.seed);
        let mut blocks = Blocks::default();
        let prefix_blocks = blocks_for(self.shared_prefix_tokens);
        let too_many = || {
            SimulateError::value(
                "requests",
                "have more than 2^31 prompt blocks: lower requests, input_len or shared_prefixes",
            )
        };
        let shared = self
            .shared_prefixes
            .checked_mul(prefix_blocks)
            .ok_or_else(too_many)?;
        blocks.reserve(shared).ok_or_else(too_many)?;
        let mut trace = Trace::default();
        let mut arrival_s = 0.0;
        for index in 0..self.requests {
            if index > 0 {
                arrival_s += self.gap_s(&mut rng);
            }
            let mut prompt = Prompt::default();
            if self.shared_prefixes > 0 && rng.f64() < self.shared_fraction {
                let first_block = rng.u32(0..self.shared_prefixes) * prefix_blocks;
                prompt.push(Segment {
                    first_block,
                    tokens: self.shared_prefix_tokens,
                });
            }
            let tokens = self
                .input_tokens
                .draw(&mut rng)
                .max(u32::from(prompt.len() == 0));
            let first_block = blocks.reserve(blocks_for(tokens)).ok_or_else(too_many)?;
            prompt.push(Segment {
                first_block,
                tokens,
            });
            let output_tokens = self.output_tokens.draw(&mut rng).max(1);
            trace.requests.push(TraceRequest {
                arrival_s,
                prompt,
                output_tokens,
            });
        }
        trace.n_blocks = blocks.count();
        Ok(trace)
    }

    fn gap_s(&self, rng: &mut Rng) -> f64 {
        match self.arrivals {
            Arrivals::Poisson => exponential(rng) / self.rate,
            Arrivals::Uniform => 1.0 / self.rate,
            Arrivals::Burst => 0.0,
        }
    }

    fn check(&self) -> Result<(), SimulateError> {
        let out_of_range = |what: &str, value: String, limits: &str| {
            Err(SimulateError::value(
                what,
                format!("is {value}, must {limits}"),
            ))
        };
        if !(1..=MAX_REQUESTS).contains(&self.requests) {
            let limits = format!("lie between 1 and {MAX_REQUESTS}");
            return out_of_range("requests", self.requests.to_string(), &limits);
        }
        if !(1e-6..=1e9).contains(&self.rate) {
            return out_of_range(
                "request_rate",
                self.rate.to_string(),
                "lie between 1e-6 and 1e9 a second",
            );
        }
        if !(0.0..=1.0).contains(&self.shared_fraction) {
            return out_of_range(
                "shared_fraction",
                self.shared_fraction.to_string(),
                "lie between 0 and 1",
            );
        }
        if self.shared_prefix_tokens > MAX_TOKENS / 2 {
            let limits = format!("be at most {}", MAX_TOKENS / 2);
            return out_of_range(
                "shared_prefix_len",
                self.shared_prefix_tokens.to_string(),
                &limits,
            );
        }
        Ok(())
    }
}

/// Draws from the exponential distribution with mean 1.
fn exponential(rng: &mut Rng) -> f64 {
    -(1.0 - rng.f64()).ln()
}

/// Draws from the standard normal distribution (Box-Muller).
fn normal(rng: &mut Rng) -> f64 {
    let radius = (2.0 * exponential(rng)).sqrt();
    radius * (std::f64::consts::TAU * rng.f64()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> SyntheticLoad {
        SyntheticLoad {
            requests: 4000,
            rate: 10.0,
            arrivals: Arrivals::Poisson,
            input_tokens: Lengths::Lognormal(1000.0, 0.5),
            output_tokens: Lengths::Exponential(200.0),
            shared_prefixes: 8,
            shared_prefix_tokens: 700,
            shared_fraction: 0.5,
            seed: 1,
        }
    }

    #[test]
    fn loads_have_the_given_rate_lengths_and_shared_fraction() {
        let trace = load().trace().expect("the load is valid");
        assert_eq!(trace, load().trace().expect("the load is valid"));
        assert!(
            (360.0..440.0).contains(&trace.span_s()),
            "{}",
            trace.span_s()
        );
        let mean_output = trace.output_tokens() as f64 / 4000.0;
        assert!((185.0..215.0).contains(&mean_output), "{mean_output}");
        // The mean is exp(sigma^2 / 2) times the median, plus a prefix of 700 tokens for half of the requests.
        let mean_input = trace.prompt_tokens() as f64 / 4000.0;
        assert!((1430.0..1540.0).contains(&mean_input), "{mean_input}");
        let starts: std::collections::HashSet<u32> = trace
            .requests
            .iter()
            .map(|request| request.prompt.tokens()[0])
            .collect();
        assert!((1900..2110).contains(&starts.len()), "{}", starts.len());
    }

    #[test]
    fn lengths_are_parsed_as_they_are_displayed() {
        for text in [
            "512",
            "uniform:1..9",
            "exponential:80.5",
            "lognormal:300,1.2",
        ] {
            assert_eq!(
                text.parse::<Lengths>().expect("valid lengths").to_string(),
                text
            );
        }
        for text in [
            "",
            "-1",
            "1.5",
            "nan",
            "uniform:9..1",
            "uniform:1",
            "lognormal:1",
            "lognormal:1,9",
            "zipf:2",
            "1e99",
        ] {
            assert!(text.parse::<Lengths>().is_err(), "{text}");
        }
        let mut rng = Rng::with_seed(0);
        let draws: Vec<u32> = (0..1000)
            .map(|_| Lengths::Uniform(3, 5).draw(&mut rng))
            .collect();
        assert_eq!(
            (draws.iter().min(), draws.iter().max()),
            (Some(&3), Some(&5))
        );
    }

    #[test]
    fn loads_out_of_range_are_refused() {
        let wrong = [
            SyntheticLoad {
                requests: 0,
                ..load()
            },
            SyntheticLoad {
                requests: usize::MAX,
                ..load()
            },
            SyntheticLoad {
                rate: 0.0,
                ..load()
            },
            SyntheticLoad {
                rate: f64::NAN,
                ..load()
            },
            SyntheticLoad {
                shared_fraction: 1.1,
                ..load()
            },
            SyntheticLoad {
                shared_prefix_tokens: u32::MAX,
                ..load()
            },
            SyntheticLoad {
                shared_prefixes: u32::MAX,
                ..load()
            },
        ];
        for load in wrong {
            assert!(load.trace().is_err(), "{load:?}");
        }
    }
}
