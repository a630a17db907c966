//! Delays a grammar until the reasoning has ended. The reasoning is not constrained.

use std::sync::Arc;

use toktrie::{TokEnv, TokTrie};

use super::markers::Markers;
use super::wish::ReasoningGate;
use souffleur_state::grammar::{Allowed, Grammar, GrammarFailure, GrammarProgress, GrammarState};
use souffleur_state::sampling::TokenMask;

/// An opening or closing tag of the reasoning.
#[derive(Clone, Debug)]
enum Tag {
    /// One token of the vocabulary. The same characters in other tokens are not the tag.
    Token(u32),
    Text(Arc<str>),
}

impl Tag {
    fn new(name: &Arc<str>, markers: &Markers) -> Self {
        match markers.id(name) {
            Some(id) => Self::Token(id),
            None => Self::Text(name.clone()),
        }
    }
}

/// A grammar that begins where the reasoning ends.
pub(super) struct Gated {
    inner: Arc<dyn Grammar>,
    open: Tag,
    close: Tag,
    /// The token that begins a call. A call ends the reasoning.
    call: Option<u32>,
    starts_inside: bool,
    tokens: TokEnv,
}

impl Gated {
    pub(super) fn new(
        inner: Arc<dyn Grammar>,
        gate: &ReasoningGate,
        call: Option<u32>,
        markers: &Markers,
        tokens: TokEnv,
    ) -> Self {
        Self {
            inner,
            open: Tag::new(&gate.open, markers),
            close: Tag::new(&gate.close, markers),
            call,
            starts_inside: gate.starts_inside,
            tokens,
        }
    }
}

impl Grammar for Gated {
    fn begin(&self) -> Box<dyn GrammarState> {
        let phase = if self.starts_inside {
            Phase::Inside(Vec::new())
        } else {
            Phase::Before {
                tag_start: Vec::new(),
                inner: Some(self.inner.begin()),
            }
        };
        Box::new(Gate {
            inner: self.inner.clone(),
            open: self.open.clone(),
            close: self.close.clone(),
            call: self.call,
            tokens: self.tokens.clone(),
            phase,
        })
    }
}

struct Gate {
    inner: Arc<dyn Grammar>,
    open: Tag,
    close: Tag,
    call: Option<u32>,
    tokens: TokEnv,
    phase: Phase,
}

enum Phase {
    /// The output so far may be the beginning of the opening tag, or of a text that the grammar allows.
    Before {
        tag_start: Vec<u8>,
        inner: Option<Box<dyn GrammarState>>,
    },
    /// Inside the reasoning. Holds its last bytes, at most as many as the closing tag has.
    Inside(Vec<u8>),
    After(Box<dyn GrammarState>),
}

/// The state of a partly written tag after a token.
enum TagStep {
    Open,
    Complete,
    Broken,
}

impl Gate {
    fn trie(&self) -> &TokTrie {
        self.tokens.tok_trie()
    }

    fn is_end(&self, token: u32) -> bool {
        self.trie().eos_tokens().contains(&token)
    }

    /// Appends a token to the partly written opening tag.
    fn append_to_tag(&self, tag_start: &mut Vec<u8>, token: u32) -> TagStep {
        match &self.open {
            Tag::Token(id) if *id == token && tag_start.is_empty() => TagStep::Complete,
            Tag::Token(_) => TagStep::Broken,
            Tag::Text(tag) => {
                tag_start.extend_from_slice(self.trie().token(token));
                match (
                    tag.len() <= tag_start.len(),
                    tag.as_bytes().starts_with(tag_start),
                ) {
                    (true, true) => TagStep::Complete,
                    (false, true) => TagStep::Open,
                    (_, false) => TagStep::Broken,
                }
            }
        }
    }

