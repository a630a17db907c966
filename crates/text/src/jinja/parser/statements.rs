//! Parses the statements of a template.

use super::super::ast::{Action, Expr, For, Kind, MacroBody, Statement, Target};
use super::super::token;
use super::{Parser, Result};

impl Parser {
    pub(super) fn template(&mut self) -> Result<Vec<Statement>> {
        self.statements(&[])
    }

    /// Parses statements up to a tag named in `ends`, whose name is the next token. Without `ends`, parses all.
    fn statements(&mut self, ends: &[&str]) -> Result<Vec<Statement>> {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            let kind = match self.kind() {
                token::Kind::End if ends.is_empty() => return Ok(body),
                token::Kind::End => {
                    let wanted = ends.join(" or ");
                    return Err(format!("unexpected end of template: expected {wanted}"));
                }
                token::Kind::Data(_) => match self.next() {
                    token::Kind::Data(text) => Action::Data(text),
                    _ => return Err("expected literal text".to_owned()),
                },
                token::Kind::VariableBegin => {
                    self.next();
                    let value = self.tuple(true, &[])?;
                    self.expect(&token::Kind::VariableEnd)?;
                    Action::Print(vec![value])
                }
                token::Kind::BlockBegin => {
                    self.next();
                    if ends.iter().any(|end| self.is_name(end)) {
                        return Ok(body);
                    }
                    self.nested(Self::statement)?
                }
                _ => return Err(format!("unexpected {}", self.found())),
            };
            body.push(Statement { kind, line });
        }
    }

    /// Parses the body of a tag up to a tag named in `ends`. Also returns the name of that tag.
    fn body(&mut self, ends: &[&str]) -> Result<(Vec<Statement>, String)> {
        self.skip_sign(":");
        self.expect(&token::Kind::BlockEnd)?;
        let body = self.statements(ends)?;
        Ok((body, self.name()?))
    }

    fn body_to_end(&mut self, end: &str) -> Result<Vec<Statement>> {
        let (body, _) = self.body(&[end])?;
        self.expect(&token::Kind::BlockEnd)?;
        Ok(body)
    }

    fn statement(&mut self) -> Result<Action> {
        let name = self.name()?;
        let action = match name.as_str() {
            "if" => return self.condition(),
            "for" => return self.for_loop(),
            "set" => return self.set(),
            "with" => return self.with(),
            "macro" => return self.macro_definition(),
            "call" => return self.call_block(),
            "filter" => {
                let mut filter = self.filter(None)?;
                while self.skip_sign("|") {
                    filter = self.filter(Some(filter))?;
                }
                return Ok(Action::FilterBlock(filter, self.body_to_end("endfilter")?));
            }
            // The tag marks tokens for training; its body is rendered as usual.
            "generation" => return Ok(Action::Scope(self.body_to_end("endgeneration")?)),
            "block" => return self.block(),
            "print" => {
                let mut values = Vec::new();
                while self.kind() != &token::Kind::BlockEnd {
                    if !values.is_empty() {
                        self.expect_sign(",")?;
                    }
                    values.push(self.expression()?);
                }
                Action::Print(values)
            }
            "break" | "continue" => {
                if self.loops == 0 {
                    return Err(format!("{name} outside a loop"));
                }
                match name.as_str() {
                    "break" => Action::Break,
                    _ => Action::Continue,
                }
            }
            // Escaping is off in all templates.
            "autoescape" if self.is_name("false") || self.is_name("False") => {
                self.next();
                return Ok(Action::Scope(self.body_to_end("endautoescape")?));
            }
            "autoescape" => {
                return Err(
                    "autoescape is not supported: escape values with the filter e".to_owned(),
                );
            }
            "include" | "import" | "from" | "extends" => {
                return Err(format!(
                    "the tag {name:?} is not supported: a chat template is one file"
                ));
            }
            _ => return Err(format!("Encountered unknown tag {name:?}")),
        };
        self.expect(&token::Kind::BlockEnd)?;
        Ok(action)
    }

    fn condition(&mut self) -> Result<Action> {
        let mut cases = Vec::new();
        loop {
            let condition = self.tuple(false, &[])?;
            let (body, end) = self.body(&["elif", "else", "endif"])?;
            cases.push((condition, body));
            match end.as_str() {
                "elif" => continue,
                "else" => {
                    let otherwise = self.body_to_end("endif")?;
                    return Ok(Action::If(cases, otherwise));
                }
                _ => {
                    self.expect(&token::Kind::BlockEnd)?;
                    return Ok(Action::If(cases, Vec::new()));
                }
            }
        }
    }

    fn for_loop(&mut self) -> Result<Action> {
        let target = self.target(&["in"])?;
        if !self.skip_name("in") {
            return Err(format!("expected \"in\", got {}", self.found()));
        }
        let iterated = self.tuple(false, &["recursive"])?;
        let condition = if self.skip_name("if") {
            Some(self.expression()?)
        } else {
            None
        };
        let is_recursive = self.skip_name("recursive");
        self.loops += 1;
        let (body, end) = self.body(&["endfor", "else"])?;
        self.loops -= 1;
        let otherwise = match end.as_str() {
            "else" => self.body_to_end("endfor")?,
            _ => {
                self.expect(&token::Kind::BlockEnd)?;
                Vec::new()
            }
        };
        Ok(Action::For(Box::new(For {
            target,
            iterated,
            condition,
            is_recursive,
            body,
            otherwise,
        })))
    }

    fn set(&mut self) -> Result<Action> {
        let target = self.target(&[])?;
        if self.skip_sign("=") {
            let value = self.tuple(true, &[])?;
            self.expect(&token::Kind::BlockEnd)?;
            return Ok(Action::Set(target, value));
        }
        let filters = self.filters_of_block()?;
        Ok(Action::SetBlock(
            target,
            filters,
            self.body_to_end("endset")?,
        ))
    }

    fn with(&mut self) -> Result<Action> {
        let mut values = Vec::new();
        while self.kind() != &token::Kind::BlockEnd {
            if !values.is_empty() {
                self.expect_sign(",")?;
            }
            let target = self.single_target()?;
            self.expect_sign("=")?;
            values.push((target, self.expression()?));
        }
        Ok(Action::With(values, self.body_to_end("endwith")?))
    }

    fn block(&mut self) -> Result<Action> {
        let name = self.name()?;
        self.skip_name("scoped");
        self.skip_name("required");
        let (body, _) = self.body(&["endblock"])?;
        self.skip_name(&name);
        self.expect(&token::Kind::BlockEnd)?;
        Ok(Action::Scope(body))
    }

    fn macro_definition(&mut self) -> Result<Action> {
        let name = self.name()?;
        let (parameters, defaults) = self.signature()?;
        let index = self.macro_body(name, parameters, defaults, "endmacro")?;
        Ok(Action::Macro(index))
    }

    fn call_block(&mut self) -> Result<Action> {
        let (parameters, defaults) = if self.is_sign("(") {
            self.signature()?
        } else {
            (Vec::new(), Vec::new())
        };
        let call = self.expression()?;
        if !matches!(call.kind, Kind::Call(..)) {
            return Err("a call block must contain a call".to_owned());
        }
        let index = self.macro_body("caller".to_owned(), parameters, defaults, "endcall")?;
        Ok(Action::CallBlock(call, index))
    }

    fn signature(&mut self) -> Result<(Vec<String>, Vec<Expr>)> {
        self.expect_sign("(")?;
        let (mut parameters, mut defaults) = (Vec::new(), Vec::new());
        while !self.is_sign(")") {
            if !parameters.is_empty() {
                self.expect_sign(",")?;
            }
            parameters.push(self.name()?);
            if self.skip_sign("=") {
                defaults.push(self.expression()?);
            } else if !defaults.is_empty() {
                return Err("non-default argument follows default argument".to_owned());
            }
        }
        self.expect_sign(")")?;
        Ok((parameters, defaults))
    }

    fn macro_body(
        &mut self,
        name: String,
        parameters: Vec<String>,
        defaults: Vec<Expr>,
        end: &str,
    ) -> Result<usize> {
        let outer = (
            std::mem::take(&mut self.loops),
            std::mem::take(&mut self.uses),
        );
        let body = self.body_to_end(end)?;
        let uses = self.uses;
        (self.loops, self.uses) = outer;
        let is_caller = end == "endcall";
        if is_caller {
            // The body of a call block may use the special names of the macro around it.
            for (outer, inner) in self.uses.iter_mut().zip(uses) {
                *outer |= inner;
            }
        }
        self.macros.push(MacroBody {
            name,
            parameters,
            defaults,
            body,
            uses,
            is_caller,
        });
        Ok(self.macros.len() - 1)
    }

    fn target(&mut self, ends: &[&str]) -> Result<Target> {
        let mut targets = Vec::new();
        let mut is_tuple = false;
        loop {
            let is_end = self.is_sign("=")
                || self.kind() == &token::Kind::BlockEnd
                || ends.iter().any(|end| self.is_name(end));
            if is_end && is_tuple {
                break;
            }
            targets.push(self.single_target()?);
            if !self.skip_sign(",") {
                break;
            }
            is_tuple = true;
        }
        match (is_tuple, targets.pop()) {
            (false, Some(target)) => Ok(target),
            (_, last) => {
                targets.extend(last);
                Ok(Target::Tuple(targets))
            }
        }
    }

    fn single_target(&mut self) -> Result<Target> {
        if self.skip_sign("(") {
            let target = self.nested(|parser| parser.target(&[]))?;
            self.expect_sign(")")?;
            return Ok(target);
        }
        let name = self.name()?;
        if matches!(
            name.as_str(),
            "true" | "false" | "none" | "True" | "False" | "None"
        ) {
            return Err(format!("can't assign to {name:?}"));
        }
        if self.skip_sign(".") {
            Ok(Target::Attribute(name, self.name()?))
        } else {
            Ok(Target::Name(name))
        }
    }
}
