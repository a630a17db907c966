//! One item of work: the queries of a tile against some key heads and spans.

use std::ops::Range;

use super::super::kv::PageTable;
use super::super::memory::Lines;
use super::super::simd::{Kernel, LANES, Lanes};
use super::super::tensor::{Shared, Tensor};
use super::direct::{Direct, Fetch, MAX_DIRECT_ROWS};
use super::format::Format;
use super::pack::{Ahead, pack_keys, pack_values};
use super::plan::{Item, Plan, QueryToken, Target, Tile};
use super::product::Product;
use super::state::{clear, finish, fold, merge, record_len};
use super::{BLOCK, SPAN, Seen, width};
use crate::kernels::HeadShape;

/// What all items of a step and layer have in common.
#[derive(Clone, Copy)]
pub struct Step<'a, F> {
    pub heads: &'a HeadShape,
    pub q: &'a Tensor,
    /// `[2, n_kv_heads, n_slots, head_dim]`.
    pub kv: &'a [F],
    pub table: &'a PageTable,
    pub plan: &'a Plan,
    /// Records that rounds hand on, and those of spans that are merged at the end.
    pub states: Shared<'a, f32>,
    pub out: Shared<'a, f32>,
}

/// An item at work.
pub struct Work<'a, F> {
    pub step: Step<'a, F>,
    pub item: &'a Item,
    pub space: &'a mut Workspace,
}

/// Buffers of one item at a time; they only grow.
#[derive(Default)]
pub struct Workspace {
    /// Queries as words, `[heads, rows, q_words]`.
    queries: Lines<u32>,
    /// Keys of a block, `[depth, BLOCK]` words: each lane is a key.
    keys: Lines<u32>,
    /// Values of a block, `[BLOCK / PER_WORD, width]` words: each lane is an element of a head.
    values: Lines<u32>,
    /// The same without what one query does not see.
    masked: Lines<u32>,
    /// `[rows, BLOCK]`.
    scores: Lines<f32>,
    /// `[rows, BLOCK / PER_WORD]` words.
    weights: Lines<u32>,
    /// `[rows]`.
    decay: Lines<f32>,
    /// Records of the current span and of the spans before it, `[heads, rows]`.
    span: Lines<f32>,
    total: Lines<f32>,
}

impl Workspace {
    /// Makes room for items with up to so many query tokens and records.
    pub fn fit<F: Format>(&mut self, heads: &HeadShape, n_tokens: usize, n_records: usize) {
        let sizes = Sizes::of::<F>(heads, n_tokens);
        self.queries.make_room(n_records * sizes.width / F::PER_WORD);
        self.keys.make_room(sizes.depth.next_multiple_of(LANES) * BLOCK);
        self.values.make_room(BLOCK / F::PER_WORD * sizes.width);
        self.scores.make_room(sizes.rows * BLOCK);
        self.weights.make_room(sizes.rows * BLOCK / F::PER_WORD);
        self.decay.make_room(sizes.rows);
        self.span.make_room(n_records * sizes.record);
        self.total.make_room(n_records * sizes.record);
    }
}

/// Sizes of an item.
#[derive(Clone, Copy)]
struct Sizes {
    /// Queries of a key head: tokens times heads of a group.
    rows: usize,
    /// Query heads of a key head.
    group: usize,
    /// Elements of a head, padded to whole pairs of vectors.
    width: usize,
    /// Words of a head that count.
    depth: usize,
    record: usize,
}

impl Sizes {
    fn of<F: Format>(heads: &HeadShape, n_tokens: usize) -> Self {
        let group = heads.n_heads / heads.n_kv_heads;
        let width = width(heads.head_dim);
        Self {
            rows: n_tokens * group,
            group,
            width,
            depth: heads.head_dim.div_ceil(F::PER_WORD),
            record: record_len(width),
        }
    }
}

/// Where the keys of a block lie in the keys of the first head; the dummy slot stands for what the tile does not see.
type Slots<F> = [*const F; BLOCK];

fn is_stream<F>(slots: &Slots<F>, head_dim: usize) -> bool {
    slots[BLOCK - 1] == slots[0].wrapping_add((BLOCK - 1) * head_dim)
}

/// Rows in runs that are short enough to leave out what none of a run sees, and whole tiles of a product.
fn runs(sizes: Sizes) -> impl Iterator<Item = Range<usize>> {
    const RUN: usize = 12;
    let starts = (0..sizes.rows).step_by(RUN);
    starts.map(move |first| first..sizes.rows.min(first + RUN))
}

