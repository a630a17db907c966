//! Ranks, which compute one model together (tensor parallelism), and how they share its weights.
//!
//! A rank has whole heads, and an equal share of each width. Two kinds of products follow: those of matrices divided by
//! outputs are a rank's own, and those of matrices divided by inputs are added up over all ranks.

use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rank {
    index: usize,
    count: usize,
}

impl Rank {
    /// The rank of a model that is not divided.
    pub const ONLY: Self = Self { index: 0, count: 1 };

    /// Rank `index` of `count`; `None` if there is no such rank.
    pub fn new(index: usize, count: usize) -> Option<Self> {
        (index < count).then_some(Self { index, count })
    }

    pub fn all(count: usize) -> impl Iterator<Item = Self> {
        (0..count).map(move |index| Self { index, count })
    }

    pub fn index(self) -> usize {
        self.index
    }

    pub fn count(self) -> usize {
        self.count
    }

    pub fn is_first(self) -> bool {
        self.index == 0
    }
}

/// How ranks divide a weight matrix `[outputs, inputs]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Shard {
    /// Every rank has all weights.
    #[default]
    Whole,
    /// Each rank has the weights of some outputs.
    Outputs,
    /// Each rank has the weights of some inputs: the ranks' products must be added up.
    Inputs,
}

/// How ranks share equal units, for example heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Every rank has the same number of units.
    Equal,
    /// As [`Self::Equal`]; if there are fewer units than ranks, the same number of ranks has each unit.
    Replicated,
    /// Every rank has the same number of units, but the last rank lacks those that do not exist.
    Padded,
}

impl Share {
    /// The rank's units; `None` if the ranks cannot share that number. With [`Self::Padded`], every rank needs a unit.
    pub fn of(self, units: usize, rank: Rank) -> Option<Range<usize>> {
        let Rank { index, count } = rank;
        match self {
            Self::Replicated if units < count => {
                let unit = index * units / count;
                count.is_multiple_of(units).then_some(unit..unit + 1)
            }
            Self::Equal | Self::Replicated => {
                let each = units / count;
                (each * count == units).then_some(index * each..(index + 1) * each)
            }
            Self::Padded => {
                let each = units.div_ceil(count);
                let is_possible = (count - 1) * each < units;
                is_possible.then_some(index * each..units.min((index + 1) * each))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(share: Share, units: usize, count: usize) -> Option<Vec<Range<usize>>> {
        Rank::all(count).map(|rank| share.of(units, rank)).collect()
    }

    #[test]
    fn ranks_exist_below_their_count() {
        assert_eq!(Rank::new(0, 1), Some(Rank::ONLY));
        let last = Rank::new(3, 4).expect("there are four");
        assert_eq!((last.index(), last.count(), last.is_first()), (3, 4, false));
        assert_eq!(Rank::new(4, 4), None);
        assert_eq!(Rank::all(4).last(), Some(last));
    }

    #[test]
    fn equal_shares_must_divide() {
        assert_eq!(shares(Share::Equal, 6, 3), Some(vec![0..2, 2..4, 4..6]));
        assert_eq!(shares(Share::Equal, 6, 1), Some(vec![0..6; 1]));
        assert_eq!(shares(Share::Equal, 6, 4), None);
        assert_eq!(shares(Share::Equal, 2, 4), None);
    }

    #[test]
    fn fewer_units_than_ranks_are_replicated() {
        let twice = vec![0..1, 0..1, 1..2, 1..2];
        assert_eq!(shares(Share::Replicated, 2, 4), Some(twice));
        assert_eq!(shares(Share::Replicated, 4, 2), Some(vec![0..2, 2..4]));
        assert_eq!(shares(Share::Replicated, 1, 3), Some(vec![0..1; 3]));
        assert_eq!(shares(Share::Replicated, 3, 4), None);
        assert_eq!(shares(Share::Replicated, 6, 4), None);
        assert_eq!(shares(Share::Replicated, 0, 4), None);
    }

    #[test]
    fn the_last_rank_of_a_padded_share_has_the_rest() {
        assert_eq!(shares(Share::Padded, 10, 3), Some(vec![0..4, 4..8, 8..10]));
        assert_eq!(shares(Share::Padded, 9, 3), Some(vec![0..3, 3..6, 6..9]));
        // Two units for each of three ranks: the last would have none.
        assert_eq!(shares(Share::Padded, 4, 3), None);
    }
}
