//! Parses expressions with Jinja's operator precedence.

use super::super::ast::{Comparison, Expr, Kind};
use super::super::number::Arithmetic;
use super::super::token;
use super::{Parser, Result, expr};

fn pair(make: impl FnOnce(Box<Expr>, Box<Expr>) -> Kind, a: Expr, b: Expr) -> Result<Expr> {
    let depth = a.depth.max(b.depth);
    expr(make(Box::new(a), Box::new(b)), depth)
}

pub(super) fn single(make: impl FnOnce(Box<Expr>) -> Kind, inner: Expr) -> Result<Expr> {
    let depth = inner.depth;
    expr(make(Box::new(inner)), depth)
}

fn many(make: impl FnOnce(Vec<Expr>) -> Kind, items: Vec<Expr>) -> Result<Expr> {
    let depth = items.iter().map(|item| item.depth).max().unwrap_or(0);
    expr(make(items), depth)
}

impl Parser {
    /// Parses an expression, or a tuple without parentheses.
    pub(super) fn tuple(&mut self, takes_condition: bool, ends: &[&str]) -> Result<Expr> {
        let mut items = Vec::new();
        let mut is_tuple = false;
        loop {
            if !items.is_empty() {
                self.expect_sign(",")?;
            }
            if self.is_tuple_end(ends) {
                break;
            }
            items.push(if takes_condition {
                self.expression()?
            } else {
                self.nested(Self::or)?
            });
            if !self.is_sign(",") {
                break;
            }
            is_tuple = true;
        }
        match items.pop() {
            Some(item) if !is_tuple => Ok(item),
            Some(item) => {
                items.push(item);
                many(Kind::Tuple, items)
            }
            None => Err(format!("expected an expression, got {}", self.found())),
        }
    }

    fn is_tuple_end(&self, ends: &[&str]) -> bool {
        matches!(
            self.kind(),
            token::Kind::VariableEnd | token::Kind::BlockEnd
        ) || self.is_sign(")")
            || ends.iter().any(|end| self.is_name(end))
    }

    pub(super) fn expression(&mut self) -> Result<Expr> {
        self.nested(Self::conditional)
    }

    fn conditional(&mut self) -> Result<Expr> {
        let mut value = self.or()?;
        while self.skip_name("if") {
            let condition = self.or()?;
            let otherwise = if self.skip_name("else") {
                Some(Box::new(self.nested(Self::conditional)?))
            } else {
                None
            };
            let last = otherwise.as_ref().map_or(0, |other| other.depth);
            let depth = value.depth.max(condition.depth).max(last);
            value = expr(
                Kind::Conditional(Box::new([condition, value]), otherwise),
                depth,
            )?;
        }
        Ok(value)
    }

