//! Evaluates the expressions of templates.

use std::cmp::Ordering;
use std::rc::Rc;

use num_bigint::BigInt;

use super::super::args::Args;
use super::super::ast::{Arguments, Comparison, Expr, Kind};
use super::super::compare::{contains, equal, order};
use super::super::error::{Fault, Result};
use super::super::value::Value;
use super::{Interpreter, Scope};

impl<'t> Interpreter<'t> {
    pub(super) fn eval(&self, expr: &'t Expr, scope: &Rc<Scope<'t>>) -> Result<Value> {
        self.step(1)?;
        Ok(match &expr.kind {
            Kind::None => Value::None,
            Kind::Bool(value) => Value::Bool(*value),
            Kind::Int(value) => Value::Int(*value),
            Kind::Float(value) => Value::Float(*value),
            Kind::Text(text) => {
                self.step(text.len() / super::BYTES_PER_INSTRUCTION)?;
                Value::text(text.as_str())
            }
            Kind::Name(name) => self.lookup(scope, name),
            Kind::Attribute(inner, name) => {
                let inner = self.nested(|| self.eval(inner, scope))?;
                self.attribute(&inner, name)?
            }
            _ => return self.nested(|| self.eval_parts(expr, scope)),
        })
    }

    fn eval_parts(&self, expr: &'t Expr, scope: &Rc<Scope<'t>>) -> Result<Value> {
        match &expr.kind {
            Kind::Big(digits) => match BigInt::parse_bytes(digits.as_bytes(), 10) {
                Some(number) => Ok(Value::big(number)),
                None => Fault::other(format!("{digits} is not an integer")),
            },
            Kind::List(items) => Value::list(self.eval_all(items, scope)?),
            Kind::Tuple(items) => Value::tuple(self.eval_all(items, scope)?),
            Kind::Dict(entries) => {
                let entry = |(key, value): &'t (Expr, Expr)| {
                    Ok((self.eval(key, scope)?, self.eval(value, scope)?))
                };
                Value::dict(entries.iter().map(entry).collect::<Result<_>>()?)
            }
            Kind::Item(inner, index) => {
                let inner = self.eval(inner, scope)?;
                let index = self.eval(index, scope)?;
                self.item(&inner, &index)
            }
            Kind::Slice(inner, parts) => self.eval_slice(inner, parts, scope),
            Kind::Call(function, arguments) => {
                let function = self.eval(function, scope)?;
                let arguments = self.eval_arguments(arguments, scope)?;
                self.call(&function, arguments)
            }
            Kind::Filter(inner, name, arguments) => {
                let value = match inner {
                    Some(inner) => self.eval(inner, scope)?,
                    None => self.blocks.borrow().last().cloned().unwrap_or(Value::None),
                };
                let arguments = self.eval_arguments(arguments, scope)?;
                self.filter(name, value, arguments)
            }
            Kind::Test(inner, name, arguments) => {
                let value = self.eval(inner, scope)?;
                let arguments = self.eval_arguments(arguments, scope)?;
                self.test(name, value, arguments).map(Value::Bool)
            }
            Kind::Negative(inner) => self.negative(&self.eval(inner, scope)?),
            Kind::Positive(inner) => self.positive(&self.eval(inner, scope)?),
            Kind::Arithmetic(operator, a, b) => {
                let a = self.eval(a, scope)?;
                let b = self.eval(b, scope)?;
                self.arithmetic(*operator, &a, &b)
            }
            Kind::Compare(first, others) => self.eval_compare(first, others, scope),
            Kind::Concat(parts) => self.concatenate(parts, scope),
            _ => self.eval_choice(expr, scope),
        }
    }

    /// Evaluates boolean operators and conditional expressions.
    fn eval_choice(&self, expr: &'t Expr, scope: &Rc<Scope<'t>>) -> Result<Value> {
        match &expr.kind {
            Kind::Not(inner) => Ok(Value::Bool(!self.truth(&self.eval(inner, scope)?))),
            Kind::And(a, b) => {
                let a = self.eval(a, scope)?;
                if self.truth(&a) {
                    self.eval(b, scope)
                } else {
                    Ok(a)
                }
            }
            Kind::Or(a, b) => {
                let a = self.eval(a, scope)?;
                if self.truth(&a) {
                    Ok(a)
                } else {
                    self.eval(b, scope)
                }
            }
            Kind::Conditional(parts, otherwise) => {
                let [condition, value] = parts.as_ref();
                if self.truth(&self.eval(condition, scope)?) {
                    return self.eval(value, scope);
                }
                match otherwise {
                    Some(otherwise) => self.eval(otherwise, scope),
                    None => Ok(Value::undefined(
                        "the inline if-expression evaluated to false and no else section was defined.",
                    )),
                }
            }
            _ => self.eval(expr, scope),
        }
    }

    fn concatenate(&self, parts: &'t [Expr], scope: &Rc<Scope<'t>>) -> Result<Value> {
        let mut text = String::new();
        for part in parts {
            let part = self.eval(part, scope)?;
            self.charge_read(&part)?;
            text.push_str(&self.str(&part)?);
            self.check_memory(text.len())?;
        }
        Ok(Value::text(text))
    }

    fn eval_all(&self, items: &'t [Expr], scope: &Rc<Scope<'t>>) -> Result<Vec<Value>> {
        items.iter().map(|item| self.eval(item, scope)).collect()
    }

    fn eval_slice(
        &self,
        inner: &'t Expr,
        parts: &'t [Option<Expr>; 3],
        scope: &Rc<Scope<'t>>,
    ) -> Result<Value> {
        let inner = self.eval(inner, scope)?;
        let mut values = [Value::None, Value::None, Value::None];
        for (part, value) in parts.iter().zip(&mut values) {
            if let Some(part) = part {
                *value = self.eval(part, scope)?;
            }
        }
        self.slice(&inner, &values)
    }

    pub(super) fn eval_arguments(
        &self,
        arguments: &'t Arguments,
        scope: &Rc<Scope<'t>>,
    ) -> Result<Args> {
        let mut positional = self.eval_all(&arguments.positional, scope)?;
        let mut named = Vec::with_capacity(arguments.named.len());
        for (name, value) in &arguments.named {
            named.push((name.clone(), self.eval(value, scope)?));
        }
        if let Some(list) = &arguments.list {
            let list = self.eval(list, scope)?;
            positional.extend(self.items(&list)?);
        }
        if let Some(mapping) = &arguments.mapping {
            let Value::Dict(dict) = self.eval(mapping, scope)? else {
                return Fault::other("argument after ** must be a mapping");
            };
            for (key, value) in dict.entries() {
                match key.as_str() {
                    Some(name) => named.push((name.to_owned(), value.clone())),
                    None => return Fault::other("keywords must be strings"),
                }
            }
        }
        Ok(Args { positional, named })
    }

    fn eval_compare(
        &self,
        first: &'t Expr,
        others: &'t [(Comparison, Expr)],
        scope: &Rc<Scope<'t>>,
    ) -> Result<Value> {
        let mut left = self.eval(first, scope)?;
        for (operator, right) in others {
            let right = self.eval(right, scope)?;
            self.charge_read(&left)?;
            self.charge_read(&right)?;
            if !compare(*operator, &left, &right)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    /// The truth value of `value`, as in Python.
    pub(in super::super) fn truth(&self, value: &Value) -> bool {
        match value {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(value) => *value,
            Value::Int(number) => *number != 0,
            Value::Big(_) => true,
            Value::Float(number) => *number != 0.0,
            Value::Text(text) => !text.as_str().is_empty(),
            other => other.len() != Some(0),
        }
    }
}

pub(in super::super) fn compare(operator: Comparison, a: &Value, b: &Value) -> Result<bool> {
    let ordered = |sign: &str, is: fn(Ordering) -> bool| Ok(order(a, b, sign)?.is_some_and(is));
    match operator {
        Comparison::Equal => Ok(equal(a, b)),
        Comparison::NotEqual => Ok(!equal(a, b)),
        Comparison::Less => ordered("<", Ordering::is_lt),
        Comparison::LessEqual => ordered("<=", Ordering::is_le),
        Comparison::Greater => ordered(">", Ordering::is_gt),
        Comparison::GreaterEqual => ordered(">=", Ordering::is_ge),
        Comparison::In => contains(b, a),
        Comparison::NotIn => contains(b, a).map(|found| !found),
    }
}
