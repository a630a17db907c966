//! Turns a plan's grants into a step for the executor.

use std::ops::Range;

use smallvec::SmallVec;

use crate::cache::prefix_cache::CheckpointedWindows;
use crate::plan::prefill_adder::Budget;
use crate::plan::prefill_pace::PrefillWork;
use crate::plan::saves::SaveAt;
use crate::plan::{Admitted, CheckpointedSeq, Grant, Growth, Reservation, StepPlanned, Verdict};
use crate::pool::pages::{Pages, RowWindows, WindowPages};
use crate::scheduler::row_states::RowStates;
use crate::scheduler::sequence::{Phase, Sequence, SequenceKv};
use crate::step::{RowStart, RowWork, StateStart, StepPlan, StepRow};
use souffleur_base::ids::{RowId, SeqId, StepId};
use souffleur_base::in_hand;

use super::batch::PrefillPart;
use super::outbox::Counter;
use super::pipeline::OpenPlan;
use super::rooms::rooms_of;
use super::{Next, Scheduler};

impl Scheduler {
    /// Takes the answer to the open plan. Returns a step, another plan after a retraction or preemption, or nothing.
    pub fn step_planned(&mut self, planned: StepPlanned) -> Next {
        let StepPlanned {
            step,
            reservation,
            mut verdict,
            free_pages,
            free_rows,
            free_states,
            free_windows,
        } = planned;
        let open = self.pipeline.close_answered();
        debug_assert_eq!(open.step, step);
        let free = (free_pages, free_windows);
        self.memory.set_free(free, free_rows, free_states);
        self.apply_verdict(&mut verdict);
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
                self.free_memory(open)
            }
        };
        let evicted = std::mem::take(&mut verdict.evicted_edges);
        match verdict.flushed_pages {
            Some(_) => self.note_flush(step, evicted),
            None => self.note_evictions(step, evicted),
        }
        if verdict.budget == Some(Budget::NoToken)
            && let Some(refused) = verdict.refused
            && !self.release_soft_for_candidate()
            && matches!(next, Next::Nothing)
        {
            self.unblock_idle_engine(refused);
        }
        self.reset_ratio_when_idle();
        next
    }

    fn apply_verdict(&mut self, verdict: &mut Verdict) {
        if let Some(cache) = verdict.cache {
            self.memory.set_cache(cache);
            self.take_save_counts(cache.saves);
        }
        self.save(std::mem::take(&mut verdict.saves));
        self.start_fetches(std::mem::take(&mut verdict.fetches));
        self.start_encodings(std::mem::take(&mut verdict.encodings));
        self.outbox
            .count(Counter::EvictedTokens, verdict.evicted_tokens);
        self.outbox
            .count(Counter::EvictedWindows, verdict.evicted_windows);
        self.apply_checkpoints(std::mem::take(&mut verdict.checkpointed));
        let pinned = std::mem::take(&mut verdict.pinned);
        let max_soft_tokens = self.soft_pin_tokens();
        if self.hosts.pins_mut().keep_granted(pinned, max_soft_tokens) {
            self.pipeline.note_change();
        }
        for &seq in &verdict.held {
            if let Some(sequence) = self.requests.get_mut(seq) {
                sequence.waits += 1;
            }
        }
        let is_busy = !verdict.admitted.is_empty() || !self.batch.running().is_empty();
        if verdict.budget == Some(Budget::NoToken) || self.memory.free_rows() == 0 {
            // Sequences that ended while the plan was open free memory for the next one.
            self.batch
                .set_full(is_busy && self.batch.ended().is_empty());
        }
    }

    pub(super) fn apply_checkpoints(&mut self, checkpointed: Vec<CheckpointedSeq>) {
        for checkpointed in checkpointed {
            self.apply_checkpoint(checkpointed);
        }
        in_hand::clear();
    }

    fn apply_checkpoint(&mut self, checkpointed: CheckpointedSeq) {
        let CheckpointedSeq {
            seq,
            lock,
            private,
            protected_pages,
            remap_from,
            remap,
            inserted_tokens,
            windows,
        } = checkpointed;
        let kv = self.requests.noted_mut(seq).held_kv_mut();
        kv.lock = lock;
        kv.private = private;
        kv.protected_pages = protected_pages;
        kv.inserted_tokens = inserted_tokens;
        self.pipeline.remap(kv.row, remap_from, remap);
        if let Some(windows) = windows {
            let CheckpointedWindows { own, remap, .. } = *windows;
            kv.windows = Some(Box::new(own));
            self.pipeline.map_windows(kv.row, remap);
        }
    }

    fn attach_growth(&mut self, growth: Growth) {
        let Growth {
            seqs,
            pages,
            windows,
        } = growth;
        self.pipeline.reserve_edits(seqs.len());
        if !windows.is_empty() {
            self.attach_windows(&seqs, windows);
        }
        let mut pages = pages.one_by_one();
        for seq in seqs {
            let sequence = self.requests.noted_mut(seq);
            let is_live = !sequence.has_ended;
            let kv = sequence.held_kv_mut();
            let page = pages
                .next_to(&mut kv.private)
                .expect("each growing sequence was granted a page");
            kv.n_pages += 1;
            if is_live {
                self.pipeline.append_page(kv.row, page);
            }
        }
        in_hand::clear();
    }

    fn append_pages(&mut self, seq: SeqId, pages: Pages, windows: WindowPages) {
        let sequence = &mut self.requests[seq];
        let is_live = !sequence.has_ended;
        let kv = sequence.held_kv_mut();
        if is_live {
            self.pipeline.append_pages(kv.row, pages.ids());
            self.pipeline.append_windows(kv.row, windows.ids());
        }
        if let Some(own) = &mut kv.windows {
            own.pages.append(windows);
        }
        kv.n_pages += pages.len();
        kv.private.append(pages);
    }

    /// Attaches granted memory to the admitted sequences and returns their rows of the step. A sequence that was
    /// cancelled while the plan was open gets its memory but no row; the next plan releases the memory.
    fn attach_admitted(&mut self, admitted: Vec<Admitted>, grants: Vec<Grant>) -> PrefillRows {
        let mut rows = PrefillRows::default();
        let starting = admitted.iter().map(|admitted| admitted.seq);
        self.queue.remove_all(&starting.collect());
        for (admitted, grant) in admitted.into_iter().zip(grants) {
            debug_assert_eq!(admitted.seq, grant.seq);
            let (seq, is_new) = (admitted.seq, admitted.lock.is_some());
            self.requests.hold(seq);
            let positions = admitted.extend_start()..admitted.extend_end;
            let part = if admitted.chunked {
                PrefillPart::Chunk
            } else {
                PrefillPart::Last
            };
            let saves = admitted.saves.clone();
            let (prefix_len, load) = (admitted.prefix_len, admitted.load);
            if is_new {
                let row_start = self.start_row(admitted, grant);
                if !self.requests[seq].has_ended {
                    rows.starts.push(row_start);
                }
            } else {
                self.append_pages(seq, grant.pages, grant.windows);
                let kv = self.requests[seq].held_kv_mut();
                if let Some(states) = &mut kv.states {
                    states.take_granted(grant.states.into_iter());
                }
                let row = kv.row;
                // Without a load, the sequence computes the rest, and no longer uses the store.
                self.begin_load((seq, row, None), prefix_len, load);
                self.report_departure(seq);
            }
            if self.requests[seq].has_ended {
                continue;
            }
            if positions.is_empty() {
                self.record_load(seq, positions.end);
                rows.loading.push(seq);
            } else {
                let mut work = self.extend_row(seq, positions, part, &saves);
                self.move_copies_to_load(&mut work);
                rows.rows.push(work);
            }
        }
        in_hand::clear();
        rows
    }

    /// Records a sequence that only loads blocks in this step. It computes nothing, and publishes the loaded part.
    fn record_load(&mut self, seq: SeqId, loaded_tokens: usize) {
        self.batch.extend(seq, PrefillPart::Chunk);
        let sequence = &mut self.requests[seq];
        sequence.phase = Phase::Chunked;
        commit_row(sequence, self.pipeline.next_step(), loaded_tokens);
        sequence.held_kv_mut().reused_tokens = loaded_tokens;
    }

    fn start_row(&mut self, admitted: Admitted, grant: Grant) -> RowStart {
        let Admitted {
            seq,
            lock,
            prefix,
            prefix_len,
            departure,
            kv_tokens,
            state,
            keeps_tail,
            windows,
            load,
            ..
        } = admitted;
        self.note_departure(seq, departure);
        let row = grant.row.expect("a starting sequence demands a row");
        let mut granted = grant.states.into_iter();
        let mut states = RowStates::new(&mut granted, keeps_tail, kv_tokens);
        if let Some(states) = &mut states {
            states.take_granted(granted);
        }
        let live = states.as_ref().map(|states| states.live().slot());
        self.begin_load((seq, row, live), prefix_len, load);
        self.report_departure(seq);
        let loaded_len = load.map_or(prefix_len, |load| load.to);
        let (sequence, mut cached_tokens) = (&mut self.requests[seq], loaded_len);
        if sequence.has_ended {
            // The sequence ended while the plan was open: nothing is loaded or computed for it.
            sequence.publish = false;
            cached_tokens = prefix_len;
        }
        self.note_cached_tokens(seq, cached_tokens);
        let state_start = states.as_ref().map(|states| StateStart {
            live: states.live().slot(),
            from: state,
        });
        let sequence = &mut self.requests[seq];
        sequence.kv = Some(SequenceKv {
            states: states.map(Box::new),
            windows: self
                .limits
                .windows
                .map(|_| Box::new(RowWindows::starting_at(prefix.len()))),
            row,
            lock: lock.unwrap_or_default(),
            protected_pages: prefix.len(),
            private: Pages::empty(),
            committed: loaded_len,
            n_pages: prefix.len(),
            room: 1,
            inserted_tokens: 0,
            reused_tokens: loaded_len,
        });
        let start = sequence.row_start((row, seq), prefix, state_start);
        if !self.requests[seq].has_ended {
            self.pipeline.map_windows(row, windows);
        }
        self.append_pages(seq, grant.pages, grant.windows);
        start
    }

    fn extend_row(
        &mut self,
        seq: SeqId,
        positions: Range<usize>,
        part: PrefillPart,
        saves: &[SaveAt],
    ) -> StepRow {
        self.batch.extend(seq, part);
        let sequence = &mut self.requests[seq];
        let is_last = part == PrefillPart::Last;
        let (page, tokens) = (self.limits.page_size, sequence.fill.len());
        let states = sequence.held_kv_mut().states.as_mut();
        let saves = states.map_or_else(SmallVec::new, |states| {
            states.save_chunk(saves, &positions, tokens, page)
        });
        sequence.phase = if is_last {
            Phase::Running
        } else {
            Phase::Chunked
        };
        let sample = is_last && sequence.remaining_new_tokens() > 0;
        sequence.planned_output += usize::from(sample);
        let logprobs = sequence.prefill_logprobs();
        let row = commit_row(sequence, self.pipeline.next_step(), positions.end);
        if is_last {
            // The row has them.
            self.release_vectors(seq);
        }
        StepRow {
            row,
            seq,
            work: RowWork::Prefill {
                positions: positions.start as u32..positions.end as u32,
            },
            sample,
            logprobs,
            saves,
        }
    }

    /// Emits a prefill. With `mixed`, the decode rows follow the prefill rows; otherwise this step decodes nothing.
    fn run_prefill(&mut self, prefill: PrefillRows, open: OpenPlan, mixed: bool) -> Next {
        let PrefillRows {
            starts,
            mut rows,
            loading,
        } = prefill;
        let decode = self.still_running(open.decode);
        let decodes = mixed && !decode.is_empty();
        if self.pipeline.is_recovering() {
            return Next::Nothing;
        }
        if rows.is_empty() && loading.is_empty() && !decodes {
            return self.run_copies();
        }
        if decodes {
            let n_mixed = usize::from(!rows.is_empty());
            self.outbox.count(Counter::MixedSteps, n_mixed);
            rows.extend(self.decode_step_rows(&decode));
        }
        self.note_prefill_step(!mixed && !decode.is_empty());
        self.emit_with_loads(starts, rows, &loading)
    }

    /// Drops sequences that ended while the plan was open. Retraction and preemption open a new plan with a new list.
    fn still_running(&self, mut decode: Vec<SeqId>) -> Vec<SeqId> {
        let is_live = |seq: &SeqId| self.requests.get(*seq).is_some_and(Sequence::can_decode);
        if !self.batch.ended().is_empty() {
            decode.retain(is_live);
        }
        debug_assert!(decode.iter().all(is_live));
        decode
    }

    fn run_decode(&mut self, open: OpenPlan) -> Next {
        if self.pipeline.is_recovering() {
            return Next::Nothing;
        }
        let decode = self.still_running(open.decode);
        if decode.is_empty() {
            return self.run_copies();
        }
        self.batch.ratio_mut().decay();
        self.run_step(&decode)
    }

    /// Emits a decode of these sequences, whose next tokens have pages.
    pub(super) fn run_step(&mut self, decode: &[SeqId]) -> Next {
        // Decodes that a prefill has delayed are not delayed again.
        if self.batch.due_decodes() == 0 {
            self.cut_slice();
        }
        self.batch.count_decode();
        let rows = self.decode_step_rows(decode);
        self.emit(Vec::new(), rows)
    }

    fn decode_step_rows(&mut self, decode: &[SeqId]) -> Vec<StepRow> {
        let step = self.pipeline.next_step();
        let page = self.limits.page_size;
        let rows = decode.iter().map(|&seq| {
            let sequence = self.requests.noted_mut(seq);
            let is_sure = sequence.unsure == 0;
            let (position, room) = sequence.plan_decode();
            let kv = sequence.held_kv_mut();
            let end = kv.committed;
            let saves = match &mut kv.states {
                Some(states) if is_sure && room == 1 && page.floor(end) == end => {
                    states.save_tail(end).into_iter().collect()
                }
                Some(states) if page.floor(end) > position && !(is_sure && room == 1) => states
                    .may_save_tail(page.floor(position) + page.get())
                    .into_iter()
                    .collect(),
                _ => SmallVec::new(),
            };
            let logprobs = sequence.request.logprobs.clone();
            let row = commit_row(sequence, step, end);
            let work = RowWork::Decode {
                position: position as u32,
                room,
            };
            StepRow {
                row,
                seq,
                work,
                sample: true,
                logprobs,
                saves,
            }
        });
        let rows = rows.collect();
        in_hand::clear();
        rows
    }

    pub(super) fn emit(&mut self, starts: Vec<RowStart>, rows: Vec<StepRow>) -> Next {
        self.emit_with_loads(starts, rows, &[])
    }

    /// Emits a step; the sequences in `loading` only load blocks in it.
    fn emit_with_loads(
        &mut self,
        starts: Vec<RowStart>,
        rows: Vec<StepRow>,
        loading: &[SeqId],
    ) -> Next {
        self.outbox.count(Counter::Steps, 1);
        let prefill = PrefillWork::of(&rows);
        self.queue
            .order_mut()
            .note_prefilled(prefill.tokens() as u64);
        let with_rows = rows.iter().map(|row| row.seq);
        let seqs = with_rows.chain(loading.iter().copied()).collect();
        let rooms = rooms_of(&rows);
        let next = self.pipeline.next_step();
        let copies = self.tier.as_mut().and_then(|tier| tier.take_copies(next));
        let has_loads = copies
            .as_ref()
            .is_some_and(|copies| !copies.loads.is_empty());
        let measured = if has_loads {
            PrefillWork::default()
        } else {
            prefill
        };
        if prefill.tokens() > 0 {
            self.give_tower_turn();
        }
        let (vision, slice) = self.take_slice();
        let (step, table) = self.pipeline.start_step((seqs, rooms), measured, slice);
        Next::RunStep(Box::new(StepPlan {
            step,
            starts,
            table,
            rows,
            copies,
            vision,
        }))
    }

    fn undo_admission(&mut self, admitted: Vec<Admitted>) {
        // The chunked request has `None` here and keeps its lock.
        for lock in admitted.into_iter().filter_map(|admitted| admitted.lock) {
            self.hosts.pins_mut().release(lock);
        }
    }
}

#[derive(Default)]
struct PrefillRows {
    starts: Vec<RowStart>,
    rows: Vec<StepRow>,
    /// Sequences that load in this step and compute nothing.
    loading: Vec<SeqId>,
}

fn commit_row(sequence: &mut Sequence, step: StepId, committed: usize) -> RowId {
    sequence.last_step = step;
    sequence.rows_in_flight += 1;
    let kv = sequence.held_kv_mut();
    kv.committed = committed;
    kv.row
}
