//! Reads from the engine's metrics how long the GPU waits for the host before decode steps.

use metrics_exporter_prometheus::PrometheusHandle;

const SECONDS: &str = "souffleur_gpu_seconds_total{";

pub struct StepWaits(pub PrometheusHandle);

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuSeconds {
    decode: f64,
    idle: f64,
}

impl StepWaits {
    /// The GPU times so far; `None` before the first step.
    pub fn read(&self) -> Option<GpuSeconds> {
        parse(&self.0.render())
    }
}

impl GpuSeconds {
    /// The idle time before decode steps as a share of idle and decode time; `None` if nothing was decoded.
    pub fn share_since(self, before: Self) -> Option<f64> {
        let (decode, idle) = (self.decode - before.decode, self.idle - before.idle);
        (decode > 0.0).then(|| idle / (decode + idle))
    }
}

fn parse(page: &str) -> Option<GpuSeconds> {
    let seconds = |state: &str| -> Option<f64> {
        let label = format!("state=\"{state}\"");
        let mut lines = page.lines().filter(|line| line.starts_with(SECONDS));
        let line = lines.find(|line| line.contains(&label))?;
        line.rsplit(' ').next()?.parse().ok()
    };
    Some(GpuSeconds {
        decode: seconds("decode")?,
        idle: seconds("idle_before_decode")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_a_share_of_idle_and_decode_time() {
        let page = "# TYPE souffleur_gpu_seconds_total gauge\n\
            souffleur_gpu_seconds_total{gpu=\"0\",state=\"prefill\"} 9\n\
            souffleur_gpu_seconds_total{gpu=\"0\",state=\"idle_before_decode\"} 0.25\n\
            souffleur_gpu_seconds_total{gpu=\"0\",state=\"decode\"} 1.5\n";
        let before = GpuSeconds {
            decode: 0.75,
            idle: 0.0,
        };
        let read = parse(page).expect("the page has both metrics");
        assert_eq!(read.share_since(before), Some(0.25));
        assert_eq!(read.share_since(read), None);
        assert_eq!(parse("# nothing"), None);
    }
}