impl<F: Format> Kernel for Work<'_, F> {
    /// Bytes of K/V that were read.
    type Output = usize;

    #[inline(always)]
    fn run<S: Lanes>(mut self) -> usize {
        let sizes = Sizes::of::<F>(self.step.heads, self.tokens().len());
        self.load_queries::<S>(sizes);
        self.open_totals(sizes);
        let keys = self.keys();
        let blocks = keys.start / BLOCK..keys.end.div_ceil(BLOCK);
        let mut slots = self.slots(blocks.start);
        for block in blocks.clone() {
            let (start, end) = (block * BLOCK, (block + 1) * BLOCK);
            if start.is_multiple_of(SPAN) || block == blocks.start {
                let len = self.n_records(sizes) * sizes.record;
                self.space.span[..len]
                    .chunks_exact_mut(sizes.record)
                    .for_each(clear);
            }
            let is_last = block + 1 == blocks.end;
            let next = if is_last {
                slots
            } else {
                self.slots(block + 1)
            };
            let loaded = Seen::new(keys.clone(), start);
            // Slots in a row are a stream, which the processor fetches ahead by itself.
            let scattered = match is_last || is_stream(&next, self.step.heads.head_dim) {
                true => &next[..0],
                false => &next[..],
            };
            for head in 0..self.item.heads.len() {
                if self.is_direct(sizes) {
                    let following = match head + 1 < self.item.heads.len() {
                        true => (&slots[..], head + 1),
                        false if is_last => (&slots[..0], 0),
                        false => (&next[..], 0),
                    };
                    self.attend_direct::<S>(sizes, (&slots, head), start, loaded, following);
                    continue;
                }
                let mut ahead = self.ahead(scattered, head);
                self.load_block::<S>(sizes, (&slots, head), loaded, &mut ahead);
                ahead.fetch::<S>(usize::MAX);
                self.attend_block::<S>(sizes, head, start, loaded);
            }
            if is_last || end.is_multiple_of(SPAN) {
                self.close_span::<S>(sizes, start / SPAN);
            }
            slots = next;
        }
        self.close_totals::<S>(sizes);
        keys.len() * self.item.heads.len() * 2 * self.step.heads.head_dim * size_of::<F>()
    }
}

