//! Detection of shared prefixes: the rows of a step that begin with the same KV pages.
//!
//! Page tables are compared, so callers need not declare prefixes. Rows are sorted by one page of each span, then the
//! pages of neighbours are compared in full: at most one pass over the rows' pages per step.

use std::cmp::Ordering;
use std::ops::Range;

use super::seen::SPAN;
use crate::cpu::batch::Segment;
use crate::cpu::kv::PageTable;

/// Maximum number of nested prefixes; rows continue separately after the last.
const MAX_ROUNDS: usize = 3;

#[derive(Clone, Debug)]
pub struct SharedSpans {
    rows: Range<usize>,
    pub spans: Range<usize>,
    /// The rows share the preceding spans, too, which lower rounds compute.
    pub round: usize,
}

/// The shared prefixes of a step; reused, so that steps allocate nothing.
#[derive(Default)]
pub struct Prefixes {
    /// Segments that may share a prefix, sorted so that those with the same pages are adjacent.
    order: Vec<u32>,
    /// Number of leading spans that each pair of neighbours in `order` has in common.
    common: Vec<u32>,
    /// Number of leading spans of each segment that are computed as [`SharedSpans`].
    covered: Vec<u32>,
    shared: Vec<SharedSpans>,
}

impl Prefixes {
    /// Ignores segments of `max_tokens` or more, which gain nothing.
    pub fn find(&mut self, segments: &[Segment], table: &PageTable, max_tokens: usize) {
        self.order.clear();
        self.common.clear();
        self.shared.clear();
        self.covered.clear();
        self.covered.resize(segments.len(), 0);
        let shareable = |i: &u32| {
            let segment = &segments[*i as usize];
            segment.n_tokens < max_tokens && whole_spans(segment) > 0
        };
        self.order
            .extend((0..segments.len() as u32).filter(shareable));
        if self.order.len() < 2 {
            return;
        }
        self.order.sort_unstable_by(|a, b| {
            sampled(&segments[*a as usize], &segments[*b as usize], table).0
        });
        for pair in self.order.windows(2) {
            let (a, b) = (&segments[pair[0] as usize], &segments[pair[1] as usize]);
            self.common.push(common(a, b, table) as u32);
        }
        self.split(0..self.order.len(), 0, 0);
    }

    pub fn shared(&self) -> &[SharedSpans] {
        &self.shared
    }

    pub fn rows(&self, shared: &SharedSpans) -> impl Iterator<Item = usize> + '_ {
        self.order[shared.rows.clone()]
            .iter()
            .map(|row| *row as usize)
    }

    pub fn covered(&self) -> &[u32] {
        &self.covered
    }

    fn split(&mut self, rows: Range<usize>, from: usize, mut round: usize) {
        if rows.len() < 2 || round == MAX_ROUNDS {
            return;
        }
        let common = &self.common[rows.start..rows.end - 1];
        let depth = common
            .iter()
            .copied()
            .min()
            .expect("there must be two rows or more");
        if depth as usize > from {
            for row in rows.clone() {
                self.covered[self.order[row] as usize] = depth;
            }
            self.shared.push(SharedSpans {
                rows: rows.clone(),
                spans: from..depth as usize,
                round,
            });
            round += 1;
        }
        let mut first = rows.start;
        for row in rows.start..rows.end - 1 {
            if self.common[row] == depth {
                self.split(first..row + 1, depth as usize, round);
                first = row + 1;
            }
        }
        // Some pair of neighbours has the minimum, so the rows were divided, and the recursion ends.
        self.split(first..rows.end, depth as usize, round);
    }
}

/// Number of whole spans before a segment; all of its tokens see these spans and at least one later key.
fn whole_spans(segment: &Segment) -> usize {
    segment.first_position / SPAN
}

/// Orders two segments by the last page of each span, and counts the leading spans where that page is the same.
fn sampled(a: &Segment, b: &Segment, table: &PageTable) -> (Ordering, usize) {
    let n_spans = whole_spans(a).min(whole_spans(b));
    let (a_pages, b_pages) = (table.row(a.row), table.row(b.row));
    for span in 0..n_spans {
        let page = (span * SPAN + SPAN - 1) / table.page_size();
        match a_pages[page].cmp(&b_pages[page]) {
            Ordering::Equal => {}
            unequal => return (unequal, span),
        }
    }
    (whole_spans(a).cmp(&whole_spans(b)), n_spans)
}

fn common(a: &Segment, b: &Segment, table: &PageTable) -> usize {
    let n_spans = sampled(a, b, table).1;
    let n_pages = (n_spans * SPAN).div_ceil(table.page_size());
    let (a, b) = (&table.row(a.row)[..n_pages], &table.row(b.row)[..n_pages]);
    if a == b {
        return n_spans;
    }
    let equal = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    equal * table.page_size() / SPAN
}