    fn inside(&mut self, mut tail: Vec<u8>, token: u32) -> Result<GrammarProgress, GrammarFailure> {
        if self.call == Some(token) {
            let mut inner = self.inner.begin();
            if let Ok(progress) = inner.commit(token) {
                self.phase = Phase::After(inner);
                return Ok(progress);
            }
        }
        let is_closed = match &self.close {
            Tag::Token(id) => *id == token,
            Tag::Text(tag) => {
                let before = tail.len();
                tail.extend_from_slice(self.trie().token(token));
                let tag = tag.as_bytes();
                let found = tail
                    .windows(tag.len().max(1))
                    .position(|bytes| bytes == tag);
                match found {
                    // The token contains text after the tag, which cannot be passed to the grammar.
                    Some(at) if !is_blank(&tail[(at + tag.len()).max(before)..]) => {
                        return Err(GrammarFailure::NoToken);
                    }
                    Some(_) => true,
                    None => {
                        let keep = tail.len().saturating_sub(tag.len());
                        tail.drain(..keep);
                        false
                    }
                }
            }
        };
        self.phase = if is_closed {
            Phase::After(self.inner.begin())
        } else {
            Phase::Inside(tail)
        };
        Ok(if !is_closed && self.is_end(token) {
            GrammarProgress::Done
        } else {
            GrammarProgress::Open
        })
    }

    fn before(
        &mut self,
        mut tag_start: Vec<u8>,
        inner: Option<Box<dyn GrammarState>>,
        token: u32,
    ) -> Result<GrammarProgress, GrammarFailure> {
        let step = if self.is_end(token) {
            TagStep::Broken
        } else {
            self.append_to_tag(&mut tag_start, token)
        };
        if matches!(step, TagStep::Complete) {
            self.phase = Phase::Inside(Vec::new());
            return Ok(GrammarProgress::Open);
        }
        let is_open = matches!(step, TagStep::Open);
        let Some(mut inner) = inner else {
            self.phase = Phase::Before {
                tag_start,
                inner: None,
            };
            return if is_open {
                Ok(GrammarProgress::Open)
            } else {
                Err(GrammarFailure::NoToken)
            };
        };
        let progress = inner.commit(token);
        match (progress, is_open) {
            (Ok(progress), false) => {
                self.phase = Phase::After(inner);
                Ok(progress)
            }
            (Ok(_), true) => {
                self.phase = Phase::Before {
                    tag_start,
                    inner: Some(inner),
                };
                Ok(GrammarProgress::Open)
            }
            (Err(GrammarFailure::NoToken), true) => {
                self.phase = Phase::Before {
                    tag_start,
                    inner: None,
                };
                Ok(GrammarProgress::Open)
            }
            (Err(failure), _) => Err(failure),
        }
    }
}

impl GrammarState for Gate {
    fn mask(&mut self, mask: &mut TokenMask) -> Result<Allowed, GrammarFailure> {
        let (tag_start, inner) = match &mut self.phase {
            Phase::Inside(_) => return Ok(Allowed::All),
            Phase::After(inner) => return inner.mask(mask),
            Phase::Before { tag_start, inner } => (tag_start, inner),
        };
        mask.clear();
        let allowed = match inner.as_mut().map(|inner| inner.mask(mask)) {
            None | Some(Err(GrammarFailure::NoToken)) => Allowed::Masked,
            Some(allowed) => allowed?,
        };
        match &self.open {
            _ if allowed == Allowed::All => {}
            Tag::Token(id) => {
                if tag_start.is_empty() {
                    mask.allow(*id);
                }
            }
            Tag::Text(tag) => {
                let rest = tag.as_bytes().get(tag_start.len()..).unwrap_or_default();
                let tokens = self.tokens.tok_trie().all_prefixes(rest);
                tokens.into_iter().for_each(|token| mask.allow(token));
            }
        }
        Ok(allowed)
    }

    fn commit(&mut self, token: u32) -> Result<GrammarProgress, GrammarFailure> {
        match std::mem::replace(&mut self.phase, Phase::Inside(Vec::new())) {
            Phase::After(mut inner) => {
                let progress = inner.commit(token);
                self.phase = Phase::After(inner);
                progress
            }
            Phase::Inside(tail) => self.inside(tail, token),
            Phase::Before { tag_start, inner } => self.before(tag_start, inner, token),
        }
    }
}

fn is_blank(bytes: &[u8]) -> bool {
    bytes.iter().all(u8::is_ascii_whitespace)
}

impl std::fmt::Debug for Gated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("Gated");
        debug.field("open", &self.open).field("close", &self.close);
        debug.finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = match self.phase {
            Phase::Before { .. } => "before",
            Phase::Inside(_) => "inside",
            Phase::After(_) => "after",
        };
        f.debug_struct("Gate")
            .field("at", &at)
            .finish_non_exhaustive()
    }
}
