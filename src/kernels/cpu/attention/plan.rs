//! Partition of a step's attention into query tiles, and into the work items that threads claim.
//!
//! A plan decides only which thread computes what, never the results. It is made once per step and kind of layer, in
//! reused memory.

use std::cmp::Reverse;
use std::ops::Range;

use super::prefix::Prefixes;
use super::seen::{BLOCK, SPAN};
use crate::HeadShape;
use crate::cpu::batch::{BidirectionalTokens, Segment};
use crate::cpu::kv::PageTable;
use crate::cpu::nodes::Nodes;
use crate::cpu::threads::Order;
use souffleur_base::ids::RowId;

/// Queries of a key head (tokens times heads of its group) in a tile, which share packed blocks. Up to half more or
/// fewer are allowed, so that no small tile remains, which would pack the blocks again.
const TILE_ROWS: usize = 384;
/// A segment with at least this many queries shares no prefix: packing a prefix again costs less than storing records.
const UNSHARED_ROWS: usize = 96;
/// Queries of a key head below which attention is memory-bound.
const FEW_ROWS: usize = 12;
/// Work items for each thread, for load balancing.
const ITEMS_PER_THREAD: usize = 4;
/// An item of many queries is cut by spans only if it exceeds this many fair shares of a round's cost: the records of
/// all its spans then go through memory, which takes a fifth of the time.
const MOST_SHARES: usize = 2;

#[derive(Clone, Copy, Debug)]
pub struct QueryToken {
    pub index: u32,
    pub position: u32,
    /// The position after the last key that the token sees: its own, or the last of its image.
    pub end: u32,
}

