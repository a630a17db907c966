//! Admits candidates in order: locks the cached prefix of each, and compares its needs with the memory left.

use smallvec::SmallVec;

use super::Planning;
use super::loads::reserve_if_chunked;
use crate::cache::prefix_cache::{LockedPrefix, Thinning};
use crate::cache::prefix_history::Departure;
use crate::plan::preemption::{Deficit, Preemption};
use crate::plan::prefill_adder::{Budget, Decision, PrefillAdder};
use crate::plan::saves::{StateBudget, StateRules, UsefulCopies};
use crate::plan::{AdmitRequest, Admitted, Candidate, Demand, LoadGrant, Preempt, StoredPrefix};
use crate::pool::pages::{PageRun, WindowRun};
use souffleur_base::ids::StateSlot;
use souffleur_base::in_hand;

/// Uncached tokens that a candidate must share with a prefill of this plan to be worth a wait.
const MIN_SHARED_TOKENS: usize = 32;
/// Upper bound on the number of plans that hold a candidate back.
const MAX_WAITS: u8 = 2;

impl Planning<'_> {
    /// Admits candidates in order. Returns the tokens that must be free for them: for each, the tokens to load or
    /// compute in this step and one more page, as in SGLang.
    pub(super) fn admit(&mut self, request: AdmitRequest) -> usize {
        self.take_freed_states();
        let mut adder = request.adder;
        self.windows = request.windows;
        self.block_tokens = request.block_tokens;
        let mut prefills: Vec<&Candidate> = Vec::new();
        let mut fetching: Vec<&Candidate> = Vec::new();
        let mut shared: Vec<(usize, usize)> = Vec::new();
        let (mut new_rows, mut target_tokens) = (0, 0);
        // The chunked request waits for stored blocks.
        let mut chunked_waits = false;
        self.mixes = request.mixes;
        for candidate in &request.candidates {
            let others = if request.prefix_wait {
                (&prefills[..], &fetching[..])
            } else {
                (&[][..], &[][..])
            };
            let has_row = new_rows < request.max_new_rows
                && (request.states.is_none() || self.spare_states() > new_rows);
            let admitted = match self.try_admit(&mut adder, candidate, others, has_row) {
                Ok(admitted) => admitted,
                Err(wait @ (NotNow::Fetching | NotNow::Encoding)) => {
                    chunked_waits |= reserve_if_chunked(&mut adder, candidate);
                    fetching.extend(matches!(wait, NotNow::Fetching).then_some(candidate));
                    continue;
                }
                Err(NotNow::Held { by, at }) => {
                    shared.push((by, at));
                    self.verdict.held.push(candidate.seq);
                    continue;
                }
                // The candidate would have to be chunked, so it waits for the chunked one. Later candidates may fit
                // whole.
                Err(NotNow::Refused(refusal @ Refusal::Budget(Budget::Other))) if chunked_waits => {
                    self.refuse(candidate, refusal);
                    continue;
                }
                Err(NotNow::Refused(refusal)) => {
                    self.refuse(candidate, refusal);
                    let preempt = request.preemption.as_ref();
                    let preempt =
                        preempt.and_then(|rules| self.preempt(&adder, candidate, refusal, rules));
                    if preempt.is_none() {
                        break;
                    }
                    self.undo_admissions();
                    self.verdict.preempt = preempt;
                    return 0;
                }
            };
            new_rows += usize::from(candidate.continues_at.is_none());
            target_tokens += admitted.extend_end - admitted.prefix_len + self.page_size;
            if admitted.load.is_some_and(|load| load.continues) {
                fetching.push(candidate);
            }
            self.verdict.admitted.push(admitted);
            self.mixes &= !candidate.wants_logprobs;
            prefills.push(candidate);
        }
        in_hand::clear();
        if let Some(rules) = &request.states {
            self.mark_used_states(&prefills);
            self.grant_saves(rules, &prefills, &shared, request.max_new_rows - new_rows);
        }
        for (index, candidate) in prefills.iter().enumerate() {
            self.demand(index, candidate, request.states.is_some());
        }
        target_tokens
    }

    /// Marks the cached states that admitted rows start from as used; those of refused candidates stay unmarked.
    fn mark_used_states(&mut self, prefills: &[&Candidate]) {
        for (candidate, admitted) in prefills.iter().zip(&self.verdict.admitted) {
            if let (Some(lock), Some(_)) = (&admitted.lock, admitted.state) {
                self.cache.use_state(lock, &candidate.anchors);
            }
        }
    }

    /// States that rows could have now: free, returned, or in the cache, which can drop them.
    fn spare_states(&self) -> usize {
        let free = self.free_states + self.returned_states.len();
        free + self.cache.droppable_states(Thinning::Any)
    }

    /// Decides where the prefills of this plan leave copies of their states. `shared` lists the positions that
    /// held-back candidates wait for, each with the index of the prefill that reaches it.
    fn grant_saves(
        &mut self,
        rules: &StateRules,
        prefills: &[&Candidate],
        shared: &[(usize, usize)],
        unused_rows: usize,
    ) {
        self.take_freed_states();
        let mut admitted = std::mem::take(&mut self.verdict.admitted);
        let useful = prefills.iter().zip(&admitted).enumerate();
        let useful = useful.map(|(index, (candidate, admitted))| {
            if candidate.bypasses_cache {
                return None;
            }
            let waiting = shared.iter().filter(|(by, _)| *by == index);
            let shared: SmallVec<[usize; 4]> = waiting.map(|(_, at)| *at).collect();
            Some(rules.useful_copies(candidate, admitted, &shared))
        });
        let useful: Vec<Option<UsefulCopies>> = useful.collect();
        let budget = StateBudget {
            free: self.free_states + self.returned_states.len(),
            new_rows: prefills
                .iter()
                .filter(|one| one.continues_at.is_none())
                .count(),
            unused_rows,
            awaited_prefills: prefills
                .iter()
                .enumerate()
                .filter(|(index, one)| {
                    shared.iter().any(|(by, _)| by == index) || one.wants_more_outputs()
                })
                .count(),
        };
        budget.grant(self.cache, rules, &useful, &mut admitted);
        self.verdict.admitted = admitted;
        self.take_freed_states();
    }

    fn try_admit(
        &mut self,
        adder: &mut PrefillAdder,
        candidate: &Candidate,
        others: (&[&Candidate], &[&Candidate]),
        has_row: bool,
    ) -> Result<Admitted, NotNow> {
        in_hand::hold(candidate.intake);
        adder.keep_whole(candidate.whole.as_ref());
        if !self.verdict.admitted.is_empty() {
            let budget = adder.budget(self.available());
            if budget != Budget::Continue {
                return Err(NotNow::Refused(Refusal::Budget(budget)));
            }
        }
        if let Some(prefix_len) = candidate.continues_at {
            if self.waits_for_round(candidate, prefix_len) {
                return Err(NotNow::Fetching);
            }
            let limit = candidate.match_limit.min(candidate.tokens.len());
            let load = self.load_round(adder, candidate, prefix_len);
            let covered = self.covered(candidate, prefix_len, load, limit);
            if self.waits_for_vectors(candidate, covered) {
                return Err(NotNow::Encoding);
            }
            let admitted = self.continue_chunk(adder, candidate, prefix_len, load);
            self.reserve_windows(candidate, &admitted);
            return Ok(admitted);
        }
        if candidate.stored == StoredPrefix::Fetching {
            return Err(NotNow::Fetching);
        }
        if !has_row {
            return Err(NotNow::Refused(Refusal::NoRow));
        }
        let admitted = self.admit_one(adder, candidate, others)?;
        self.reserve_windows(candidate, &admitted);
        Ok(admitted)
    }

    fn reserve_windows(&mut self, candidate: &Candidate, admitted: &Admitted) {
        if let Some(windows) = &mut self.windows {
            let max_new_tokens = if admitted.chunked {
                0
            } else {
                candidate.max_new_tokens
            };
            windows.take(admitted.extend_end - admitted.prefix_len, max_new_tokens);
        }
    }

    /// Tokens of window pages missing for a candidate's uncached part, or for its next chunk; 0 or less if they suffice.
    fn missing_windows(
        &self,
        adder: &PrefillAdder,
        candidate: &Candidate,
        prefix_len: usize,
    ) -> f64 {
        let Some(windows) = &self.windows else {
            return 0.0;
        };
        let missing = candidate.tokens.len() - prefix_len;
        let extend = missing.min(adder.rem_chunk());
        let max_new_tokens = if extend < missing {
            0
        } else {
            candidate.max_new_tokens
        };
        windows.deficit(extend, max_new_tokens, self.available_windows())
    }

    fn refuse(&mut self, candidate: &Candidate, refusal: Refusal) {
        self.verdict.refused = Some(candidate.seq);
        self.verdict.budget = Some(match refusal {
            Refusal::Budget(budget) => budget,
            Refusal::NoWindows { .. } => Budget::NoToken,
            Refusal::NoRow => Budget::Other,
        });
    }

    /// The requests to preempt for a candidate that was refused for lack of a row or memory.
    fn preempt(
        &self,
        adder: &PrefillAdder,
        candidate: &Candidate,
        refusal: Refusal,
        preemption: &Preemption,
    ) -> Option<Preempt> {
        if refusal == Refusal::Budget(Budget::Other) {
            return None;
        }
        let limit = candidate.match_limit.min(candidate.tokens.len());
        let cached = self
            .cache
            .peek(&candidate.namespace, &candidate.tokens[..limit]);
        let extend = candidate.tokens.len() - cached;
        let deficit = Deficit {
            tokens: adder.deficit(extend, candidate.max_new_tokens, self.available()),
            window_tokens: match refusal {
                Refusal::NoWindows { missing } => missing,
                Refusal::Budget(_) | Refusal::NoRow => {
                    self.missing_windows(adder, candidate, cached)
                }
            },
        };
        let victims = preemption.choose(candidate.rank, deficit)?;
        Some(Preempt {
            seq: candidate.seq,
            victims: victims.iter().map(|victim| victim.seq).collect(),
        })
    }

    /// Undoes all admissions of this plan; the same step is planned again without the preempted requests.
    fn undo_admissions(&mut self) {
        in_hand::clear();
        self.cache.forget_used_states();
        for admitted in std::mem::take(&mut self.verdict.admitted) {
            if let Some(lock) = admitted.lock {
                self.cache.unlock(lock);
            }
        }
        self.demands.clear();
        self.verdict.held.clear();
        self.verdict.fetches.clear();
        self.verdict.encodings.clear();
        self.verdict.budget = None;
        self.verdict.refused = None;
    }

    /// Continues the chunked request, first with the blocks of `load`.
    fn continue_chunk(
        &mut self,
        adder: &mut PrefillAdder,
        candidate: &Candidate,
        prefix_len: usize,
        load: Option<LoadGrant>,
    ) -> Admitted {
        let len = candidate.tokens.len();
        let begins = load.map_or(prefix_len, |load| load.to);
        adder.reserve_load(begins - prefix_len);
        let decision = match load {
            Some(LoadGrant {
                to,
                continues: true,
                ..
            }) => {
                adder.reserve_chunked(len - to, candidate.max_new_tokens);
                Decision::Admit {
                    end: to,
                    chunked: true,
                }
            }
            _ => adder.add_chunked(len, begins, candidate.max_new_tokens, self.available()),
        };
        let Decision::Admit { end, chunked } = decision else {
            unreachable!("a chunked request is never refused");
        };
        Admitted {
            seq: candidate.seq,
            lock: None,
            prefix: PageRun::empty(),
            windows: WindowRun::default(),
            prefix_len,
            extend_end: end,
            chunked,
            departure: None,
            kv_tokens: candidate.kv_tokens,
            state: None,
            saves: SmallVec::new(),
            keeps_tail: false,
            load,
        }
    }

    fn admit_one(
        &mut self,
        adder: &mut PrefillAdder,
        candidate: &Candidate,
        (prefills, fetching): (&[&Candidate], &[&Candidate]),
    ) -> Result<Admitted, NotNow> {
        let limit = candidate.match_limit.min(candidate.tokens.len());
        let locked = self
            .cache
            .lock_prefix(&candidate.namespace, &candidate.tokens[..limit]);
        let shares = |other: &&Candidate| shares_enough(candidate, other, locked.tokens, limit);
        let by = prefills.iter().position(shares);
        if let Some(by) = by.filter(|_| candidate.waits < MAX_WAITS) {
            self.cache.unlock(locked.lock);
            let at = shared_tokens(candidate, prefills[by], limit);
            return Err(NotNow::Held { by, at });
        }
        let expected = self.expected(candidate, locked.tokens, limit);
        if self.waits_for_vectors(candidate, expected) {
            self.cache.unlock(locked.lock);
            return Err(NotNow::Encoding);
        }
        if self.waits_for_blocks(candidate, locked.tokens, limit, fetching) {
            self.cache.unlock(locked.lock);
            return Err(NotNow::Fetching);
        }
        let (locked, state) = self.with_state(locked);
        let load = self.load_after(candidate, locked.tokens, limit);
        let covered = self.covered(candidate, locked.tokens, load, limit);
        if self.waits_for_vectors(candidate, covered) {
            self.cache.forget_held_state(&locked.lock);
            self.cache.unlock(locked.lock);
            return Err(NotNow::Encoding);
        }
        // Call this while the prefix is locked: an unlocked prefix would count as evictable.
        let missing = self.missing_windows(adder, candidate, locked.tokens);
        if missing > 0.0 {
            self.cache.unlock(locked.lock);
            return Err(NotNow::Refused(Refusal::NoWindows { missing }));
        }
        let (len, max_new) = (candidate.tokens.len(), candidate.max_new_tokens);
        let decision = if candidate.ignore_eos && self.cache.is_disabled() {
            adder.add_ignoring_eos(len, locked.tokens, max_new, self.available())
        } else {
            self.add_with_load(adder, candidate, locked.tokens, load)
        };
        match decision {
            Decision::Refuse(budget) => {
                self.cache.forget_held_state(&locked.lock);
                self.cache.unlock(locked.lock);
                Err(NotNow::Refused(Refusal::Budget(budget)))
            }
            Decision::Admit { end, chunked } => Ok(Admitted {
                seq: candidate.seq,
                departure: self.departure(candidate, &locked, limit),
                kv_tokens: locked.kv_tokens,
                state,
                saves: SmallVec::new(),
                keeps_tail: false,
                lock: Some(locked.lock),
                prefix: locked.pages,
                windows: locked.windows,
                prefix_len: locked.tokens,
                extend_end: end,
                chunked,
                load,
            }),
        }
    }

    /// Where the prompt diverges from the tree; `None` if the candidate bypasses the cache or misses are not diagnosed.
    fn departure(
        &self,
        candidate: &Candidate,
        locked: &LockedPrefix,
        limit: usize,
    ) -> Option<Box<Departure>> {
        if candidate.bypasses_cache {
            return None;
        }
        self.cache.departure(
            &candidate.namespace,
            &locked.lock,
            &candidate.tokens,
            (locked.tokens, locked.kv_tokens),
            limit,
        )
    }

    /// Protects, until the plan is made, the cached state that a row starts from. If no other state is left to be the
    /// row's private one, the row starts without a prefix.
    fn with_state(&mut self, locked: LockedPrefix) -> (LockedPrefix, Option<StateSlot>) {
        let state = self.cache.hold_state(&locked.lock);
        if state.is_none() || self.spare_states() > self.n_new_rows() {
            return (locked, state);
        }
        self.cache.forget_held_state(&locked.lock);
        self.cache.unlock(locked.lock);
        let without = LockedPrefix {
            kv_tokens: locked.kv_tokens,
            ..LockedPrefix::default()
        };
        (without, None)
    }

    fn n_new_rows(&self) -> usize {
        let admitted = self.verdict.admitted.iter();
        admitted.filter(|admitted| admitted.lock.is_some()).count()
    }

    fn demand(&mut self, index: usize, candidate: &Candidate, has_state: bool) {
        let admitted = &self.verdict.admitted[index];
        let pages = admitted.extend_end.div_ceil(self.page_size)
            - admitted.prefix_len.div_ceil(self.page_size);
        let row = candidate.continues_at.is_none();
        let copies = admitted.saves.len() + usize::from(admitted.keeps_tail);
        self.demands.push(Demand {
            seq: candidate.seq,
            intake: candidate.intake,
            pages: pages as u32,
            row,
            states: (usize::from(row && has_state) + copies) as u32,
        });
    }
}

