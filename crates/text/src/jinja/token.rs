//! Defines the tokens of a template.

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) line: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    Data(String),
    BlockBegin,
    BlockEnd,
    VariableBegin,
    VariableEnd,
    Name(String),
    Text(String),
    Int(String),
    Float(f64),
    Sign(&'static str),
    End,
}
