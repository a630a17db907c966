//! Runs the loads in rounds: in each, a load runs plain, with drafts, and plain again, in an order that changes.

use std::path::Path;

use futures_util::future::try_join_all;
use indicatif::ProgressBar;
use souffleur::engine::{EngineHandle, ModelInfo};
use souffleur::executor::taught::{TaughtCounts, Teacher};

use super::groups::Group;
use super::report::{Cell, Mode, TaughtRecord};
use super::texts::TaughtText;
use crate::cli::bench::offline::args::OfflineArgs;
use crate::cli::bench::offline::load::FREE_TOKENS;
use crate::cli::bench::offline::measure::streams::{Decoded, answer, decoded_together, request};
use crate::cli::failure::Failure;
use crate::cli::output::record::save_progress;

/// Each mode has each place once in three rounds, so that a drift of the machine's speed affects all alike.
const ORDERS: [[Mode; 3]; 3] = [
    [Mode::Plain, Mode::Drafts, Mode::PlainAgain],
    [Mode::Drafts, Mode::PlainAgain, Mode::Plain],
    [Mode::PlainAgain, Mode::Plain, Mode::Drafts],
];

pub struct Rounds<'a> {
    pub engine: &'a EngineHandle,
    pub teacher: &'a Teacher,
    pub bar: &'a ProgressBar,
    /// The most tokens that a stream decodes.
    pub output_tokens: u32,
}

impl Rounds<'_> {
    /// Runs all rounds. Updates the record and the file `json` after each load.
    ///
    /// # Errors
    /// A stream fails, or its output is not the given one.
    pub async fn run(
        &self,
        args: &OfflineArgs,
        groups: &[Group],
        record: &mut TaughtRecord,
        json: Option<&Path>,
    ) -> Result<(), Failure> {
        let loads = self.possible(args, groups, record);
        let rounds = args.taught.rounds;
        for round in 0..rounds {
            for (index, group) in loads.iter().enumerate() {
                let cell = &mut record.cells[index];
                let name = cell.name();
                self.bar
                    .set_message(format!("round {} of {rounds}: {name}", round + 1));
                self.bar.tick();
                let texts = chosen(&group.texts, cell.streams as usize, round as usize);
                self.sample(&texts, round as usize, cell).await?;
                save_progress(record, json)?;
            }
        }
        Ok(())
    }

    /// The groups of the loads that the engine can run, whose cells are added to the record.
    fn possible<'g>(
        &self,
        args: &OfflineArgs,
        groups: &'g [Group],
        record: &mut TaughtRecord,
    ) -> Vec<&'g Group> {
        let mut loads = Vec::new();
        for group in groups {
            for &streams in &args.taught.streams {
                let cell = Cell::new(group.kind.clone(), group.context_tokens, streams);
                match reason_against(group, streams, self.engine.model(), self.output_tokens) {
                    None => {
                        record.cells.push(cell);
                        loads.push(group);
                    }
                    Some(reason) => record.skipped.push(format!("{}: {reason}", cell.name())),
                }
            }
        }
        loads
    }

    /// Runs the texts once in each mode.
    async fn sample(
        &self,
        texts: &[&TaughtText],
        round: usize,
        cell: &mut Cell,
    ) -> Result<(), Failure> {
        // Computes the prompts, which the cache has afterwards: no prefill comes between the decodes.
        self.decode(texts, 1, Mode::Plain).await?;
        let mut decoded = [None; Mode::COUNT];
        let mut counts = TaughtCounts::default();
        for mode in ORDERS[round % ORDERS.len()] {
            let before = self.teacher.counts();
            decoded[mode as usize] = self.decode(texts, self.output_tokens, mode).await?;
            if mode == Mode::Drafts {
                counts = self.teacher.counts().since(&before);
            }
        }
        cell.add(decoded, &counts);
        Ok(())
    }

    /// Decodes at most `output_tokens` of each text, and returns the tokens of the time while all streams decode; `None`
    /// if that time is empty.
    async fn decode(
        &self,
        texts: &[&TaughtText],
        output_tokens: u32,
        mode: Mode,
    ) -> Result<Option<Decoded>, Failure> {
        let streams = texts.iter().map(|text| {
            let longest = u32::try_from(text.output.len()).unwrap_or(u32::MAX);
            let mut request = request(text.prompt.clone(), longest.min(output_tokens));
            // Without a value, a request has the engine's.
            request.sampling.speculative_num_draft_tokens = match mode {
                Mode::Plain | Mode::PlainAgain => Some(0),
                Mode::Drafts => None,
            };
            answer(self.engine, request)
        });
        let streams = try_join_all(streams).await?;
        for (stream, text) in streams.iter().zip(texts) {
            if stream.output[..] != text.output[..stream.output.len()] {
                return Err(Failure::failed(format_args!(
                    "a stream of the kind {} has another output than the text: this is a bug",
                    text.kind
                )));
            }
        }
        Ok(decoded_together(&streams))
    }
}

/// The texts of one round, in turn, so that the rounds measure all of them.
fn chosen(texts: &[TaughtText], streams: usize, round: usize) -> Vec<&TaughtText> {
    let texts = texts.iter().cycle().skip(round * streams % texts.len());
    texts.take(streams).collect()
}

/// Why the engine cannot run the streams concurrently; `None` if it can.
fn reason_against(
    group: &Group,
    streams: u32,
    model: &ModelInfo,
    output_tokens: u32,
) -> Option<String> {
    let (streams, running) = (streams as usize, model.max_running_requests);
    let longest = group.texts.iter().map(|text| text.prompt.len()).max();
    let tokens = longest.unwrap_or(0) + output_tokens as usize + FREE_TOKENS;
    let (needed, pool) = (
        streams * tokens.next_multiple_of(model.page_size),
        model.max_total_tokens,
    );
    if streams > running {
        Some(format!(
            "needs {streams} running requests, but --max-running-requests is {running}"
        ))
    } else if needed > pool {
        Some(format!(
            "needs {needed} tokens in all, but --max-total-tokens is {pool}"
        ))
    } else if group.texts.len() < streams {
        let n = group.texts.len();
        Some(format!("needs {streams} texts of this kind, there are {n}"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_take_the_texts_in_turn() {
        let texts: Vec<TaughtText> = (0..3)
            .map(|id: u32| TaughtText {
                kind: "a".to_owned(),
                prompt: [id].into(),
                output: [id, id].into(),
            })
            .collect();
        let ids = |streams, round| {
            let chosen = chosen(&texts, streams, round);
            chosen.iter().map(|text| text.prompt[0]).collect::<Vec<_>>()
        };
        assert_eq!(ids(2, 0), [0, 1]);
        assert_eq!(ids(2, 1), [2, 0]);
        assert_eq!(ids(3, 5), [0, 1, 2]);
    }

    #[test]
    fn each_mode_has_each_place_once() {
        for place in 0..3 {
            for mode in [Mode::Plain, Mode::PlainAgain, Mode::Drafts] {
                let n = ORDERS.iter().filter(|order| order[place] == mode).count();
                assert_eq!(n, 1);
            }
        }
    }
}