impl<F: Format> Work<'_, F> {
    fn tile(&self) -> &Tile {
        &self.step.plan.tiles[self.item.tile as usize]
    }

    fn tokens(&self) -> &[QueryToken] {
        self.step.plan.tokens_of(self.tile())
    }

    fn n_records(&self, sizes: Sizes) -> usize {
        self.item.heads.len() * sizes.rows
    }

    /// Positions of the keys that some query of the item may see.
    fn keys(&self) -> Range<usize> {
        let (tile, spans) = (self.tile(), &self.item.spans);
        tile.keys.start.max(spans.start * SPAN)..tile.keys.end.min(spans.end * SPAN)
    }

    /// Index of a record in the order of `[tokens, n_heads]`, for each record of the item in its own order.
    fn records(&self, sizes: Sizes) -> impl Iterator<Item = (QueryToken, usize)> + use<'_, F> {
        let rows = self.item.heads.clone().flat_map(move |head| {
            (0..sizes.rows).map(move |row| (head as usize, row / sizes.group, row % sizes.group))
        });
        rows.map(move |(head, token, g)| (self.tokens()[token], head * sizes.group + g))
    }

    #[inline(always)]
    fn load_queries<S: Lanes>(&mut self, sizes: Sizes) {
        const QUERIES_AHEAD: usize = 8;
        let head_dim = self.step.heads.head_dim;
        let words = sizes.width / F::PER_WORD;
        let to = self.space.queries.as_mut_ptr();
        // A head of a token is far from that of the next: no stream that the processor would see.
        let mut ahead = self.records(sizes).skip(QUERIES_AHEAD);
        for (i, (token, head)) in self.records(sizes).enumerate() {
            if let Some((token, head)) = ahead.next() {
                let row = &self.step.q.row(token.index as usize)[head * head_dim..][..head_dim];
                for line in row.chunks(LANES) {
                    // SAFETY: only a hint; `dispatch` detected the instruction set.
                    unsafe { S::prefetch(line.as_ptr()) };
                }
            }
            let row = &self.step.q.row(token.index as usize)[head * head_dim..][..head_dim];
            let to = to.wrapping_add(i * words);
            for at in (0..sizes.width).step_by(LANES) {
                let part = row.get(at..).unwrap_or_default();
                // SAFETY: `fit` made room for `words` words per query; `part` holds sixteen values or its
                // length is passed; `dispatch` detected the instruction set.
                unsafe {
                    let v = match part.len() {
                        LANES.. => S::load(part.as_ptr()),
                        len => <f32 as super::super::element::Element>::load_part::<S>(
                            part.as_ptr(),
                            len,
                        ),
                    };
                    F::write::<S>(to.wrapping_add(at / F::PER_WORD), v);
                }
            }
        }
    }

    /// Begins with nothing, or with what an earlier round left.
    fn open_totals(&mut self, sizes: Sizes) {
        let resumes = self.tile().resumes && self.item.spans.start == self.tile().spans.start;
        let n_records = self.n_records(sizes);
        let mut total = std::mem::take(&mut self.space.total);
        let records = total[..n_records * sizes.record].chunks_exact_mut(sizes.record);
        for (record, (token, head)) in records.zip(self.records(sizes)) {
            if resumes {
                let at = token.index as usize * self.step.heads.n_heads + head;
                // SAFETY: each record is used by one item of a round.
                record.copy_from_slice(unsafe {
                    self.step.states.part(at * sizes.record, sizes.record)
                });
            } else {
                clear(record);
            }
        }
        self.space.total = total;
    }

    fn slots(&self, block: usize) -> Slots<F> {
        let keys = self.keys();
        let heads = self.step.heads;
        let n_slots = self.n_slots();
        let mut slots = [self.step.kv.as_ptr(); BLOCK];
        let start = block * BLOCK;
        let seen = keys.start.max(start)..keys.end.min(start + BLOCK);
        let kv = self.step.kv.as_ptr();
        self.step
            .table
            .for_slots(self.tile().row, seen, |position, slot| {
                assert!(slot < n_slots, "slot {slot} of {n_slots}");
                slots[position - start] = kv.wrapping_add(slot * heads.head_dim);
            });
        slots
    }

    /// What is to be asked for of slots ahead of their use.
    fn ahead<'s>(&self, slots: &'s [*const F], head: usize) -> Ahead<'s, F> {
        let (key, value) = self.planes(head);
        Ahead {
            slots,
            byte: 0,
            start: key * size_of::<F>(),
            half: self.step.heads.head_dim * size_of::<F>(),
            to_values: (value - key) * size_of::<F>(),
        }
    }

    fn n_slots(&self) -> usize {
        self.step.kv.len() / (2 * self.step.heads.n_kv_heads * self.step.heads.head_dim)
    }

    /// How far the keys and the values of a head lie behind the keys of the first one.
    fn planes(&self, head: usize) -> (usize, usize) {
        let head = self.item.heads.start as usize + head;
        let plane = self.n_slots() * self.step.heads.head_dim;
        (head * plane, (self.step.heads.n_kv_heads + head) * plane)
    }

    /// Packs the keys and values of a head.
    #[inline(always)]
    fn load_block<S: Lanes>(
        &mut self,
        sizes: Sizes,
        (slots, head): (&Slots<F>, usize),
        loaded: Seen,
        ahead: &mut Ahead<'_, F>,
    ) {
        let head_dim = self.step.heads.head_dim;
        let (key, value) = self.planes(head);
        for group in (0..loaded.end as usize).step_by(LANES) {
            let sixteen: &[*const F; LANES] = slots[group..group + LANES]
                .try_into()
                .expect("sixteen slots");
            // SAFETY: every slot holds keys and values of all heads, the dummy too; `fit` made room; `dispatch`
            // detected the instruction set.
            unsafe {
                pack_keys::<F, S>(
                    sixteen,
                    key,
                    head_dim,
                    self.space.keys.as_mut_ptr().wrapping_add(group),
                    ahead,
                );
                pack_values::<F, S>(
                    sixteen,
                    value,
                    head_dim,
                    self.space
                        .values
                        .as_mut_ptr()
                        .wrapping_add(group / F::PER_WORD * sizes.width),
                    ahead,
                );
            }
        }
    }

    /// A decode of few heads a key head: packing a block would cost more than using it.
    fn is_direct(&self, sizes: Sizes) -> bool {
        self.tokens().len() == 1
            && sizes.rows <= MAX_DIRECT_ROWS
            && self.step.heads.head_dim.is_multiple_of(2 * LANES)
    }

    /// Takes a block into the records of a head, from the pool.
    #[inline(always)]
    fn attend_direct<S: Lanes>(
        &mut self,
        sizes: Sizes,
        (slots, head): (&Slots<F>, usize),
        start: usize,
        loaded: Seen,
        (next_slots, next_head): (&[*const F], usize),
    ) {
        let head_dim = self.step.heads.head_dim;
        let (key, value) = self.planes(head);
        let mut values = Fetch {
            slots: &slots[..loaded.end as usize],
            plane: value,
            head_dim,
        };
        let mut keys = Fetch {
            slots: next_slots,
            plane: self.planes(next_head).0,
            head_dim,
        };
        let words = sizes.width / F::PER_WORD;
        let first = head * sizes.rows * sizes.record;
        let space = &mut *self.space;
        let queries = space.queries.as_ptr();
        let mut direct = Direct {
            slots,
            n_keys: loaded.end as usize,
            head_dim,
            rows: sizes.rows,
            plane: key,
            queries: queries.wrapping_add(head * sizes.rows * words),
            scores: space.scores.as_mut_ptr(),
            weights: space.weights.as_ptr(),
            decay: space.decay.as_ptr(),
            sums: space.span.as_mut_ptr().wrapping_add(first),
            record: sizes.record,
        };
        // SAFETY: `fit` made room for all operands; every slot holds keys and values of all heads, the dummy too;
        // `dispatch` detected the instruction set.
        unsafe { direct.score::<S>(&mut values) };
        self.fold_block::<S>(sizes, head, start, loaded);
        direct.plane = value;
        // SAFETY: as above.
        unsafe { direct.weigh::<S>(&mut keys) };
    }

    /// Takes a packed block into the records of a head.
    #[inline(always)]
    fn attend_block<S: Lanes>(&mut self, sizes: Sizes, head: usize, start: usize, loaded: Seen) {
        let words = sizes.width / F::PER_WORD;
        let first = head * sizes.rows * sizes.record;
        let space = &mut *self.space;
        let scores = Product {
            a: space
                .queries
                .as_ptr()
                .wrapping_add(head * sizes.rows * words),
            lda: words,
            b: space.keys.as_ptr(),
            ldb: BLOCK,
            c: space.scores.as_mut_ptr(),
            ldc: BLOCK,
            depth: sizes.depth,
            decay: std::ptr::null(),
        };
        for rows in runs(sizes) {
            let seen_end = self.seen_end(sizes, start, &rows);
            // SAFETY: `fit` made room for all operands, `load_block` filled as many vectors; `dispatch` detected the
            // instruction set.
            unsafe {
                scores
                    .starting_at(rows.start)
                    .run::<F, S, false>(rows.len(), seen_end.div_ceil(LANES))
            };
        }
        let common_end = self.fold_block::<S>(sizes, head, start, loaded);
        let space = &mut *self.space;
        let sums = Product {
            a: space.weights.as_ptr(),
            lda: BLOCK / F::PER_WORD,
            b: space.values.as_ptr(),
            ldb: sizes.width,
            c: space.span.as_mut_ptr().wrapping_add(first),
            ldc: sizes.record,
            depth: (loaded.end as usize).div_ceil(F::PER_WORD),
            decay: space.decay.as_ptr(),
        };
        let partly_seen = common_end / F::PER_WORD * sizes.width..sums.depth * sizes.width;
        let all_seen = common_end == loaded.end as usize;
        let is_finite = |all, word: &u32| all & F::is_finite(*word);
        if all_seen || space.values[partly_seen].iter().fold(true, is_finite) {
            for rows in runs(sizes) {
                let depth = self.seen_end(sizes, start, &rows).div_ceil(F::PER_WORD);
                if depth > 0 {
                    let sums = Product { depth, ..sums }.starting_at(rows.start);
                    // SAFETY: as above.
                    unsafe { sums.run::<F, S, true>(rows.len(), sizes.width / LANES) };
                }
            }
        } else {
            self.weigh_seen::<S>(sizes, start, sums);
        }
    }

    /// How many keys of a block some of the rows see, those before them included.
    #[inline(always)]
    fn seen_end(&self, sizes: Sizes, start: usize, rows: &Range<usize>) -> usize {
        let tokens = rows.start / sizes.group..rows.end.div_ceil(sizes.group);
        let ends = self.tokens()[tokens].iter().map(|token| {
            let seen = Seen::new(token.sees(self.step.plan.window), start);
            if seen.is_empty() {
                0
            } else {
                seen.end as usize
            }
        });
        ends.max().unwrap_or(0)
    }

    /// Turns the scores of a block into weights; returns the first key, or one before it, that not all queries see.
    #[inline(always)]
    fn fold_block<S: Lanes>(
        &mut self,
        sizes: Sizes,
        head: usize,
        start: usize,
        loaded: Seen,
    ) -> usize {
        const LOG2_E: f32 = std::f32::consts::LOG2_E;
        let first = head * sizes.rows * sizes.record;
        let scale = self.step.heads.scale * LOG2_E;
        let window = self.step.plan.window;
        let space = &mut *self.space;
        let tokens = self
            .step
            .plan
            .tokens_of(&self.step.plan.tiles[self.item.tile as usize]);
        let mut common_end = loaded.end as usize;
        for (i, token) in tokens.iter().enumerate() {
            let seen = Seen::new(token.sees(window), start);
            let covered = if seen.start <= loaded.start {
                seen.end
            } else {
                0
            };
            common_end = common_end.min(covered as usize);
            for row in i * sizes.group..(i + 1) * sizes.group {
                let record = &mut space.span[first + row * sizes.record..][..sizes.record];
                // SAFETY: as above.
                space.decay[row] = unsafe {
                    fold::<F, S>(
                        space.scores.as_mut_ptr().wrapping_add(row * BLOCK),
                        space
                            .weights
                            .as_mut_ptr()
                            .wrapping_add(row * BLOCK / F::PER_WORD),
                        seen,
                        scale,
                        record,
                    )
                };
            }
        }
        common_end
    }

    /// The weighted sums of a block where something is infinite: zero times that would not be zero, so each query has
    /// the values that it does not see taken away.
    #[inline(always)]
    fn weigh_seen<S: Lanes>(&mut self, sizes: Sizes, start: usize, sums: Product) {
        let window = self.step.plan.window;
        let tokens = self
            .step
            .plan
            .tokens_of(&self.step.plan.tiles[self.item.tile as usize]);
        let space = &mut *self.space;
        space.masked.make_room(space.values.len());
        for row in 0..sizes.rows {
            let seen = Seen::new(tokens[row / sizes.group].sees(window), start);
            if seen.is_empty() {
                continue;
            }
            for i in 0..sums.depth {
                let mut mask = 0;
                for part in 0..F::PER_WORD {
                    let bits = u32::MAX >> (32 - 32 / F::PER_WORD);
                    if seen.contains(i * F::PER_WORD + part) {
                        mask |= bits << (16 * part);
                    }
                }
                let words = i * sizes.width..(i + 1) * sizes.width;
                for (masked, word) in space.masked[words.clone()]
                    .iter_mut()
                    .zip(&space.values[words])
                {
                    *masked = word & mask;
                }
            }
            let sums = Product {
                b: space.masked.as_ptr(),
                ..sums.starting_at(row)
            };
            // SAFETY: one row of what the caller passed; the instruction set was detected by `dispatch`.
            unsafe { sums.run::<F, S, true>(1, sizes.width / LANES) };
        }
    }

    /// Merges the records of a span into the totals, or leaves them to be merged when all spans are there.
    #[inline(always)]
    fn close_span<S: Lanes>(&mut self, sizes: Sizes, span: usize) {
        let len = self.n_records(sizes) * sizes.record;
        let Target::Spans(first) = self.tile().result else {
            let spans = self.space.span[..len].chunks_exact(sizes.record);
            let totals = self.space.total[..len].chunks_exact_mut(sizes.record);
            for (total, span) in totals.zip(spans) {
                // SAFETY: `dispatch` detected the instruction set.
                unsafe { merge::<S>(total, span) };
            }
            return;
        };
        let n_heads = self.step.heads.n_heads;
        let n_tokens = self.tokens().len();
        let first = first + (span - self.tile().spans.start) * n_tokens * n_heads;
        let spans = self.space.span[..len].chunks_exact(sizes.record);
        for (i, (span, (_, head))) in spans.zip(self.records(sizes)).enumerate() {
            let token = i % sizes.rows / sizes.group;
            let at = first + token * n_heads + head;
            // SAFETY: each token, head and span belongs to one item.
            unsafe { self.step.states.part(at * sizes.record, sizes.record) }.copy_from_slice(span);
        }
    }

    #[inline(always)]
    fn close_totals<S: Lanes>(&mut self, sizes: Sizes) {
        let HeadShape {
            n_heads, head_dim, ..
        } = *self.step.heads;
        let len = self.n_records(sizes) * sizes.record;
        let totals = self.space.total[..len].chunks_exact(sizes.record);
        for (total, (token, head)) in totals.zip(self.records(sizes)) {
            let at = token.index as usize * n_heads + head;
            // SAFETY: each token and head belongs to one item of a round; `dispatch` detected the instruction set.
            unsafe {
                match self.tile().result {
                    Target::Out => {
                        finish::<F, S>(total, self.step.out.part(at * head_dim, head_dim))
                    }
                    Target::State => self
                        .step
                        .states
                        .part(at * sizes.record, sizes.record)
                        .copy_from_slice(total),
                    Target::Spans(_) => {}
                }
            }
        }
    }
}
