//! From grants to a step.

use std::sync::Arc;

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use crate::ids::{SeqId, StepId};
use crate::state::plan::prefill_adder::Budget;
use crate::state::plan::{Admitted, CheckpointedSeq, Grant, Growth, Planned, Reservation, Verdict};
use crate::state::pool::pages::Pages;
use crate::state::sampling::LogprobWish;
use crate::state::scheduler::sequence::{Phase, Sequence, SequenceKv};
use crate::state::step::{RowStart, RowWork, StepPlan, StepRow, TableDelta};

use super::{Next, OpenPlan, Scheduler, StepRecord};

impl Scheduler {
    /// Takes the answer to the open plan: a step to run, a further plan after a retraction, or nothing.
    pub fn planned(&mut self, planned: Planned) -> Next {
        let Planned {
            step,
            reservation,
            mut verdict,
            free_pages,
            free_rows,
        } = planned;
        let open = self
            .open
            .take()
            .expect("the pools answer only what the scheduler asked");
        debug_assert_eq!(open.step, step);
        self.free_pages = free_pages;
        self.free_rows = free_rows;
        self.take_verdict(&mut verdict);
        self.take_flushed_pages(&open, verdict.flushed_pages);
        let admitted = std::mem::take(&mut verdict.admitted);
        let next = match (reservation, verdict.preempt.take()) {
            (_, Some(preempt)) => {
                self.check_integrity();
                self.preempt(preempt, open)
            }
            (Reservation::Granted { growth, .. }, None) if admitted.is_empty() => {
                self.attach_growth(growth);
                self.check_integrity();
                self.run_decode(open)
            }
            (Reservation::Granted { grants, growth }, None) => {
                let rows = self.attach_admitted(admitted, grants);
                self.attach_growth(growth);
                self.check_integrity();
                self.run_prefill(rows, open, verdict.mixed)
            }
            (Reservation::Short { .. }, None) => {
                self.undo_admission(admitted);
                self.check_integrity();
                self.give_way(open)
            }
        };
        let gone = std::mem::take(&mut verdict.evicted_edges);
        match verdict.flushed_pages {
            Some(_) => self.note_flush(step, gone),
            None => self.note_evictions(step, gone),
        }
        if matches!(next, Next::Nothing)
            && verdict.budget == Some(Budget::NoToken)
            && let Some(refused) = verdict.refused
        {
            self.relieve_idle_engine(refused);
        }
        self.reset_ratio_when_idle();
        next
    }

    fn take_verdict(&mut self, verdict: &mut Verdict) {
        if let Some(cache) = verdict.cache {
            self.cache = cache;
        }
        self.counters.evicted_tokens += verdict.evicted_tokens as u64;
        for checkpointed in std::mem::take(&mut verdict.checkpointed) {
            self.take_checkpointed(checkpointed);
        }
        if self.pins.granted(std::mem::take(&mut verdict.pinned)) {
            self.is_dirty = true;
        }
        for &seq in &verdict.held {
            if let Some(sequence) = self.sequences.get_mut(seq) {
                sequence.waits += 1;
            }
        }
        let is_busy = !verdict.admitted.is_empty() || !self.running.is_empty();
        if verdict.budget == Some(Budget::NoToken) || self.free_rows == 0 {
            // Whoever ended while the plan was open makes room with the next one.
            self.batch_is_full = is_busy && self.ended.is_empty();
        }
    }

    pub(super) fn take_checkpointed(&mut self, checkpointed: CheckpointedSeq) {
        let CheckpointedSeq {
            seq,
            lock,
            private,
            protected_pages,
            remap_from,
            remap,
            inserted_tokens,
        } = checkpointed;
        let kv = self.sequences[seq].held_kv_mut();
        kv.lock = lock;
        kv.private = private;
        kv.protected_pages = protected_pages;
        kv.inserted_tokens = inserted_tokens;
        if !remap.is_empty() {
            self.deltas.push(TableDelta::Remap {
                row: kv.row,
                from: remap_from as u32,
                pages: Box::new(remap),
            });
        }
    }

    fn attach_growth(&mut self, growth: Growth) {
        let Growth { seqs, pages } = growth;
        self.deltas.reserve(seqs.len());
        let mut pages = pages.one_by_one();
        for seq in seqs {
            let sequence = &mut self.sequences[seq];
            let is_alive = !sequence.has_ended;
            let kv = sequence.held_kv_mut();
            let page = pages
                .next_to(&mut kv.private)
                .expect("a page was granted to each");
            if is_alive {
                let (row, pages) = (kv.row, SmallVec::from_buf_and_len([page; 2], 1));
                // Built where it stays: `push` would copy it from the stack in large parts, and wait until its small
                // ones have left the processor's store buffer.
                self.deltas
                    .extend(std::iter::once_with(|| TableDelta::Append { row, pages }));
            }
        }
    }

