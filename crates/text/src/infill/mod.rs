//! Fill in the middle: encodes a prompt that asks for the text between a prefix and a suffix.
//!
//! The prompt has the tokens of llama.cpp's `/infill`: other files, BOS if the vocabulary adds it, the prefix after its
//! mark (a special token such as `<|fim_prefix|>`), the suffix after its mark, the middle's mark. (Models of Mistral:
//! first the suffix, then the prefix, and no mark of the middle.) Each text is encoded alone, and names of marks in a
//! text are ordinary letters.
//!
//! llama.cpp cuts every prefix to three quarters of a batch and every suffix to one quarter. The start of the cut
//! prefix then moves with each typed line, and nothing after it stays cached. Here only a prompt of more than seven
//! eighths of the longest is cut, and its beginning in steps of an eighth, so that it moves rarely.

mod marks;

use super::TextModel;
use crate::count::MAX_COUNTED_BYTES;
pub use marks::FimIds;
pub(super) use marks::InfillTokens;
use marks::Order;
use souffleur_base::error::RequestError;

/// The error for a model whose vocabulary lacks the tokens.
pub const NO_INFILL_TOKENS: &str = "the model's vocabulary has no tokens for a prefix, a suffix and a middle: load a \
                                    model that was trained to fill in the middle, such as Qwen2.5-Coder, StarCoder2, \
                                    Granite Code, CodeGemma, DeepSeek-Coder, CodeLlama or Codestral";

/// The name of the repository, and of the file to complete. llama.cpp has these, as its clients send no names.
const REPOSITORY: &str = "myproject\n";
const THIS_FILE: &str = "filename\n";
/// Precedes each other file if the vocabulary has no separator of files.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";
/// Parts into which the longest prompt is divided: all but one may be used, and cuts have the size of one.
const EIGHTHS: usize = 8;
/// The suffix keeps this part of a prompt that is cut, and more if the prefix is short.
const SUFFIX_PART: usize = 4;
/// Bytes of text per token of the longest prompt that are encoded before a cut. Tokens of code have about four.
const CUT_BYTES_PER_TOKEN: usize = 16;
/// The marks of prefix, suffix and middle, and BOS.
const MAX_MARKS: usize = 4;

/// The texts of a prompt that asks for the text between two others.
#[derive(Clone, Debug, Default)]
pub struct InfillPrompt<'a> {
    pub prefix: &'a str,
    pub suffix: &'a str,
    /// The line before the cursor, which follows `prefix` and is encoded separately.
    pub line_start: &'a str,
    /// Other files of the repository, the most relevant last; `None` for a prompt of prefix and suffix alone.
    pub files: Option<Vec<InfillFile<'a>>>,
    /// The length in tokens of the longest prompt, to which a longer one is cut; `None` encodes everything.
    pub cut_to: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
pub struct InfillFile<'a> {
    pub name: &'a str,
    pub text: &'a str,
}

impl TextModel {
    /// Whether the vocabulary has the tokens that [`encode_infill`](Self::encode_infill) needs.
    pub fn can_infill(&self) -> bool {
        self.infill.is_some()
    }

    /// The tokens that end a middle in addition to the model's end tokens: the marks, and those of other files.
    pub fn infill_ends(&self) -> &[u32] {
        self.infill.as_ref().map_or(&[][..], InfillTokens::ends)
    }

    /// Encodes a prompt whose continuation is the text between its prefix and its suffix.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] if the vocabulary lacks the tokens ([`NO_INFILL_TOKENS`]), and the errors of
    /// [`encode`](Self::encode).
    pub fn encode_infill(&self, prompt: &InfillPrompt<'_>) -> Result<Vec<u32>, RequestError> {
        let Some(infill) = &self.infill else {
            return Err(RequestError::Invalid(NO_INFILL_TOKENS.to_owned()));
        };
        let most = prompt.cut_to.map_or(usize::MAX, |limit| {
            let bytes = limit.saturating_mul(CUT_BYTES_PER_TOKEN);
            bytes.min(MAX_COUNTED_BYTES)
        });
        let plain = |text: &str| self.encode_plain(infill, text);
        let mut parts = Parts {
            files: match &prompt.files {
                Some(files) => self.encode_files(infill, last_files(files, most))?,
                None => Vec::new(),
            },
            prefix: plain(end_of(prompt.prefix, most))?,
            line_start: plain(end_of(prompt.line_start, most))?,
            suffix: plain(&prompt.suffix[..prompt.suffix.floor_char_boundary(most)])?,
        };
        if let Some(limit) = prompt.cut_to {
            parts.cut_to(limit);
        }
        Ok(parts.join(infill))
    }

