//! Defines the syntax tree of a template.

use super::number::Arithmetic;

#[derive(Debug)]
pub(super) struct Expr {
    pub(super) kind: Kind,
    pub(super) depth: u16,
}

#[derive(Debug)]
pub(super) enum Kind {
    None,
    Bool(bool),
    Int(i64),
    /// An integer outside of `i64`, in decimal digits.
    Big(String),
    Float(f64),
    Text(String),
    Name(String),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Attribute(Box<Expr>, String),
    Item(Box<Expr>, Box<Expr>),
    Slice(Box<Expr>, Box<[Option<Expr>; 3]>),
    Call(Box<Expr>, Arguments),
    Filter(Option<Box<Expr>>, String, Arguments),
    Test(Box<Expr>, String, Arguments),
    Negative(Box<Expr>),
    Positive(Box<Expr>),
    Not(Box<Expr>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Arithmetic(Arithmetic, Box<Expr>, Box<Expr>),
    Concat(Vec<Expr>),
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    /// Condition, value, and the value of the `else` branch.
    Conditional(Box<[Expr; 2]>, Option<Box<Expr>>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    NotIn,
}

#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Expr>,
    pub(super) named: Vec<(String, Expr)>,
    /// `*args`.
    pub(super) list: Option<Box<Expr>>,
    /// `**kwargs`.
    pub(super) mapping: Option<Box<Expr>>,
}

impl Arguments {
    pub(super) fn depth(&self) -> u16 {
        let positional = self.positional.iter();
        let named = self.named.iter().map(|(_, value)| value);
        let more = self.list.iter().chain(&self.mapping).map(AsRef::as_ref);
        let all = positional.chain(named).chain(more);
        all.map(|expr| expr.depth).max().unwrap_or(0)
    }
}

#[derive(Debug)]
pub(super) struct Statement {
    pub(super) kind: Action,
    pub(super) line: usize,
}

#[derive(Debug)]
pub(super) enum Action {
    Data(String),
    Print(Vec<Expr>),
    /// Pairs of condition and body, then the `else` body.
    If(Vec<(Expr, Vec<Statement>)>, Vec<Statement>),
    For(Box<For>),
    Set(Target, Expr),
    SetBlock(Target, Option<Expr>, Vec<Statement>),
    With(Vec<(Target, Expr)>, Vec<Statement>),
    Macro(usize),
    /// The call, and the index of the macro that is passed to it as `caller`.
    CallBlock(Expr, usize),
    FilterBlock(Expr, Vec<Statement>),
    /// A block with local variables.
    Scope(Vec<Statement>),
    Break,
    Continue,
}

#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) iterated: Expr,
    pub(super) condition: Option<Expr>,
    pub(super) is_recursive: bool,
    pub(super) body: Vec<Statement>,
    pub(super) otherwise: Vec<Statement>,
}

#[derive(Debug)]
pub(super) enum Target {
    Name(String),
    /// An attribute of a namespace.
    Attribute(String, String),
    Tuple(Vec<Target>),
}

#[derive(Debug)]
pub(super) struct MacroBody {
    pub(super) name: String,
    pub(super) parameters: Vec<String>,
    pub(super) defaults: Vec<Expr>,
    pub(super) body: Vec<Statement>,
    /// Which of `varargs`, `kwargs` and `caller` the body uses.
    pub(super) uses: [bool; 3],
    pub(super) is_caller: bool,
}
