//! Divides the tower's work on an image among steps.

use smallvec::SmallVec;

use crate::scheduler::{Next, Scheduler};
use crate::step::VisionSlice;
use souffleur_base::ids::SeqId;

/// The scheduler's record of a slice in flight.
#[derive(Debug, Default)]
pub(in crate::scheduler) struct SliceRecord {
    pub(in crate::scheduler) flops: u64,
    /// The requests that wait for the image.
    pub(in crate::scheduler) waiting: SmallVec<[SeqId; 2]>,
}

pub(super) struct DueSlice {
    slice: VisionSlice,
    record: SliceRecord,
}

impl Scheduler {
    /// Whether the next step has a slice and nothing to prefill.
    pub(in crate::scheduler) fn tower_has_turn(&self) -> bool {
        let vision = self.vision.as_ref();
        vision.is_some_and(|vision| vision.has_turn && vision.running.is_some())
            && !self.is_paused()
    }

    /// Notes a step with tokens to prefill.
    pub(in crate::scheduler) fn give_tower_turn(&mut self) {
        if let Some(vision) = &mut self.vision {
            vision.has_turn = true;
        }
    }

    /// Adds a slice to the next step that is emitted, which prefills nothing; false if there is no image to encode.
    pub(in crate::scheduler) fn cut_slice(&mut self) -> bool {
        if self.is_paused() {
            return false;
        }
        let budget = self.slice_flops();
        let Some(vision) = self.vision.as_deref_mut() else {
            return false;
        };
        let Some(running) = &mut vision.running else {
            return false;
        };
        let work = &running.encoding.work[..];
        let (first, mut end, mut flops) = (running.n_planned, running.n_planned, 0_u64);
        // At least one unit.
        while end < work.len() && (end == first || flops.saturating_add(work[end]) <= budget) {
            flops = flops.saturating_add(work[end]);
            end += 1;
        }
        let (tickets, seqs) = (running.encoding.tickets.iter(), &vision.tickets);
        let waiting = tickets.filter_map(|ticket| seqs.get(ticket).copied());
        vision.due = Some(DueSlice {
            slice: VisionSlice {
                job: running.encoding.job,
                input: running.encoding.input.clone(),
                units: first as u32..end as u32,
                n_units: work.len() as u32,
            },
            record: SliceRecord {
                flops,
                waiting: waiting.collect(),
            },
        });
        running.n_planned = end;
        if end >= work.len() {
            vision.running = None;
        }
        vision.has_turn = false;
        true
    }

    /// Emits a step without rows if there is an image to encode.
    pub(in crate::scheduler) fn run_slice(&mut self) -> Next {
        if self.cut_slice() {
            self.emit(Vec::new(), Vec::new())
        } else {
            Next::Nothing
        }
    }

    pub(in crate::scheduler) fn take_slice(&mut self) -> (Option<Box<VisionSlice>>, SliceRecord) {
        let due = self.vision.as_mut().and_then(|vision| vision.due.take());
        match due {
            Some(DueSlice { slice, record }) => (Some(Box::new(slice)), record),
            None => (None, SliceRecord::default()),
        }
    }

    /// Notes the duration of a step with this many operations of the tower.
    pub(in crate::scheduler) fn note_slice_time(&mut self, flops: u64, micros: u64) {
        if let Some(vision) = &mut self.vision {
            vision.pace.note(flops, micros);
        }
    }
}