impl QueryToken {
    #[inline(always)]
    pub fn sees(self, window: Option<usize>) -> Range<usize> {
        let begin = |window| (self.position as usize + 1).saturating_sub(window);
        window.map_or(0, begin)..self.end as usize
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Out,
    /// The records of the step's tokens, with which the next round continues.
    State,
    /// Index of the first of the records `[spans, tokens, n_heads]`.
    Spans(usize),
}

/// Query tokens that see the same slots, and the spans of slots to attend to.
#[derive(Clone, Debug)]
pub struct Tile {
    /// Index of the first token in the plan.
    first_token: usize,
    n_tokens: usize,
    /// A row whose pages hold the keys.
    pub row: RowId,
    /// Positions of all keys that the tile's tokens see.
    pub keys: Range<usize>,
    pub spans: Range<usize>,
    /// Whether an earlier round has computed the preceding spans.
    pub resumes: bool,
    pub result: Target,
    round: usize,
}

impl Tile {
    /// Multiply-adds of a key head in some spans.
    fn cost(&self, spans: &Range<usize>, heads: &HeadShape) -> usize {
        let end = self.keys.end.min(spans.end * SPAN);
        let keys = end.saturating_sub(self.keys.start.max(spans.start * SPAN));
        self.n_tokens * heads.group() * (heads.key_dim + heads.values.dim()) * keys.max(BLOCK)
    }
}

/// A work item, which one thread claims: some key heads and spans of a tile.
#[derive(Clone, Debug)]
pub struct Item {
    pub tile: u32,
    pub heads: Range<u32>,
    pub spans: Range<usize>,
    round: u32,
    /// The NUMA node that owns the heads; 0 if there are fewer heads than nodes.
    pub node: u32,
    pub cost: usize,
}

/// Items that do not wait for each other.
pub struct Round {
    items: Range<usize>,
    /// Range in [`AttentionPlan`]'s `node_items` with the round's number of items per node.
    node_items: Range<usize>,
    pub cost: usize,
    /// `Runs` if neighbouring items share a head: a thread that takes both finds the keys in its cache.
    pub order: Order,
}

/// The tiles and items of a step, for layers with one head shape and window.
#[derive(Default)]
pub struct AttentionPlan {
    tokens: Vec<QueryToken>,
    pub tiles: Vec<Tile>,
    /// Ordered by round, then by node, then longest first, so that the last items are short.
    items: Vec<Item>,
    /// Items of each node in each round; a single number if heads are not assigned to nodes.
    node_items: Vec<usize>,
    /// Rounds run in this order: each begins when the previous one is done.
    rounds: Vec<Round>,
    /// Tiles whose spans are merged at the end, and the multiply-adds of the merges.
    merges: (Vec<u32>, usize),
    /// Sliding window, unless it covers all keys of every query.
    pub window: Option<usize>,
    /// Records passed from round to round or merged at the end.
    pub n_records: usize,
    /// The largest numbers of query tokens and of records of an item.
    pub largest_item: (usize, usize),
}

impl AttentionPlan {
    /// `bidirectional` has the tokens that see later keys, ascending.
    pub fn make(
        &mut self,
        (segments, bidirectional): (&[Segment], &[BidirectionalTokens]),
        table: &PageTable,
        heads: &HeadShape,
        nodes: &Nodes,
        prefixes: Option<&mut Prefixes>,
    ) {
        self.tokens.clear();
        self.tiles.clear();
        self.items.clear();
        self.node_items.clear();
        self.rounds.clear();
        self.merges.0.clear();
        self.merges.1 = 0;
        self.largest_item = (0, 0);
        let end = segments.iter().map(|s| s.first_position + s.n_tokens).max();
        self.window = heads.window.filter(|window| *window < end.unwrap_or(0));
        let group = heads.n_heads / heads.n_kv_heads;
        let tile_tokens = (TILE_ROWS / group).max(1);
        let mut covered: &[u32] = &[];
        let mut last_round = 0;
        if let Some(prefixes) = prefixes.filter(|_| self.window.is_none()) {
            prefixes.find(segments, table, (UNSHARED_ROWS / group).max(1));
            for shared in prefixes.shared() {
                let tokens = prefixes
                    .rows(shared)
                    .flat_map(|row| tokens_of(&segments[row], bidirectional));
                let row = segments[prefixes.rows(shared).next().expect("spans must have rows")].row;
                self.push_tiles(tokens, tile_tokens, row, shared.spans.clone(), shared.round);
                last_round = last_round.max(shared.round + 1);
            }
            covered = prefixes.covered();
        }
        for (i, segment) in segments.iter().enumerate() {
            let from = covered.get(i).map_or(0, |spans| *spans as usize);
            self.push_tiles(
                tokens_of(segment, bidirectional),
                tile_tokens,
                segment.row,
                from..usize::MAX,
                last_round,
            );
        }
        // Records of the step's tokens come first, then those of spans.
        let n_tokens = segments.iter().map(Segment::end_token).max().unwrap_or(0);
        self.n_records = if last_round == 0 {
            0
        } else {
            n_tokens * heads.n_heads
        };
        for tile in &mut self.tiles {
            tile.result = if tile.round < last_round {
                Target::State
            } else {
                Target::Out
            };
        }
        self.divide(heads, nodes);
    }

    pub fn tokens_of(&self, tile: &Tile) -> &[QueryToken] {
        &self.tokens[tile.first_token..tile.first_token + tile.n_tokens]
    }

    pub fn rounds(&self) -> impl Iterator<Item = (&Round, &[Item])> {
        self.rounds
            .iter()
            .map(|round| (round, &self.items[round.items.clone()]))
    }

    /// The number of items of a round on each node.
    pub fn items_per_node(&self, round: &Round) -> &[usize] {
        &self.node_items[round.node_items.clone()]
    }

    pub fn merges(&self) -> (&[u32], usize) {
        (&self.merges.0, self.merges.1)
    }