    fn append_pages(&mut self, seq: SeqId, pages: Pages) {
        let sequence = &mut self.sequences[seq];
        let is_alive = !sequence.has_ended;
        let kv = sequence.held_kv_mut();
        let ids: SmallVec<[_; 2]> = pages.ids().iter().copied().collect();
        if !ids.is_empty() && is_alive {
            self.deltas.push(TableDelta::Append {
                row: kv.row,
                pages: ids,
            });
        }
        kv.private.append(pages);
    }

    /// Gives the admitted sequences their memory. A sequence that was cancelled meanwhile takes it too, and gives it
    /// back with the next plan; only the others are returned, as the rows of the step.
    fn attach_admitted(&mut self, admitted: Vec<Admitted>, grants: Vec<Grant>) -> PrefillRows {
        let mut rows = PrefillRows::default();
        self.leave_queue(&admitted);
        for (admitted, grant) in admitted.into_iter().zip(grants) {
            debug_assert_eq!(admitted.seq, grant.seq);
            let seq = admitted.seq;
            let is_start = admitted.lock.is_some();
            let (start, end, chunked) =
                (admitted.prefix_len, admitted.extend_end, admitted.chunked);
            if is_start {
                let row_start = self.start_row(admitted, grant);
                if !self.sequences[seq].has_ended {
                    rows.starts.push(row_start);
                }
            } else {
                self.append_pages(seq, grant.pages);
            }
            if !self.sequences[seq].has_ended {
                rows.rows.push(self.extend_row(seq, start, end, chunked));
            }
        }
        rows
    }

    /// One pass over the queue however many are admitted: thousands may wait.
    fn leave_queue(&mut self, admitted: &[Admitted]) {
        let starting: FxHashSet<SeqId> = admitted.iter().map(|admitted| admitted.seq).collect();
        self.waiting.retain(|seq| !starting.contains(seq));
        self.retracted.retain(|seq| !starting.contains(seq));
    }

    fn start_row(&mut self, admitted: Admitted, grant: Grant) -> RowStart {
        let Admitted {
            seq,
            lock,
            prefix,
            prefix_len,
            departure,
            ..
        } = admitted;
        self.note_departure(seq, departure);
        let row = grant.row.expect("a sequence that starts asks for a row");
        let sequence = &mut self.sequences[seq];
        if sequence.cached_tokens.is_none() {
            self.first_admissions.push(sequence.request.submitted_s);
            sequence.cached_tokens = Some(prefix_len as u32);
            self.counters.prompt_tokens += sequence.request.prompt.len() as u64;
            self.counters.cached_tokens += prefix_len as u64;
        }
        sequence.kv = Some(SequenceKv {
            row,
            lock: lock.unwrap_or_default(),
            protected_pages: prefix.len(),
            private: Pages::empty(),
            committed: prefix_len,
            inserted_tokens: 0,
        });
        let start = RowStart {
            row,
            seq,
            tokens: sequence.fill.clone(),
            prompt_tokens: sequence.request.prompt.len() as u32,
            sampling: sequence.request.sampling.clone(),
            prefix,
        };
        self.append_pages(seq, grant.pages);
        start
    }

    fn extend_row(&mut self, seq: SeqId, start: usize, end: usize, chunked: bool) -> StepRow {
        let was_chunked = self.chunked == Some(seq);
        if chunked {
            self.chunked = Some(seq);
        } else {
            if was_chunked {
                self.chunked = None;
            }
            self.running.push(seq);
        }
        self.extended.push(seq);
        let step = self.next_step;
        let sequence = &mut self.sequences[seq];
        sequence.phase = if chunked {
            Phase::Chunked
        } else {
            Phase::Running
        };
        let sample = !chunked && sequence.remaining_new_tokens() > 0;
        sequence.planned_output += usize::from(sample);
        let logprobs = prefill_logprobs(sequence);
        let row = commit_row(sequence, step, end);
        StepRow {
            row,
            seq,
            work: RowWork::Prefill {
                positions: start as u32..end as u32,
            },
            sample,
            logprobs,
        }
    }

