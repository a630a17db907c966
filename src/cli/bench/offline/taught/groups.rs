//! The texts that streams of a load decode: those of one kind, with prompts filled up to one length.

use std::sync::Arc;

use fastrand::Rng;
use souffleur::engine::ModelInfo;

use super::adversary;
use super::texts::TaughtText;
use crate::cli::bench::offline::args::OfflineArgs;
use crate::cli::bench::offline::load::longest_prompt;
use crate::cli::failure::Failure;

const ADVERSARY: &str = "adversary";
/// Least prompt of the adversary's texts: most of its tokens' pairs have occurred.
const ADVERSARY_PROMPT: u32 = 512;
/// The most tokens of all groups' prompts: 1 GiB.
const MAX_PROMPT_TOKENS: usize = 1 << 28;
const MAX_KINDS: usize = 64;

pub struct Group {
    pub kind: String,
    /// The least prompt length.
    pub context_tokens: u32,
    pub texts: Vec<TaughtText>,
}

/// The groups of each context and kind, in this order. Texts that do not fit are left out, and `skipped` says so.
///
/// # Errors
/// `--kinds` has an unknown kind; there are too many kinds, or the groups too large.
pub fn make(
    args: &OfflineArgs,
    texts: &[TaughtText],
    model: &ModelInfo,
    seed: u64,
    skipped: &mut Vec<String>,
) -> Result<Vec<Group>, Failure> {
    let kinds = kinds(&args.taught.kinds, texts)?;
    let mut maker = Maker {
        args,
        texts,
        model,
        limit: longest_prompt(model, args.output_tokens) as usize,
        random: Rng::with_seed(seed),
        n_tokens: 0,
    };
    let mut groups = Vec::new();
    for &context_tokens in &args.taught.context {
        for kind in &kinds {
            groups.push(maker.group(kind, context_tokens, skipped)?);
        }
    }
    Ok(groups)
}

/// The kinds to measure.
fn kinds(wanted: &[String], texts: &[TaughtText]) -> Result<Vec<String>, Failure> {
    let mut kinds: Vec<String> = Vec::new();
    for text in texts {
        if !kinds.contains(&text.kind) {
            kinds.push(text.kind.clone());
        }
        if kinds.len() > MAX_KINDS {
            let reason = format!("--taught has more than {MAX_KINDS} kinds, the limit: use fewer");
            return Err(Failure::Usage(reason));
        }
    }
    if !kinds.iter().any(|kind| kind == ADVERSARY) {
        kinds.push(ADVERSARY.to_owned());
    }
    if let Some(unknown) = wanted.iter().find(|kind| !kinds.contains(kind)) {
        let kinds = kinds.join(", ");
        let reason = format!("--kinds has {unknown:?}, must be some of {kinds}");
        return Err(Failure::Usage(reason));
    }
    kinds.retain(|kind| wanted.is_empty() || wanted.contains(kind));
    Ok(kinds)
}

struct Maker<'a> {
    args: &'a OfflineArgs,
    texts: &'a [TaughtText],
    model: &'a ModelInfo,
    /// The longest prompt that fits.
    limit: usize,
    random: Rng,
    /// Tokens of the prompts of all groups so far.
    n_tokens: usize,
}

