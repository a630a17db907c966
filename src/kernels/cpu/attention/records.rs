//! What an item begins and ends with: its queries, and the records that it takes up and leaves.

use super::super::simd::{LANES, Lanes};
use super::format::Format;
use super::plan::{QueryToken, Target};
use super::space::Sizes;
use super::state::{clear, finish, merge};
use super::tile::Work;
use crate::kernels::HeadShape;

impl<F: Format> Work<'_, F> {
    /// Number of records of the item.
    pub fn n_records(&self, sizes: Sizes) -> usize {
        self.item.heads.len() * sizes.rows
    }

    /// Index of a record in the order of `[tokens, n_heads]`, for each record of the item in its own order.
    fn records(&self, sizes: Sizes) -> impl Iterator<Item = (QueryToken, usize)> + use<'_, F> {
        let rows = self.item.heads.clone().flat_map(move |head| {
            (0..sizes.rows).map(move |row| (head as usize, row / sizes.group, row % sizes.group))
        });
        rows.map(move |(head, token, g)| (self.tokens()[token], head * sizes.group + g))
    }

    /// Reads the queries as words.
    #[inline(always)]
    pub fn load_queries<S: Lanes>(&mut self, sizes: Sizes) {
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
    pub fn open_totals(&mut self, sizes: Sizes) {
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

    /// Merges the records of a span into the totals, or leaves them to be merged when all spans are there.
    #[inline(always)]
    pub fn close_span<S: Lanes>(&mut self, sizes: Sizes, span: usize) {
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

    /// Writes the totals to where the tile's result goes.
    #[inline(always)]
    pub fn close_totals<S: Lanes>(&mut self, sizes: Sizes) {
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
