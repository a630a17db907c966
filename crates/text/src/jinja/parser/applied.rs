//! Parses the arguments, filters and tests after an expression.

use super::super::ast::{Arguments, Expr, Kind};
use super::super::token;
use super::expressions::single;
use super::{Parser, Result, expr};

impl Parser {
    pub(super) fn arguments(&mut self) -> Result<Arguments> {
        self.expect_sign("(")?;
        let mut arguments = Arguments::default();
        let mut is_first = true;
        while !self.is_sign(")") {
            if !is_first {
                self.expect_sign(",")?;
                if self.is_sign(")") {
                    break;
                }
            }
            is_first = false;
            let is_named = matches!(self.kind(), token::Kind::Name(_))
                && matches!(self.ahead(), token::Kind::Sign("="));
            let invalid = || Err("invalid syntax for function call expression".to_owned());
            let has_dynamic = arguments.list.is_some() || arguments.mapping.is_some();
            if self.skip_sign("*") {
                if has_dynamic {
                    return invalid();
                }
                arguments.list = Some(Box::new(self.expression()?));
            } else if self.skip_sign("**") {
                if arguments.mapping.is_some() {
                    return invalid();
                }
                arguments.mapping = Some(Box::new(self.expression()?));
            } else if is_named {
                if arguments.mapping.is_some() {
                    return invalid();
                }
                let name = self.name()?;
                self.next();
                arguments.named.push((name, self.expression()?));
            } else {
                if has_dynamic || !arguments.named.is_empty() {
                    return invalid();
                }
                arguments.positional.push(self.expression()?);
            }
        }
        self.expect_sign(")")?;
        Ok(arguments)
    }

    pub(super) fn filters_and_tests(&mut self, mut value: Expr) -> Result<Expr> {
        loop {
            value = if self.is_sign("|") {
                self.next();
                self.filter(Some(value))?
            } else if self.is_name("is") {
                self.test(value)?
            } else if self.is_sign("(") {
                self.call(value)?
            } else {
                return Ok(value);
            };
        }
    }

    pub(super) fn filter(&mut self, value: Option<Expr>) -> Result<Expr> {
        let name = self.dotted_name()?;
        let arguments = if self.is_sign("(") {
            self.arguments()?
        } else {
            Arguments::default()
        };
        let depth = value.as_ref().map_or(0, |value| value.depth);
        let depth = depth.max(arguments.depth());
        expr(Kind::Filter(value.map(Box::new), name, arguments), depth)
    }

    /// Parses the filters of a block tag, such as `{% set text | upper %}`.
    pub(super) fn filters_of_block(&mut self) -> Result<Option<Expr>> {
        let mut filters = None;
        while self.skip_sign("|") {
            filters = Some(self.filter(filters)?);
        }
        Ok(filters)
    }

    fn dotted_name(&mut self) -> Result<String> {
        let mut name = self.name()?;
        while self.skip_sign(".") {
            name.push('.');
            name.push_str(&self.name()?);
        }
        Ok(name)
    }

    fn test(&mut self, value: Expr) -> Result<Expr> {
        self.next();
        let is_negated = self.skip_name("not");
        let name = self.dotted_name()?;
        let takes_one = match self.kind() {
            token::Kind::Name(name) => !matches!(name.as_str(), "else" | "or" | "and" | "is"),
            token::Kind::Text(_) | token::Kind::Int(_) | token::Kind::Float(_) => true,
            token::Kind::Sign(sign) => matches!(*sign, "[" | "{"),
            _ => false,
        };
        let arguments = if self.is_sign("(") {
            self.arguments()?
        } else if takes_one {
            let argument = self.primary()?;
            Arguments {
                positional: vec![self.postfix(argument)?],
                ..Arguments::default()
            }
        } else if self.is_name("is") {
            return Err("You cannot chain multiple tests with is".to_owned());
        } else {
            Arguments::default()
        };
        let depth = value.depth.max(arguments.depth());
        let test = expr(Kind::Test(Box::new(value), name, arguments), depth)?;
        if is_negated {
            single(Kind::Not, test)
        } else {
            Ok(test)
        }
    }
}