    /// With `mixed`, the decode rides behind the prefill rows; otherwise it sits this step out.
    fn run_prefill(&mut self, prefill: PrefillRows, open: OpenPlan, mixed: bool) -> Next {
        let PrefillRows { starts, mut rows } = prefill;
        let decode = self.alive(open.decode);
        let rides = mixed && !decode.is_empty();
        if self.recovering || rows.is_empty() && !rides {
            return Next::Nothing;
        }
        if rides {
            self.counters.mixed_steps += u64::from(!rows.is_empty());
            rows.extend(self.decode_step_rows(&decode));
        }
        self.note_prefill_step(!mixed && !decode.is_empty());
        self.emit(starts, rows)
    }

    /// Drops who ended while the plan was open. Whoever else leaves the batch does so with a plan of its own, which
    /// comes with its own list.
    fn alive(&self, mut decode: Vec<SeqId>) -> Vec<SeqId> {
        let is_alive = |seq: &SeqId| self.sequences.get(*seq).is_some_and(Sequence::can_decode);
        if !self.ended.is_empty() {
            decode.retain(is_alive);
        }
        debug_assert!(decode.iter().all(is_alive));
        decode
    }

    fn run_decode(&mut self, open: OpenPlan) -> Next {
        if self.recovering {
            return Next::Nothing;
        }
        let decode = self.alive(open.decode);
        if decode.is_empty() {
            return Next::Nothing;
        }
        self.ratio.decay();
        self.run_step(&decode)
    }

    /// Emits a decode of these sequences, whose next token has its page.
    pub(super) fn run_step(&mut self, decode: &[SeqId]) -> Next {
        self.owed_decodes = self.owed_decodes.saturating_sub(1);
        let rows = self.decode_step_rows(decode);
        self.emit(Vec::new(), rows)
    }

    fn decode_step_rows(&mut self, decode: &[SeqId]) -> Vec<StepRow> {
        let step = self.next_step;
        let rows = decode.iter().map(|&seq| {
            let sequence = &mut self.sequences[seq];
            let position = sequence.held_kv().committed;
            sequence.planned_output += 1;
            let logprobs = sequence.request.logprobs.clone();
            let row = commit_row(sequence, step, position + 1);
            let work = RowWork::Decode {
                position: position as u32,
            };
            StepRow {
                row,
                seq,
                work,
                sample: true,
                logprobs,
            }
        });
        rows.collect()
    }

    fn emit(&mut self, starts: Vec<RowStart>, rows: Vec<StepRow>) -> Next {
        let step = self.next_step;
        self.next_step = StepId::new(step.get() + 1);
        self.counters.steps += 1;
        self.is_dirty = true;
        let prefilled = rows.iter().map(|row| match &row.work {
            RowWork::Prefill { positions } => positions.len() as u64,
            RowWork::Decode { .. } => 0,
        });
        self.prefilled_tokens += prefilled.sum::<u64>();
        self.steps.push_back(StepRecord {
            step,
            rows: rows.iter().map(|row| row.seq).collect(),
            is_void: false,
        });
        let table = std::mem::take(&mut self.deltas);
        Next::Run(Box::new(StepPlan {
            step,
            starts,
            table,
            rows,
        }))
    }

    fn undo_admission(&mut self, admitted: Vec<Admitted>) {
        // A continued chunk keeps its own lock.
        for lock in admitted.into_iter().filter_map(|admitted| admitted.lock) {
            self.pins.release(lock);
        }
    }

    /// `free + evictable + protected + private == total`, exact because the plan chain is a consistent cut.
    fn check_integrity(&mut self) {
        let page = self.limits.page_size;
        self.census = self.take_census();
        let accounted = page.tokens_in(self.free_pages)
            + self.cache.evictable_tokens
            + self.cache.protected_tokens
            + self.census.private_tokens;
        if accounted != page.tokens_in(self.limits.total_pages) {
            self.counters.integrity_failures += 1;
        }
    }
}

#[derive(Default)]
struct PrefillRows {
    starts: Vec<RowStart>,
    rows: Vec<StepRow>,
}

fn commit_row(sequence: &mut Sequence, step: StepId, committed: usize) -> crate::ids::RowId {
    sequence.last_step = step;
    sequence.rows_in_flight += 1;
    let kv = sequence.held_kv_mut();
    kv.committed = committed;
    kv.row
}

/// The wish for a prefill: input log probabilities from where they have not been delivered yet.
fn prefill_logprobs(sequence: &Sequence) -> Option<Arc<LogprobWish>> {
    let wish = sequence.request.logprobs.as_ref()?;
    let start = sequence.wished_input_start();
    if wish.start == start {
        return Some(wish.clone());
    }
    Some(Arc::new(LogprobWish {
        start,
        ..LogprobWish::clone(wish)
    }))
}