enum NotNow {
    /// The candidate waits for a prefix that the admitted candidate `by` computes, up to position `at`.
    Held {
        by: usize,
        at: usize,
    },
    /// The candidate keeps its place while the store fetches its prefix. Later candidates may overtake it.
    Fetching,
    /// The candidate keeps its place while its images are encoded. Later candidates may overtake it.
    Encoding,
    Refused(Refusal),
}

#[derive(Clone, Copy, PartialEq)]
enum Refusal {
    Budget(Budget),
    NoWindows {
        /// Missing window pages, in tokens.
        missing: f64,
    },
    NoRow,
}

/// True if the prefill of `other` computes at least [`MIN_SHARED_TOKENS`] of the candidate's uncached prefix.
fn shares_enough(candidate: &Candidate, other: &Candidate, cached: usize, limit: usize) -> bool {
    let until = cached + MIN_SHARED_TOKENS;
    // Compares the uncached part first: requests with the same long cached prefix differ there.
    until <= limit
        && !other.bypasses_cache
        && until <= other.tokens.len()
        && candidate.tokens[cached..until] == other.tokens[cached..until]
        && candidate.namespace == other.namespace
        && candidate.tokens[..cached] == other.tokens[..cached]
}

/// Length of the common prefix, within `limit`.
pub(super) fn shared_tokens(candidate: &Candidate, other: &Candidate, limit: usize) -> usize {
    let pairs = candidate.tokens[..limit].iter().zip(other.tokens.iter());
    pairs.take_while(|(a, b)| a == b).count()
}