    fn push_tiles(
        &mut self,
        tokens: impl Iterator<Item = QueryToken>,
        tile_tokens: usize,
        row: RowId,
        spans: Range<usize>,
        round: usize,
    ) {
        let first = self.tokens.len();
        self.tokens.extend(tokens);
        let n_tokens = self.tokens.len() - first;
        let n_tiles = (n_tokens + tile_tokens / 2) / tile_tokens;
        let tile_tokens = n_tokens.div_ceil(n_tiles.max(1)).max(1);
        for first_token in (first..self.tokens.len()).step_by(tile_tokens) {
            let n_tokens = tile_tokens.min(self.tokens.len() - first_token);
            let seen = self.tokens[first_token..first_token + n_tokens]
                .iter()
                .map(|token| token.sees(self.window));
            let keys = seen
                .reduce(|a, b| a.start.min(b.start)..a.end.max(b.end))
                .expect("a tile must have tokens");
            self.tiles.push(Tile {
                first_token,
                n_tokens,
                row,
                spans: spans.start.max(keys.start / SPAN)..spans.end.min(keys.end.div_ceil(SPAN)),
                keys,
                resumes: spans.start > 0,
                result: Target::Out,
                round,
            });
        }
    }

    /// Cuts tiles into items: by key heads, and costly tiles by spans too.
    fn divide(&mut self, heads: &HeadShape, nodes: &Nodes) {
        let group = heads.n_heads / heads.n_kv_heads;
        let heads_of_nodes = nodes.heads(heads.n_kv_heads);
        let n_rounds = self.tiles.last().map_or(0, |tile| tile.round + 1);
        for round in 0..n_rounds {
            self.divide_round(round, heads, nodes);
        }
        self.sort_items(group);
        self.build_rounds(group, heads_of_nodes.len());
    }

    fn divide_round(&mut self, round: usize, heads: &HeadShape, nodes: &Nodes) {
        let group = heads.group();
        let heads_of_nodes = nodes.heads(heads.n_kv_heads);
        let total: usize = self
            .tiles
            .iter()
            .filter(|tile| tile.round == round)
            .map(|tile| tile.cost(&tile.spans, heads))
            .sum();
        let fair = (total / (ITEMS_PER_THREAD * nodes.n_threads())).max(1);
        for (i, tile) in self.tiles.iter_mut().enumerate() {
            if tile.round != round {
                continue;
            }
            let whole = tile.cost(&tile.spans, heads);
            let (head_parts, spans_in_part) = parts(tile, (whole, fair), heads, group);
            if spans_in_part < tile.spans.len() {
                tile.result = Target::Spans(self.n_records);
                let n_records = tile.spans.len() * tile.n_tokens * heads.n_heads;
                self.n_records += n_records;
                self.merges.0.push(i as u32);
                self.merges.1 += n_records * heads.values.dim();
            }
            let step = heads.n_kv_heads / head_parts;
            let (tokens, records) = &mut self.largest_item;
            *tokens = tile.n_tokens.max(*tokens);
            *records = (tile.n_tokens * group * step).max(*records);
            for first in tile.spans.clone().step_by(spans_in_part) {
                let spans = first..tile.spans.end.min(first + spans_in_part);
                for (node, own) in heads_of_nodes.iter().enumerate() {
                    for head in own.clone().step_by(step) {
                        let end = own.end.min(head + step);
                        self.items.push(Item {
                            tile: i as u32,
                            heads: head as u32..end as u32,
                            cost: tile.cost(&spans, heads) * (end - head),
                            spans: spans.clone(),
                            round: round as u32,
                            node: node as u32,
                        });
                    }
                }
            }
        }
    }

    fn sort_items(&mut self, group: usize) {
        let tiles = &self.tiles;
        self.items.sort_unstable_by_key(|item| {
            // Consecutive tiles of one head find its keys in the cache.
            let is_many = tiles[item.tile as usize].n_tokens * group >= FEW_ROWS;
            let head = if is_many { item.heads.start } else { 0 };
            (
                item.round,
                item.node,
                head,
                Reverse(item.cost),
                item.tile,
                item.heads.start,
            )
        });
    }

