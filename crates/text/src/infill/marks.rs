//! Finds a vocabulary's tokens for filling in the middle: by the ids that a GGUF file names, else by their texts.

use tokenizers::{AddedToken, AddedVocabulary};

use crate::TextModel;

/// The ids of a GGUF file's keys `tokenizer.ggml.fim_…_token_id`, by role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FimIds {
    /// `fim_pre`, or the older `prefix`.
    pub prefix: Option<u32>,
    /// `fim_suf`, or the older `suffix`.
    pub suffix: Option<u32>,
    /// `fim_mid`, or the older `middle`.
    pub middle: Option<u32>,
    /// `fim_pad`.
    pub pad: Option<u32>,
    /// `fim_rep`: precedes the repository's name.
    pub repository: Option<u32>,
    /// `fim_sep`: precedes a file's name.
    pub separator: Option<u32>,
}

// llama.cpp knows all of these names but Mistral's. The families are those of the first model with the name.
const PREFIX: [&str; 9] = [
    "<|fim_prefix|>",  // Qwen, CodeGemma
    "<fim-prefix>",    // SantaCoder
    "<fim_prefix>",    // StarCoder, Granite
    "<｜fim▁begin｜>", // DeepSeek
    "<PRE>",
    "\u{2581}<PRE>",   // CodeLlama
    "<|code_prefix|>", // GLM
    "<|prefix|>",      // Falcon-H1
    MISTRAL_PREFIX,
];
const SUFFIX: [&str; 9] = [
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "\u{2581}<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
    "[SUFFIX]",
];
const MIDDLE: [&str; 8] = [
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "\u{2581}<MID>",
    "<|code_middle|>",
    "<|middle|>",
];
const PAD: [&str; 5] = ["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"];
const REPOSITORY: [&str; 5] = [
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
];
const SEPARATOR: [&str; 1] = ["<|file_sep|>"];
/// Its models have the suffix first, and no mark of the middle.
const MISTRAL_PREFIX: &str = "[PREFIX]";
/// Ends a middle of CodeLlama. Other models end a middle with the end of a text.
const MIDDLE_END: &str = "\u{2581}<EOT>";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    PrefixFirst { middle: u32 },
    SuffixFirst,
}

/// The tokens of a vocabulary that can fill in the middle.
#[derive(Debug)]
pub(crate) struct InfillTokens {
    pub(super) order: Order,
    pub(super) prefix: u32,
    pub(super) suffix: u32,
    pub(super) repository: Option<u32>,
    pub(super) separator: Option<u32>,
    /// BOS, if plain prompts begin with it.
    pub(super) bos: Option<u32>,
    /// The added tokens, of which the special ones and the marks match no text.
    pub(super) plain: AddedVocabulary,
    ends: Vec<u32>,
}

impl InfillTokens {
    /// `None` if the vocabulary lacks a token of prefix, suffix or middle.
    pub(crate) fn find(model: &TextModel, named: FimIds) -> Option<Self> {
        let role = |id: Option<u32>, names: &[&str]| {
            let id = id.filter(|id| (*id as usize) < model.vocab_size());
            id.or_else(|| names.iter().find_map(|name| model.token_id(name)))
        };
        let prefix = role(named.prefix, &PREFIX)?;
        let suffix = role(named.suffix, &SUFFIX)?;
        let middle = role(named.middle, &MIDDLE);
        let order = if model.token(prefix).as_deref() == Some(MISTRAL_PREFIX) {
            Order::SuffixFirst
        } else {
            Order::PrefixFirst { middle: middle? }
        };
        let pad = role(named.pad, &PAD);
        let repository = role(named.repository, &REPOSITORY);
        let separator = role(named.separator, &SEPARATOR);
        let others = [middle, pad, repository, separator];
        let end = model.token_id(MIDDLE_END);
        let mut ends = vec![prefix, suffix];
        ends.extend(others.into_iter().chain([end]).flatten());
        ends.sort_unstable();
        ends.dedup();
        let added = model.encode("").unwrap_or_default();
        Some(Self {
            order,
            prefix,
            suffix,
            repository,
            separator,
            bos: model.bos_id().filter(|bos| added.first() == Some(bos)),
            plain: plain(model, &ends)?,
            ends,
        })
    }

    pub(super) fn ends(&self) -> &[u32] {
        &self.ends
    }
}

/// The added tokens without those that are special or in `marks`, with the same ids.
fn plain(model: &TextModel, marks: &[u32]) -> Option<AddedVocabulary> {
    let tokenizer = &model.tokenizer;
    let mut plain = tokenizer.get_added_vocabulary().clone();
    let added = plain.get_added_tokens_decoder();
    let marks = marks.iter().filter_map(|id| added.get(id).cloned());
    let special: Vec<AddedToken> = marks.map(|mark| mark.special(true)).collect();
    let set = plain.add_tokens(special, tokenizer.get_model(), tokenizer.get_normalizer());
    set.ok()?;
    plain.set_encode_special_tokens(true);
    Some(plain)
}
