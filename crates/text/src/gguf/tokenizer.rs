//! Builds a [`Tokenizer`] from a GGUF file's vocabulary.

use tokenizers::decoders::DecoderWrapper;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as DecoderSequence;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::{BPE, BpeBuilder, Error as BpeError};
use tokenizers::normalizers::replace::Replace;
use tokenizers::normalizers::{NFC, NormalizerWrapper, Prepend, Sequence as NormalizerSequence};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::punctuation::Punctuation;
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizerSequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::template::{SpecialToken, Template, TemplateProcessing};
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{AddedToken, Tokenizer};

use super::added::{self, Prefix};
use super::entries::{BLANK, Entry, Source, entries, longest, quoted, vocabulary};
use super::fields::VocabularyFields;
use super::merges;
use super::splits::{SUPPORTED_NAMES, Splits};
use crate::frozen::FrozenPieces;
use souffleur_base::error::LoadError;

#[derive(Debug)]
pub(super) struct Parts {
    pub(super) tokenizer: Tokenizer,
    /// Pieces that are matched in the normalized text before merges.
    pub(super) frozen: Option<FrozenPieces>,
    /// One more than the highest id that is not a filler.
    pub(super) vocab_size: usize,
    /// Bytes of the longest token.
    pub(super) max_token_bytes: usize,
}