impl Maker<'_> {
    fn group(
        &mut self,
        kind: &str,
        context_tokens: u32,
        skipped: &mut Vec<String>,
    ) -> Result<Group, Failure> {
        let (all, limit) = (self.texts, self.limit);
        let of_kind = all.iter().filter(|text| text.kind == kind);
        let mut lengths: Vec<usize> = of_kind
            .clone()
            .map(|text| text.prompt.len().max(context_tokens as usize))
            .collect();
        let is_made = lengths.is_empty();
        if is_made {
            lengths = self.adversary_lengths(context_tokens);
        }
        let n = lengths.len();
        lengths.retain(|length| *length <= limit);
        if lengths.len() < n {
            let left_out = n - lengths.len();
            skipped.push(format!(
                "{left_out} texts of {kind}, context {context_tokens}: their prompts have more than {limit} \
                 tokens; increase --context-length or --max-total-tokens"
            ));
        }
        self.n_tokens += lengths.iter().sum::<usize>();
        if self.n_tokens > MAX_PROMPT_TOKENS {
            return Err(Failure::Usage(format!(
                "--taught has {} tokens of prompts with those of --context, limit is {MAX_PROMPT_TOKENS}: use fewer \
                 texts, kinds or contexts",
                self.n_tokens
            )));
        }
        let texts = if is_made {
            let lengths = lengths.iter();
            lengths.map(|length| self.adversary(*length)).collect()
        } else {
            let fitting =
                of_kind.filter(|text| text.prompt.len().max(context_tokens as usize) <= limit);
            let vocab_size = vocab_size(self.model);
            let random = &mut self.random;
            fitting
                .map(|text| filled(text, context_tokens as usize, vocab_size, random))
                .collect()
        };
        Ok(Group {
            kind: kind.to_owned(),
            context_tokens,
            texts,
        })
    }

    /// The prompts' lengths of the adversary's texts: one for each stream of the largest load that the engine can run.
    fn adversary_lengths(&self, context_tokens: u32) -> Vec<usize> {
        let length = context_tokens.max(ADVERSARY_PROMPT) as usize;
        let streams = self.args.taught.streams.iter().copied().max().unwrap_or(1) as usize;
        let most = self.model.max_running_requests;
        let most = most.min(self.model.max_total_tokens / length).max(1);
        vec![length; streams.min(most)]
    }

    fn adversary(&mut self, prompt_tokens: usize) -> TaughtText {
        let n = prompt_tokens + self.args.output_tokens as usize;
        let text = adversary::text(n, vocab_size(self.model), &mut self.random);
        let (prompt, output) = text.split_at(prompt_tokens);
        TaughtText {
            kind: ADVERSARY.to_owned(),
            prompt: prompt.into(),
            output: output.into(),
        }
    }
}

fn vocab_size(model: &ModelInfo) -> u32 {
    u32::try_from(model.vocab_size).unwrap_or(u32::MAX).max(1)
}

/// The text with random tokens before a shorter prompt.
fn filled(text: &TaughtText, tokens: usize, vocab_size: u32, random: &mut Rng) -> TaughtText {
    let mut text = text.clone();
    let missing = tokens.saturating_sub(text.prompt.len());
    if missing > 0 {
        let filling = (0..missing).map(|_| random.u32(0..vocab_size));
        let prompt: Arc<[u32]> = filling.chain(text.prompt.iter().copied()).collect();
        text.prompt = prompt;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_tokens_fill_up_the_front_of_a_shorter_prompt() {
        let text = TaughtText {
            kind: "a".to_owned(),
            prompt: [7, 8].into(),
            output: [1, 2].into(),
        };
        let mut random = Rng::with_seed(1);
        assert_eq!(filled(&text, 2, 100, &mut random), text);
        let longer = filled(&text, 5, 100, &mut random);
        assert_eq!(longer.prompt.len(), 5);
        assert_eq!(longer.prompt[3..], [7, 8]);
        assert_eq!(longer.output, text.output);
    }

    #[test]
    fn more_kinds_than_a_table_has_place_for_are_refused() {
        let text = |kind: usize| TaughtText {
            kind: kind.to_string(),
            prompt: [7].into(),
            output: [1, 2].into(),
        };
        let texts: Vec<TaughtText> = (0..=MAX_KINDS).map(text).collect();
        let all = kinds(&[], &texts[1..]).map_err(|failure| failure.to_string());
        assert_eq!(all.map(|kinds| kinds.len()), Ok(MAX_KINDS + 1));
        let reason = kinds(&[], &texts).map_err(|failure| failure.to_string());
        let reason = reason.expect_err("too many");
        assert!(reason.contains("more than 64 kinds"), "{reason}");
    }
}