    fn build_rounds(&mut self, group: usize, n_nodes: usize) {
        let tiles = &self.tiles;
        let mut first = 0;
        for items in self.items.chunk_by(|a, b| a.round == b.round) {
            let is_many = |item: &Item| tiles[item.tile as usize].n_tokens * group >= FEW_ROWS;
            let first_count = self.node_items.len();
            self.node_items.resize(first_count + n_nodes, 0);
            for item in items {
                self.node_items[first_count + item.node as usize] += 1;
            }
            self.rounds.push(Round {
                items: first..first + items.len(),
                node_items: first_count..self.node_items.len(),
                cost: items.iter().map(|item| item.cost).sum(),
                order: if items.iter().all(is_many) {
                    Order::Runs
                } else {
                    Order::First
                },
            });
            first += items.len();
        }
    }
}

/// Returns the number of parts of a tile's key heads, and the spans per item, so that items cost about a fair share.
/// Few queries are memory-bound, which favours reading the heads of a slot together; many are compute-bound.
fn parts(
    tile: &Tile,
    (cost, fair): (usize, usize),
    heads: &HeadShape,
    group: usize,
) -> (usize, usize) {
    let n_spans = tile.spans.len().max(1);
    let n_heads = heads.n_kv_heads;
    if tile.result == Target::State {
        return (n_heads, n_spans);
    }
    let (head_parts, span_parts) = if tile.n_tokens * group < FEW_ROWS {
        let wanted = cost.div_ceil(fair);
        let span_parts = wanted.clamp(1, n_spans);
        (wanted.div_ceil(span_parts), span_parts)
    } else {
        // Rounded to the nearest: the last of equal tiles costs a little more than a share.
        let wanted = (cost + fair / 2) / fair;
        let span_parts = wanted.div_ceil(MOST_SHARES * n_heads);
        (n_heads, span_parts.clamp(1, n_spans))
    };
    let divides = |parts: &usize| n_heads.is_multiple_of(*parts);
    let head_parts = (head_parts.min(n_heads)..=n_heads).find(divides);
    (head_parts.unwrap_or(n_heads), n_spans.div_ceil(span_parts))
}

fn tokens_of<'a>(
    segment: &Segment,
    bidirectional: &'a [BidirectionalTokens],
) -> impl Iterator<Item = QueryToken> + use<'a> {
    let Segment {
        first_token,
        first_position,
        n_tokens,
        ..
    } = *segment;
    (0..n_tokens).map(move |i| {
        let (index, position) = (first_token + i, first_position + i);
        QueryToken {
            index: index as u32,
            position: position as u32,
            end: BidirectionalTokens::end_of(bidirectional, index, position) as u32,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use souffleur_base::kv_layout::Values;

    /// Counts the merges in a step with chunks of (first position, tokens), on two threads.
    fn merges_of(heads: &HeadShape, chunks: &[(usize, usize)]) -> usize {
        let segments = chunks.iter().scan(0, |next, (first_position, n_tokens)| {
            let first_token = std::mem::replace(next, *next + n_tokens);
            Some(Segment {
                row: RowId::new(0),
                first_token,
                n_tokens: *n_tokens,
                first_position: *first_position,
                is_long: false,
            })
        });
        let segments: Vec<Segment> = segments.collect();
        let mut plan = AttentionPlan::default();
        let (table, nodes) = (PageTable::new(1, 1), Nodes::new([2]));
        plan.make((&segments, &[]), &table, heads, &nodes, None);
        plan.merges().0.len()
    }

    /// Prefill chunks of about half a second are divided by heads and tiles only: with a division by spans, the spans'
    /// records would be written and read again.
    #[test]
    fn only_chunks_that_heads_and_tiles_cannot_divide_are_cut_by_spans() {
        let shape = |n_heads, n_kv_heads| HeadShape {
            n_heads,
            n_kv_heads,
            key_dim: 128,
            values: Values::Own { dim: 128 },
            scale: 0.1,
            score_cap: None,
            window: None,
        };
        for heads in [shape(12, 2), shape(16, 8)] {
            for n_tokens in [96, 110, 127, 128, 138, 192, 4096] {
                assert_eq!(merges_of(&heads, &[(7000, n_tokens)]), 0, "{n_tokens}");
            }
            // A single query can only be divided by spans.
            assert_eq!(merges_of(&heads, &[(7000, 1)]), 1);
        }
        // A single head would keep one thread waiting for the other.
        assert!(merges_of(&shape(4, 1), &[(7000, 40)]) > 0);
    }
}
