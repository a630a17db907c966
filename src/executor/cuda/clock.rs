//! Measures the device's busy time in each step (a lap), and its idle time before decodes.
//!
//! Only idle time before a decode counts: a decode could follow the previous step at once, while a prefill may follow
//! a time without requests. A failed measurement does not fail the step.

use souffleur_kernels::cuda::driver::{Device, DriverError, Event, Stream};
use souffleur_metrics::GpuMetrics;
use souffleur_state::step::PIPELINE_DEPTH;

/// More than the steps in flight: the idle time before the oldest of them begins with the end of an earlier lap.
const N_LAPS: usize = PIPELINE_DEPTH + 2;

pub(super) struct StepClock {
    laps: Vec<Lap>,
    next: usize,
    /// The lap that was measured last, if no step was lost since.
    measured: Option<usize>,
    metrics: GpuMetrics,
}

struct Lap {
    began: Event,
    ended: Event,
    is_decode: bool,
}

impl StepClock {
    pub(super) fn new(device: &Device) -> Result<Self, DriverError> {
        let lap = |_| {
            Ok(Lap {
                began: device.timed_event()?,
                ended: device.timed_event()?,
                is_decode: false,
            })
        };
        Ok(Self {
            laps: (0..N_LAPS).map(lap).collect::<Result<_, _>>()?,
            next: 0,
            measured: None,
            metrics: GpuMetrics::register(device.info().ordinal),
        })
    }

    /// Begins a lap, before the step's work is launched.
    pub(super) fn begin(&mut self, compute: &Stream, is_decode: bool) -> Result<(), DriverError> {
        let lap = &mut self.laps[self.next];
        lap.is_decode = is_decode;
        compute.record(&lap.began)
    }

    /// Ends the lap after the step's work was launched. Returns the lap's index for [`Self::measure`].
    pub(super) fn end(&mut self, compute: &Stream) -> Result<usize, DriverError> {
        let lap = self.next;
        self.next = (lap + 1) % N_LAPS;
        compute.record(&self.laps[lap].ended)?;
        Ok(lap)
    }

    pub(super) fn measure(&mut self, index: usize) {
        let lap = &self.laps[index];
        let seconds = |from: &Event, to: &Event| {
            let ms = to.ms_since(from).ok()?;
            Some(f64::from(ms).max(0.0) / 1e3)
        };
        if let Some(busy) = seconds(&lap.began, &lap.ended) {
            self.metrics.busy(lap.is_decode, busy);
        }
        let before = self
            .measured
            .replace(index)
            .map(|before| &self.laps[before]);
        let idle = before
            .filter(|_| lap.is_decode)
            .and_then(|before| seconds(&before.ended, &lap.began));
        if let Some(idle) = idle {
            self.metrics.idle(idle);
        }
    }

    pub(super) fn skip_next_idle(&mut self) {
        self.measured = None;
    }
}