impl Parts {
    fn new(tokenizer: Tokenizer, frozen: Option<FrozenPieces>, entries: &[Entry<'_>]) -> Self {
        let last = entries.iter().rposition(|entry| !entry.is_filler);
        Self {
            tokenizer,
            frozen,
            vocab_size: last.map_or(0, |last| last + 1),
            max_token_bytes: longest(entries),
        }
    }
}

/// Builds the tokenizer; errors name the key.
pub(super) fn build(source: Source<'_>, fields: &VocabularyFields<'_>) -> Result<Parts, LoadError> {
    let entries = entries(source, fields)?;
    match fields.model.as_str() {
        "gpt2" => byte_level(source, fields, &entries),
        "llama" => sentence_piece(source, fields, entries),
        "gemma4" => gemma4(source, fields, entries),
        other => Err(source.refuse(format!(
            "tokenizer.ggml.model is {}, supported: gpt2, llama and gemma4; put the model's tokenizer.json into the \
             file's folder",
            quoted(other)
        ))),
    }
}

fn byte_level(
    source: Source<'_>,
    fields: &VocabularyFields<'_>,
    entries: &[Entry<'_>],
) -> Result<Parts, LoadError> {
    let splits = splits(source, fields.pre.as_deref())?;
    let model = with_listed_merges(source, fields, entries)?.ignore_merges(splits.ignores_merges);
    let mut tokenizer = Tokenizer::new(build_bpe(source, fields, entries, model)?);
    if splits.uses_nfc {
        set_normalizer(source, &mut tokenizer, NFC.into())?;
    }
    let steps = pre_tokenizers(&splits).map_err(|error| internal(source, &error))?;
    tokenizer.with_pre_tokenizer(Some(PreTokenizerSequence::new(steps)));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    add_tokens(source, &mut tokenizer, added::of_bytes(entries))?;
    let adds = BosEos::of(fields, splits.adds_bos);
    add_bos_eos(source, &mut tokenizer, fields, adds)?;
    Ok(Parts::new(tokenizer, None, entries))
}

fn splits(source: Source<'_>, name: Option<&str>) -> Result<Splits, LoadError> {
    name.and_then(Splits::named).ok_or_else(|| {
        source.refuse(format!(
            "tokenizer.ggml.pre is {}, supported: {}; put the model's tokenizer.json into the file's folder",
            name.map_or_else(|| "missing".to_owned(), quoted),
            SUPPORTED_NAMES.join(", ")
        ))
    })
}

fn with_listed_merges(
    source: Source<'_>,
    fields: &VocabularyFields<'_>,
    entries: &[Entry<'_>],
) -> Result<BpeBuilder, LoadError> {
    let merges = merges::listed(source, &fields.merges, entries)?;
    let vocabulary = vocabulary(source, entries)?;
    Ok(BpeBuilder::new().vocab_and_merges(vocabulary, merges))
}

fn pre_tokenizers(splits: &Splits) -> tokenizers::Result<Vec<PreTokenizerWrapper>> {
    let cut = |pattern: &str| {
        let pattern = SplitPattern::Regex(pattern.to_owned());
        Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
    };
    let mut steps = Vec::new();
    if splits.punctuation_first {
        steps.push(Punctuation::new(SplitDelimiterBehavior::Contiguous).into());
    }
    for pattern in &splits.patterns {
        steps.push(cut(pattern)?.into());
    }
    steps.push(ByteLevel::new(false, true, splits.words_of_gpt2).into());
    if let Some(pattern) = splits.digits_of_bytes {
        steps.push(Digits::new(false).into());
        steps.push(cut(pattern)?.into());
    }
    Ok(steps)
}

/// Builds a SentencePiece tokenizer, with merges derived from scores as Hugging Face's converter derives them.
fn sentence_piece(
    source: Source<'_>,
    fields: &VocabularyFields<'_>,
    mut entries: Vec<Entry<'_>>,
) -> Result<Parts, LoadError> {
    added::restore_blanks(&mut entries);
    let vocabulary = vocabulary(source, &entries)?;
    let merges = merges::from_scores(source, &entries, &fields.scores, &vocabulary)?;
    let model = BpeBuilder::new().vocab_and_merges(vocabulary, merges);
    let prefix = if fields.add_space_prefix.unwrap_or(true) {
        Prefix::Blank
    } else {
        Prefix::None
    };
    let mut tokenizer = sentence_piece_base(source, fields, &entries, model, prefix)?;
    add_bos_eos(source, &mut tokenizer, fields, BosEos::of(fields, true))?;
    Ok(Parts::new(tokenizer, frozen(source, &entries)?, &entries))
}

/// Gemma 4 uses the file's merges without a pre-tokenizer, and its prompts always begin with BOS.
fn gemma4(
    source: Source<'_>,
    fields: &VocabularyFields<'_>,
    mut entries: Vec<Entry<'_>>,
) -> Result<Parts, LoadError> {
    added::restore_blanks(&mut entries);
    let model = with_listed_merges(source, fields, &entries)?;
    let mut tokenizer = sentence_piece_base(source, fields, &entries, model, Prefix::None)?;
    let adds = BosEos {
        bos: true,
        ..BosEos::of(fields, true)
    };
    add_bos_eos(source, &mut tokenizer, fields, adds)?;
    Ok(Parts::new(tokenizer, frozen(source, &entries)?, &entries))
}

fn sentence_piece_base(
    source: Source<'_>,
    fields: &VocabularyFields<'_>,
    entries: &[Entry<'_>],
    model: BpeBuilder,
    prefix: Prefix,
) -> Result<Tokenizer, LoadError> {
    let unknown = fields.unknown_id.map(|id| &entries[id as usize]);
    let model = match unknown.filter(|entry| !entry.is_filler) {
        Some(entry) => model.unk_token(entry.text.to_string()),
        None => model,
    };
    let model = model.byte_fallback(true).fuse_unk(true);
    let mut tokenizer = Tokenizer::new(build_bpe(source, fields, entries, model)?);
    let replace = |from: &str, to: &str| {
        let replace = Replace::new(from, to);
        replace.map_err(|error| internal(source, &error))
    };
    let mut normalizers: Vec<NormalizerWrapper> = vec![replace(" ", BLANK)?.into()];
    let mut decoders: Vec<DecoderWrapper> = vec![
        replace(BLANK, " ")?.into(),
        ByteFallback::new().into(),
        Fuse::new().into(),
    ];
    if prefix == Prefix::Blank {
        normalizers.insert(0, Prepend::new(BLANK.to_owned()).into());
        decoders.push(Strip::new(' ', 1, 0).into());
    }
    let normalizer = NormalizerSequence::new(normalizers);
    set_normalizer(source, &mut tokenizer, normalizer.into())?;
    tokenizer.with_decoder(Some(DecoderSequence::new(decoders)));
    let rstrip = fields.architecture.as_deref() == Some("phi3");
    let added = added::of_sentence_piece(entries, prefix, rstrip);
    add_tokens(source, &mut tokenizer, added)?;
    Ok(tokenizer)
}

/// Adds the tokens that are matched in the raw text.
fn add_tokens(
    source: Source<'_>,
    tokenizer: &mut Tokenizer,
    added: Vec<AddedToken>,
) -> Result<(), LoadError> {
    let all = tokenizer.add_tokens(added);
    all.map_err(|error| internal(source, &error))?;
    Ok(())
}

fn frozen(source: Source<'_>, entries: &[Entry<'_>]) -> Result<Option<FrozenPieces>, LoadError> {
    let pieces = FrozenPieces::new(&added::frozen(entries));
    pieces.map_err(|error| internal(source, &error))
}

/// Adds BOS and EOS to plain prompts as `tokenizer.json` does, even if a prompt already begins with BOS.
fn add_bos_eos(
    source: Source<'_>,
    tokenizer: &mut Tokenizer,
    fields: &VocabularyFields<'_>,
    adds: BosEos,
) -> Result<(), LoadError> {
    let bos = fields.bos_id.filter(|_| adds.bos).map(|id| ("bos", id));
    let eos = fields.eos_id.filter(|_| adds.eos).map(|id| ("eos", id));
    if bos.is_none() && eos.is_none() {
        return Ok(());
    }
    let template = || -> Result<_, Box<dyn std::error::Error + Send + Sync>> {
        let mut pieces = vec!["$A"];
        let mut tokens = Vec::new();
        for (name, id) in bos.into_iter().chain(eos) {
            let place = if name == "bos" { 0 } else { pieces.len() };
            pieces.insert(place, name);
            let text = fields.tokens[id as usize].to_string();
            tokens.push(SpecialToken::new(name.to_owned(), vec![id], vec![text])?);
        }
        let template = TemplateProcessing::builder()
            .single(Template::try_from(pieces)?)
            .special_tokens(tokens)
            .build()?;
        Ok(template)
    };
    let template = template().map_err(|error| internal(source, &error))?;
    tokenizer.with_post_processor(Some(template));
    Ok(())
}

/// Whether plain prompts get BOS and EOS.
#[derive(Clone, Copy)]
struct BosEos {
    bos: bool,
    eos: bool,
}

impl BosEos {
    fn of(fields: &VocabularyFields<'_>, bos_by_default: bool) -> Self {
        Self {
            bos: fields.add_bos.unwrap_or(bos_by_default),
            eos: fields.add_eos.unwrap_or(false),
        }
    }
}

fn build_bpe(
    source: Source<'_>,
    fields: &VocabularyFields<'_>,
    entries: &[Entry<'_>],
    model: BpeBuilder,
) -> Result<BPE, LoadError> {
    let out_of_vocabulary = |error: &(dyn std::error::Error + Send + Sync + 'static)| {
        matches!(
            error.downcast_ref(),
            Some(BpeError::MergeTokenOutOfVocabulary(_))
        )
    };
    model.build().map_err(|error| {
        if out_of_vocabulary(&*error) {
            merges::unknown_part(source, &fields.merges, entries)
        } else {
            internal(source, &error)
        }
    })
}

fn set_normalizer(
    source: Source<'_>,
    tokenizer: &mut Tokenizer,
    normalizer: NormalizerWrapper,
) -> Result<(), LoadError> {
    let set = tokenizer.with_normalizer(Some(normalizer));
    set.map_err(|error| internal(source, &error))?;
    Ok(())
}

fn internal(source: Source<'_>, error: &dyn std::fmt::Display) -> LoadError {
    source.refuse(format!(
        "cannot build the tokenizer: {error}; put the model's tokenizer.json into the file's folder"
    ))
}
