//! Builds model outputs of text and marker tokens, and parses them with an `OutputEngine` in given cuts.

use std::fmt;
use std::sync::{Arc, LazyLock};

use serde_json::json;
use souffleur_output::output::{
    Markers, OutputEnding, OutputEngine, OutputFormats, OutputPiece, OutputStart, Tool, ToolChoice,
    ToolUse, push_piece,
};

/// All tags that are tokens in [`Mode::Tokens`]; the index of a tag is its id.
const TOKENS: [&str; 29] = [
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
    "<tool_call>",
    "</tool_call>",
    "<|python_tag|>",
    "<|python_start|>",
    "<|python_end|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
];

/// Whether the vocabulary has the tags as tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Text,
    Tokens,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Atom {
    Char(char),
    Token(u32),
}

#[derive(Clone)]
pub struct Transcript {
    pub formats: OutputFormats,
    pub mode: Mode,
    atoms: Vec<Atom>,
}

static TOOLS: LazyLock<Arc<ToolUse>> = LazyLock::new(|| {
    let parameters = json!({
        "type": "object",
        "properties": {
            "row": {"type": "integer"},
            "who": {"type": "string"},
            "window": {"type": "boolean"},
            "price": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "tags": {"type": "array"},
            "meal": {"type": "object"},
        },
    });
    Arc::new(ToolUse {
        tools: vec![Tool {
            name: "seat".to_owned(),
            description: None,
            parameters: Some(parameters),
            strict: false,
        }],
        choice: ToolChoice::Auto,
        parallel: true,
    })
});

impl Transcript {
    pub fn new(formats: OutputFormats, mode: Mode) -> Self {
        Self {
            formats,
            mode,
            atoms: Vec::new(),
        }
    }

    pub fn of_text(formats: OutputFormats, mode: Mode, text: &str) -> Self {
        let mut transcript = Self::new(formats, mode);
        transcript.text(text);
        transcript
    }

    pub fn text(&mut self, text: &str) {
        self.atoms.extend(text.chars().map(Atom::Char));
    }

    /// Appends a text, with its tags appended by [`Self::tag`].
    pub fn tagged(&mut self, text: &str) {
        let mut rest = text;
        while !rest.is_empty() {
            let found = TOKENS
                .iter()
                .filter_map(|tag| Some((rest.find(tag)?, *tag)));
            let Some((at, tag)) = found.min() else {
                break;
            };
            self.text(&rest[..at]);
            self.tag(tag);
            rest = &rest[at + tag.len()..];
        }
        self.text(rest);
    }

    /// Appends a tag: as a token if the mode and the formats have one, else as text.
    pub fn tag(&mut self, tag: &str) {
        let id = TOKENS.iter().position(|known| *known == tag);
        match id.filter(|_| self.mode == Mode::Tokens) {
            Some(id) if self.is_marker(id as u32) => self.atoms.push(Atom::Token(id as u32)),
            _ => self.text(tag),
        }
    }

    pub fn len(&self) -> usize {
        self.atoms.len()
    }

    /// Reads the transcript in pieces that end at `cuts`, which are sorted.
    pub fn read(&self, cuts: &[usize]) -> Vec<OutputPiece> {
        let tools = Some(TOOLS.clone());
        let markers = Arc::new(self.markers());
        let start = if self.formats.is_harmony() {
            OutputStart::Header
        } else {
            OutputStart::Content
        };
        let mut engine = OutputEngine::new(self.formats, tools, markers, start);
        let (mut pieces, mut out, mut text) = (Vec::new(), Vec::new(), String::new());
        let mut cuts = cuts.iter().copied().peekable();
        for (at, atom) in self.atoms.iter().enumerate() {
            let mut is_cut = matches!(atom, Atom::Token(_));
            while cuts.next_if(|cut| *cut <= at).is_some() {
                is_cut = true;
            }
            if is_cut {
                engine.push_text(&text, &mut out);
                text.clear();
                out.drain(..)
                    .for_each(|piece| push_piece(&mut pieces, piece));
            }
            match atom {
                Atom::Char(c) => text.push(*c),
                Atom::Token(token) => engine.push_marker(*token, &mut out),
            }
        }
        engine.push_text(&text, &mut out);
        engine.finish(OutputEnding::Whole, &mut out);
        out.into_iter()
            .for_each(|piece| push_piece(&mut pieces, piece));
        pieces
    }

    /// The transcript as text, with tokens by name.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for atom in &self.atoms {
            match atom {
                Atom::Char(c) => text.push(*c),
                Atom::Token(token) => text.push_str(TOKENS[*token as usize]),
            }
        }
        text
    }

    /// A copy with an error: cut off, or with a part removed, repeated or inserted.
    pub fn corrupted(&self, rng: &mut fastrand::Rng) -> Self {
        let mut atoms = self.atoms.clone();
        let at = rng.usize(0..=atoms.len());
        let end = (at + rng.usize(1..=6)).min(atoms.len());
        match rng.u8(0..5) {
            0 => atoms.truncate(at),
            1 => drop(atoms.drain(at..end)),
            2 => {
                let part = atoms[at..end].to_vec();
                let to = rng.usize(0..=atoms.len());
                atoms.splice(to..to, part);
            }
            3 => {
                let c = ['"', '\\', '{', '}', '[', ']', '<', ',', '\n', 'é'][rng.usize(0..10)];
                atoms.insert(at, Atom::Char(c));
            }
            _ => {
                let tag = TOKENS[rng.usize(0..TOKENS.len())];
                let mut part = Self::new(self.formats, self.mode);
                part.tag(tag);
                atoms.splice(at..at, part.atoms);
            }
        }
        Self { atoms, ..*self }
    }

    fn is_marker(&self, id: u32) -> bool {
        self.markers().is_marker(id)
    }

    fn markers(&self) -> Markers {
        Markers::new(self.formats, |text| {
            let id = TOKENS.iter().position(|known| *known == text);
            id.filter(|_| self.mode == Mode::Tokens).map(|id| id as u32)
        })
    }
}

impl fmt::Debug for Transcript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} {:?}: {:?}",
            self.formats,
            self.mode,
            self.to_text()
        )
    }
}