    fn or(&mut self) -> Result<Expr> {
        let mut left = self.and()?;
        while self.skip_name("or") {
            left = pair(Kind::Or, left, self.and()?)?;
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Expr> {
        let mut left = self.not()?;
        while self.skip_name("and") {
            left = pair(Kind::And, left, self.not()?)?;
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Expr> {
        if self.skip_name("not") {
            single(Kind::Not, self.nested(Self::not)?)
        } else {
            self.compare()
        }
    }

    fn compare(&mut self) -> Result<Expr> {
        let first = self.sum()?;
        let mut others = Vec::new();
        while let Some(operator) = self.comparison() {
            others.push((operator, self.sum()?));
        }
        if others.is_empty() {
            return Ok(first);
        }
        let depth = others.iter().map(|(_, other)| other.depth).max();
        let depth = first.depth.max(depth.unwrap_or(0));
        expr(Kind::Compare(Box::new(first), others), depth)
    }

    fn comparison(&mut self) -> Option<Comparison> {
        let operator = match self.kind() {
            token::Kind::Sign("==") => Comparison::Equal,
            token::Kind::Sign("!=") => Comparison::NotEqual,
            token::Kind::Sign("<") => Comparison::Less,
            token::Kind::Sign("<=") => Comparison::LessEqual,
            token::Kind::Sign(">") => Comparison::Greater,
            token::Kind::Sign(">=") => Comparison::GreaterEqual,
            token::Kind::Name(name) if name == "in" => Comparison::In,
            token::Kind::Name(name) if name == "not" => {
                if !matches!(self.ahead(), token::Kind::Name(name) if name == "in") {
                    return None;
                }
                self.next();
                Comparison::NotIn
            }
            _ => return None,
        };
        self.next();
        Some(operator)
    }

    fn sum(&mut self) -> Result<Expr> {
        let mut left = self.concat()?;
        loop {
            let operator = match self.kind() {
                token::Kind::Sign("+") => Arithmetic::Add,
                token::Kind::Sign("-") => Arithmetic::Sub,
                _ => return Ok(left),
            };
            self.next();
            left = pair(
                |a, b| Kind::Arithmetic(operator, a, b),
                left,
                self.concat()?,
            )?;
        }
    }

    fn concat(&mut self) -> Result<Expr> {
        let first = self.product()?;
        if !self.is_sign("~") {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.skip_sign("~") {
            parts.push(self.product()?);
        }
        many(Kind::Concat, parts)
    }

    fn product(&mut self) -> Result<Expr> {
        let mut left = self.power()?;
        loop {
            let operator = match self.kind() {
                token::Kind::Sign("*") => Arithmetic::Mul,
                token::Kind::Sign("/") => Arithmetic::Div,
                token::Kind::Sign("//") => Arithmetic::FloorDiv,
                token::Kind::Sign("%") => Arithmetic::Mod,
                _ => return Ok(left),
            };
            self.next();
            left = pair(|a, b| Kind::Arithmetic(operator, a, b), left, self.power()?)?;
        }
    }

    fn power(&mut self) -> Result<Expr> {
        let mut left = self.unary(true)?;
        while self.skip_sign("**") {
            let right = self.unary(true)?;
            left = pair(|a, b| Kind::Arithmetic(Arithmetic::Pow, a, b), left, right)?;
        }
        Ok(left)
    }

    fn unary(&mut self, takes_filters: bool) -> Result<Expr> {
        let value = match self.kind() {
            token::Kind::Sign("-") => {
                self.next();
                single(Kind::Negative, self.nested(|parser| parser.unary(false))?)?
            }
            token::Kind::Sign("+") => {
                self.next();
                single(Kind::Positive, self.nested(|parser| parser.unary(false))?)?
            }
            _ => self.primary()?,
        };
        let value = self.postfix(value)?;
        if takes_filters {
            self.filters_and_tests(value)
        } else {
            Ok(value)
        }
    }

    pub(super) fn primary(&mut self) -> Result<Expr> {
        let kind = match self.kind() {
            token::Kind::Name(_) => {
                let name = self.name()?;
                match name.as_str() {
                    "true" | "True" => Kind::Bool(true),
                    "false" | "False" => Kind::Bool(false),
                    "none" | "None" => Kind::None,
                    _ => {
                        let special = ["varargs", "kwargs", "caller"];
                        if let Some(place) = special.iter().position(|known| *known == name) {
                            self.uses[place] = true;
                        }
                        Kind::Name(name)
                    }
                }
            }
            token::Kind::Text(_) => {
                let mut text = String::new();
                while let token::Kind::Text(part) = self.kind() {
                    text.push_str(part);
                    self.next();
                }
                Kind::Text(text)
            }
            token::Kind::Int(digits) => {
                let kind = match digits.parse() {
                    Ok(small) => Kind::Int(small),
                    Err(_) => Kind::Big(digits.clone()),
                };
                self.next();
                kind
            }
            token::Kind::Float(number) => {
                let kind = Kind::Float(*number);
                self.next();
                kind
            }
            token::Kind::Sign("(") => return self.parentheses(),
            token::Kind::Sign("[") => return self.list(),
            token::Kind::Sign("{") => return self.dict(),
            _ => return Err(format!("unexpected {}", self.found())),
        };
        expr(kind, 0)
    }

    fn parentheses(&mut self) -> Result<Expr> {
        self.next();
        if self.skip_sign(")") {
            return expr(Kind::Tuple(Vec::new()), 0);
        }
        let inside = self.tuple(true, &[])?;
        self.expect_sign(")")?;
        Ok(inside)
    }

    fn list(&mut self) -> Result<Expr> {
        self.next();
        let mut items = Vec::new();
        while !self.is_sign("]") {
            if !items.is_empty() {
                self.expect_sign(",")?;
            }
            if self.is_sign("]") {
                break;
            }
            items.push(self.expression()?);
        }
        self.expect_sign("]")?;
        many(Kind::List, items)
    }

    fn dict(&mut self) -> Result<Expr> {
        self.next();
        let mut entries: Vec<(Expr, Expr)> = Vec::new();
        while !self.is_sign("}") {
            if !entries.is_empty() {
                self.expect_sign(",")?;
            }
            if self.is_sign("}") {
                break;
            }
            let key = self.expression()?;
            self.expect_sign(":")?;
            entries.push((key, self.expression()?));
        }
        self.expect_sign("}")?;
        let depths = entries
            .iter()
            .map(|(key, value)| key.depth.max(value.depth));
        let depth = depths.max().unwrap_or(0);
        expr(Kind::Dict(entries), depth)
    }

    pub(super) fn postfix(&mut self, mut value: Expr) -> Result<Expr> {
        loop {
            value = match self.kind() {
                token::Kind::Sign(".") => {
                    self.next();
                    match self.kind() {
                        token::Kind::Int(digits) => {
                            let index = digits.parse().map_err(|_| "an index is too large")?;
                            self.next();
                            pair(Kind::Item, value, expr(Kind::Int(index), 0)?)?
                        }
                        _ => {
                            let name = self.name()?;
                            single(|value| Kind::Attribute(value, name), value)?
                        }
                    }
                }
                token::Kind::Sign("[") => self.subscript(value)?,
                token::Kind::Sign("(") => self.call(value)?,
                _ => return Ok(value),
            };
        }
    }

    pub(super) fn call(&mut self, value: Expr) -> Result<Expr> {
        let arguments = self.arguments()?;
        let depth = value.depth.max(arguments.depth());
        expr(Kind::Call(Box::new(value), arguments), depth)
    }

    fn subscript(&mut self, value: Expr) -> Result<Expr> {
        self.next();
        if let Some(slice) = self.slice_or_none()? {
            self.expect_sign("]")?;
            let parts = slice.iter().flatten().map(|part| part.depth).max();
            let depth = value.depth.max(parts.unwrap_or(0));
            return expr(Kind::Slice(Box::new(value), Box::new(slice)), depth);
        }
        let first = self.expression()?;
        if self.is_sign(":") {
            let slice = self.slice_from(Some(first))?;
            self.expect_sign("]")?;
            let parts = slice.iter().flatten().map(|part| part.depth).max();
            let depth = value.depth.max(parts.unwrap_or(0));
            return expr(Kind::Slice(Box::new(value), Box::new(slice)), depth);
        }
        let mut items = vec![first];
        let mut is_tuple = false;
        while self.skip_sign(",") {
            is_tuple = true;
            items.push(self.expression()?);
        }
        self.expect_sign("]")?;
        let index = match (is_tuple, items.pop()) {
            (false, Some(index)) => index,
            (_, last) => {
                items.extend(last);
                many(Kind::Tuple, items)?
            }
        };
        pair(Kind::Item, value, index)
    }

    fn slice_or_none(&mut self) -> Result<Option<[Option<Expr>; 3]>> {
        if self.is_sign(":") {
            self.slice_from(None).map(Some)
        } else {
            Ok(None)
        }
    }

    fn slice_from(&mut self, start: Option<Expr>) -> Result<[Option<Expr>; 3]> {
        self.expect_sign(":")?;
        let mut slice = [start, None, None];
        if !self.is_sign(":") && !self.is_sign("]") {
            slice[1] = Some(self.expression()?);
        }
        if self.skip_sign(":") && !self.is_sign("]") {
            slice[2] = Some(self.expression()?);
        }
        Ok(slice)
    }
}