    fn encode_files(
        &self,
        infill: &InfillTokens,
        files: &[InfillFile<'_>],
    ) -> Result<Vec<u32>, RequestError> {
        let mut tokens = Vec::new();
        if let Some(repository) = infill.repository {
            tokens.push(repository);
            tokens.extend(self.encode_plain(infill, REPOSITORY)?);
        }
        for file in files {
            if let Some(separator) = infill.separator {
                tokens.push(separator);
                tokens.extend(self.encode_plain(infill, &format!("{}\n", file.name))?);
            } else {
                tokens.extend(self.encode_plain(infill, SNIPPET)?);
            }
            tokens.extend(self.encode_plain(infill, file.text)?);
        }
        if let Some(separator) = infill.separator {
            tokens.push(separator);
            tokens.extend(self.encode_plain(infill, THIS_FILE)?);
        }
        Ok(tokens)
    }

    /// Encodes a text as a prompt, but without BOS, and with the names of special tokens and marks as ordinary letters.
    fn encode_plain(&self, infill: &InfillTokens, text: &str) -> Result<Vec<u32>, RequestError> {
        if text.is_empty() {
            return Ok(Vec::new());
        }
        match self.encode_matching(&infill.plain, text) {
            Ok(encoding) => Ok(encoding.get_ids().to_vec()),
            Err(error) => Err(super::not_tokenized(&*error)),
        }
    }
}

/// The tokens of a prompt's parts, without marks.
struct Parts {
    files: Vec<u32>,
    prefix: Vec<u32>,
    line_start: Vec<u32>,
    suffix: Vec<u32>,
}

impl Parts {
    /// Cuts the files, then prefix and suffix, so that the prompt leaves an eighth of `limit` to its continuation.
    fn cut_to(&mut self, limit: usize) {
        let step = (limit / EIGHTHS).max(1);
        let room = limit.saturating_sub(step + self.line_start.len() + MAX_MARKS);
        if self.files.len() + self.prefix.len() + self.suffix.len() <= room {
            return;
        }
        let next_to_prefix = room.saturating_sub(self.prefix.len());
        self.suffix.truncate(next_to_prefix.max(room / SUFFIX_PART));
        let uncut = self.prefix.len();
        drop_beginning(&mut self.prefix, room - self.suffix.len(), step);
        if self.prefix.len() < uncut {
            // Else files would come back, and move the prefix, each time that a step of the prefix is dropped.
            self.files.clear();
        }
        let rest = room - self.suffix.len() - self.prefix.len();
        drop_beginning(&mut self.files, rest, step);
    }

    fn join(self, infill: &InfillTokens) -> Vec<u32> {
        let prefix = [&[infill.prefix][..], &self.prefix, &self.line_start].concat();
        let suffix = [&[infill.suffix][..], &self.suffix].concat();
        let (first, second, middle) = match infill.order {
            Order::PrefixFirst { middle } => (prefix, suffix, Some(middle)),
            Order::SuffixFirst => (suffix, prefix, None),
        };
        let mut tokens = self.files;
        tokens.extend(infill.bos);
        tokens.extend(first);
        tokens.extend(second);
        tokens.extend(middle);
        tokens
    }
}

/// Drops whole steps of tokens from the beginning, so that at most `most` are left.
fn drop_beginning(tokens: &mut Vec<u32>, most: usize, step: usize) {
    let excess = tokens.len().saturating_sub(most);
    let dropped = excess.next_multiple_of(step).min(tokens.len());
    tokens.drain(..dropped);
}

/// The end of a text, of at most `most` bytes.
fn end_of(text: &str, most: usize) -> &str {
    let start = text.len().saturating_sub(most);
    &text[text.ceil_char_boundary(start)..]
}

/// The last files, of at most `most` bytes in total.
fn last_files<'a, 'b>(files: &'a [InfillFile<'b>], most: usize) -> &'a [InfillFile<'b>] {
    let mut bytes = 0_usize;
    let fits = |file: &&InfillFile<'_>| {
        bytes = bytes.saturating_add(file.name.len() + file.text.len());
        bytes <= most
    };
    let kept = files.iter().rev().take_while(fits).count();
    &files[files.len() - kept..]
}
