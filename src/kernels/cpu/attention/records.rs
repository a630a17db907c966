//! Start and end of an attention work item: loads its queries and earlier softmax records, stores its results.

use super::super::simd::{LANES, Lanes};
use super::kv_element::KvElement;
use super::plan::{QueryToken, Target};
use super::sizes::Sizes;
use super::state::{finish, merge};
use super::tile::{Step, Work};

impl<F: KvElement> Work<'_, F> {
    pub fn n_records(&self, sizes: Sizes) -> usize {
        self.item.heads.len() * sizes.rows
    }

    /// Token and query head of each record of the item, in the item's order.
    fn records(&self, sizes: Sizes) -> impl Iterator<Item = (QueryToken, usize)> + use<'_, F> {
        self.item.heads.clone().flat_map(move |head| {
            let heads = head as usize * sizes.group..(head as usize + 1) * sizes.group;
            let tokens = self.tokens().iter();
            tokens.flat_map(move |token| heads.clone().map(|head| (*token, head)))
        })
    }

    #[inline(always)]
    pub fn load_queries<S: Lanes>(&mut self, sizes: Sizes) {
        const TOKENS_AHEAD: usize = 6;
        let Step { heads, q, .. } = self.step;
        let words = sizes.query_words;
        let part = sizes.group * heads.key_dim;
        let mut to = self.space.queries.as_mut_ptr();
        let mut scale = self.space.query_scales.as_mut_ptr();
        for head in self.item.heads.clone() {
            let tokens = self.tokens();
            let of_group =
                |token: QueryToken| &q.row(token.index as usize)[head as usize * part..][..part];
            for (i, token) in tokens.iter().enumerate() {
                // The same head of consecutive tokens is too far apart for the hardware prefetcher.
                if let Some(token) = tokens.get(i + TOKENS_AHEAD) {
                    for line in of_group(*token).chunks(LANES) {
                        // SAFETY: only a hint; `dispatch` detected the instruction set.
                        unsafe { S::prefetch(line.as_ptr()) };
                    }
                }
                for row in of_group(*token).chunks_exact(heads.key_dim) {
                    // SAFETY: `fit` sized the buffers for `words` words and a scale per query; `dispatch` detected the
                    // instruction set.
                    unsafe { *scale = F::write_query::<S>(row, to) };
                    (to, scale) = (to.wrapping_add(words), scale.wrapping_add(1));
                }
            }
        }
    }

    fn resumes(&self) -> bool {
        self.tile().resumes && self.item.spans.start == self.tile().spans.start
    }

    pub fn load_totals(&mut self, sizes: Sizes) {
        if !self.resumes() {
            return;
        }
        let mut total = std::mem::take(&mut self.space.total);
        let records = total.chunks_exact_mut(sizes.record);
        for (record, (token, head)) in records.zip(self.records(sizes)) {
            let at = token.index as usize * self.step.heads.n_heads + head;
            // SAFETY: each record is used by one item of a round.
            record
                .copy_from_slice(unsafe { self.step.states.part(at * sizes.record, sizes.record) });
        }
        self.space.total = total;
    }

    /// Merges the records of a span into the totals, or stores them for a merge after all items of the tile.
    #[inline(always)]
    pub fn close_span<S: Lanes>(&mut self, sizes: Sizes, span: usize) {
        let len = self.n_records(sizes) * sizes.record;
        let Target::Spans(first) = self.tile().result else {
            if span == self.item.spans.start && !self.resumes() {
                std::mem::swap(&mut self.space.span, &mut self.space.total);
                return;
            }
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
    pub fn store_results<S: Lanes>(&mut self, sizes: Sizes) {
        const RESULTS_AHEAD: usize = 12;
        let (n_heads, dim) = (self.step.heads.n_heads, self.step.heads.values.dim());
        let len = self.n_records(sizes) * sizes.record;
        let totals = self.space.total[..len].chunks_exact(sizes.record);
        let result = self.tile().result;
        let mut ahead = self.records(sizes).skip(RESULTS_AHEAD);
        for (total, (token, head)) in totals.zip(self.records(sizes)) {
            let at = token.index as usize * n_heads + head;
            // SAFETY: each token and head belongs to one item of a round; `dispatch` detected the instruction set.
            unsafe {
                match result {
                    Target::Out => {
                        if let Some((token, head)) = ahead.next() {
                            let at = (token.index as usize * n_heads + head) * dim;
                            for line in (at..at + dim).step_by(LANES) {
                                S::prefetch(self.step.out.at(line));
                            }
                        }
                        let sink = self.step.sink(head);
                        finish::<F, S>(total, sink, self.step.out.part(at * dim, dim))
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
