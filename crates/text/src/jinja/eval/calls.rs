//! Evaluates calls of macros, methods and functions in templates.

use std::rc::Rc;

use super::super::args::Args;
use super::super::ast::{Expr, Kind};
use super::super::compare::equal;
use super::super::error::{Fault, Result};
use super::super::value::Value;
use super::{Interpreter, Object, Scope};

enum Callable<'t> {
    Macro(usize, Rc<Scope<'t>>),
    Text(Value),
    Loop(&'t super::For, Rc<Scope<'t>>, usize),
    No,
}

impl<'t> Interpreter<'t> {
    pub(in super::super) fn call(&self, function: &Value, args: Args) -> Result<Value> {
        match function {
            Value::Function(name) => self.call_global(name, args),
            Value::Method(method) => match method.0 {
                Value::Object(id) => self.call_object_method(id, &method.1, args),
                _ => {
                    self.charge_read(&method.0)?;
                    self.call_method(&method.0, &method.1, args)
                }
            },
            Value::Object(id) => self.nested(|| self.call_object(*id, args)),
            Value::Undefined(message) => Fault::other(message.to_string()),
            other => Fault::other(format!("'{}' object is not callable", other.type_name())),
        }
    }

    pub(super) fn call_with_caller(
        &self,
        call: &'t Expr,
        caller: Value,
        scope: &Rc<Scope<'t>>,
    ) -> Result<Value> {
        let Kind::Call(function, arguments) = &call.kind else {
            return Fault::other("a call block must contain a call");
        };
        let function = self.eval(function, scope)?;
        let mut args = self.eval_arguments(arguments, scope)?;
        args.named.push(("caller".to_owned(), caller));
        self.call(&function, args)
    }

    fn call_object(&self, id: usize, args: Args) -> Result<Value> {
        let callable = match self.objects.borrow_mut().get_mut(id) {
            Some(Object::Macro(index, scope)) => Callable::Macro(*index, scope.clone()),
            Some(Object::Joiner { separator, is_used }) => {
                if std::mem::replace(is_used, true) {
                    Callable::Text(separator.clone())
                } else {
                    Callable::Text(Value::text(""))
                }
            }
            Some(Object::Loop(state)) => {
                Callable::Loop(state.node, state.scope.clone(), state.depth + 1)
            }
            _ => Callable::No,
        };
        match callable {
            Callable::Macro(index, scope) => self.call_macro(index, &scope, args),
            Callable::Text(text) => Ok(text),
            Callable::Loop(node, scope, depth) => {
                if !node.is_recursive {
                    return Fault::other(
                        "The loop must have the 'recursive' marker to be called recursively.",
                    );
                }
                let [items] = args.by_position("loop", 1)?;
                let items = items.unwrap_or(Value::None);
                self.captured(|out| self.run_loop(node, items, &scope, depth, out))
            }
            Callable::No => Fault::other("'object' object is not callable"),
        }
    }

    fn call_macro(&self, index: usize, scope: &Rc<Scope<'t>>, args: Args) -> Result<Value> {
        let template = self.template;
        let body = &template.macros[index];
        let inner = Scope::inside(scope);
        let [takes_varargs, takes_kwargs, takes_caller] = body.uses;
        let macro_name = &body.name;
        let mut positional = args.positional.into_iter();
        let mut keywords = args.named;
        let first_default = body.parameters.len() - body.defaults.len();
        for (place, parameter) in body.parameters.iter().enumerate() {
            let keyword = keywords.iter().position(|(known, _)| known == parameter);
            let value = match (positional.next(), keyword) {
                (Some(value), None) => value,
                (Some(_), Some(_)) => {
                    return Fault::other(format!(
                        "macro '{macro_name}' got multiple values for argument '{parameter}'"
                    ));
                }
                (None, Some(keyword)) => keywords.remove(keyword).1,
                (None, None) => match place.checked_sub(first_default) {
                    Some(default) => self.eval(&body.defaults[default], &inner)?,
                    None => Value::undefined(format!("parameter '{parameter}' was not provided")),
                },
            };
            inner.set(parameter, value);
        }
        if takes_caller && !body.is_caller && !body.parameters.iter().any(|name| name == "caller") {
            let given = keywords.iter().position(|(known, _)| known == "caller");
            let value = match given {
                Some(given) => keywords.remove(given).1,
                None => Value::undefined("No caller defined"),
            };
            inner.set("caller", value);
        }
        if takes_kwargs {
            let entries = keywords.drain(..);
            let entries = entries.map(|(name, value)| (Value::text(name), value));
            inner.set("kwargs", Value::dict(entries.collect())?);
        }
        if let Some((name, _)) = keywords.first() {
            return match name.as_str() {
                "caller" => Fault::other(format!(
                    "macro '{macro_name}' was invoked with two values for the special caller argument. This is most \
                     likely a bug."
                )),
                _ => Fault::other(format!(
                    "macro '{macro_name}' takes no keyword argument '{name}'"
                )),
            };
        }
        let rest: Vec<Value> = positional.collect();
        if takes_varargs {
            inner.set("varargs", Value::tuple(rest)?);
        } else if !rest.is_empty() {
            let max = body.parameters.len();
            return Fault::other(format!(
                "macro '{macro_name}' takes not more than {max} argument(s)"
            ));
        }
        self.captured(|out| self.run(&body.body, &inner, out).map(|_| ()))
    }

    fn call_object_method(&self, id: usize, name: &str, args: Args) -> Result<Value> {
        let mut objects = self.objects.borrow_mut();
        match (objects.get_mut(id), name) {
            (Some(Object::Cycler { items, at }), "next") => {
                let item = items[*at].clone();
                *at = (*at + 1) % items.len();
                Ok(item)
            }
            (Some(Object::Cycler { at, .. }), "reset") => {
                *at = 0;
                Ok(Value::None)
            }
            (Some(Object::Loop(state)), "cycle") => match args.positional.len() {
                0 => Fault::other("no items for cycling given"),
                len => Ok(args.positional[state.index % len].clone()),
            },
            (Some(Object::Loop(state)), "changed") => {
                let value = Value::tuple(args.positional)?;
                let has_changed = !state.last.as_ref().is_some_and(|last| equal(last, &value));
                state.last = Some(value);
                Ok(Value::Bool(has_changed))
            }
            _ => Fault::other(format!("object has no method '{name}'")),
        }
    }
}
