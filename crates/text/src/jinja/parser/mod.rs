//! Parses a template's tokens into its syntax tree.

mod applied;
mod expressions;
mod statements;

use super::ast::{Expr, Kind, MacroBody, Statement};
use super::lexer::lex;
use super::token::{self, Token};

/// Maximum nesting depth of expressions and blocks.
pub(super) const MAX_DEPTH: u16 = 200;
/// Maximum length of a template.
const MAX_BYTES: usize = 4 << 20;

type Result<T> = std::result::Result<T, String>;

#[derive(Debug)]
pub(super) struct SyntaxTree {
    pub(super) body: Vec<Statement>,
    pub(super) macros: Vec<MacroBody>,
}

pub(super) fn parse(source: &str) -> Result<SyntaxTree> {
    if source.len() > MAX_BYTES {
        let bytes = source.len();
        return Err(format!(
            "the template has {bytes} bytes, limit is {MAX_BYTES}"
        ));
    }
    let at_line = |message: String, line: usize| format!("{message} (line {line})");
    let tokens = lex(source).map_err(|(message, line)| at_line(message, line))?;
    let mut parser = Parser {
        tokens,
        at: 0,
        depth: 0,
        macros: Vec::new(),
        loops: 0,
        uses: [false; 3],
    };
    match parser.template() {
        Ok(body) => Ok(SyntaxTree {
            body,
            macros: parser.macros,
        }),
        Err(message) => Err(at_line(message, parser.line())),
    }
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    /// Number of open expressions and blocks.
    depth: u16,
    macros: Vec<MacroBody>,
    /// Number of open loops in the current macro.
    loops: usize,
    /// Which of `varargs`, `kwargs` and `caller` the current macro uses.
    uses: [bool; 3],
}

impl Parser {
    fn line(&self) -> usize {
        self.tokens[self.at].line
    }

    fn kind(&self) -> &token::Kind {
        &self.tokens[self.at].kind
    }

    fn ahead(&self) -> &token::Kind {
        let last = self.tokens.len() - 1;
        &self.tokens[(self.at + 1).min(last)].kind
    }

    fn next(&mut self) -> token::Kind {
        let kind = std::mem::replace(&mut self.tokens[self.at].kind, token::Kind::End);
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        kind
    }

    fn is_sign(&self, sign: &str) -> bool {
        matches!(self.kind(), token::Kind::Sign(found) if *found == sign)
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.kind(), token::Kind::Name(found) if found == name)
    }

    fn skip_sign(&mut self, sign: &str) -> bool {
        let found = self.is_sign(sign);
        if found {
            self.next();
        }
        found
    }

    fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        if found {
            self.next();
        }
        found
    }

    fn expect_sign(&mut self, sign: &str) -> Result<()> {
        if self.skip_sign(sign) {
            Ok(())
        } else {
            Err(format!("expected {sign:?}, got {}", self.found()))
        }
    }

    fn expect(&mut self, kind: &token::Kind) -> Result<()> {
        if self.kind() != kind {
            let wanted = match kind {
                token::Kind::BlockEnd => "end of statement block",
                _ => "end of print statement",
            };
            return Err(format!("expected token {wanted:?}, got {}", self.found()));
        }
        self.next();
        Ok(())
    }

    fn name(&mut self) -> Result<String> {
        match self.kind() {
            token::Kind::Name(_) => match self.next() {
                token::Kind::Name(name) => Ok(name),
                _ => Err("expected a name".to_owned()),
            },
            _ => Err(format!("expected a name, got {}", self.found())),
        }
    }

    fn found(&self) -> String {
        match self.kind() {
            token::Kind::Data(_) => "text".to_owned(),
            token::Kind::BlockBegin => "begin of statement block".to_owned(),
            token::Kind::BlockEnd => "end of statement block".to_owned(),
            token::Kind::VariableBegin => "begin of print statement".to_owned(),
            token::Kind::VariableEnd => "end of print statement".to_owned(),
            token::Kind::Name(name) => format!("{name:?}"),
            token::Kind::Text(_) => "a string".to_owned(),
            token::Kind::Int(number) => number.clone(),
            token::Kind::Float(number) => number.to_string(),
            token::Kind::Sign(sign) => format!("{sign:?}"),
            token::Kind::End => "end of template".to_owned(),
        }
    }

    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= MAX_DEPTH {
            return Err(format!("the template nests deeper than {MAX_DEPTH} levels"));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }
}

/// Builds an expression; `depth` is the depth of its deepest part.
fn expr(kind: Kind, depth: u16) -> Result<Expr> {
    if depth < MAX_DEPTH {
        Ok(Expr {
            kind,
            depth: depth + 1,
        })
    } else {
        Err(format!(
            "an expression nests deeper than {MAX_DEPTH} levels"
        ))
    }
}
