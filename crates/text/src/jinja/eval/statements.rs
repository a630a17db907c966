//! Runs the statements of templates.

use std::rc::Rc;

use super::super::ast::{Action, Expr, For, Statement, Target};
use super::super::error::{Fault, Result};
use super::super::value::Value;
use super::{Interpreter, LoopState, Object, Scope};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Next,
    Break,
    Continue,
}

impl<'t> Interpreter<'t> {
    pub(super) fn run(
        &self,
        body: &'t [Statement],
        scope: &Rc<Scope<'t>>,
        out: &mut String,
    ) -> Result<Flow> {
        for statement in body {
            self.step(1)?;
            self.line.set(statement.line);
            let flow = match &statement.kind {
                Action::Data(text) => {
                    self.write(out, text)?;
                    Flow::Next
                }
                Action::Print(values) => {
                    for value in values {
                        self.print(value, scope, out)?;
                    }
                    Flow::Next
                }
                Action::Set(target, value) => {
                    let value = self.eval(value, scope)?;
                    self.assign(target, value, scope)?;
                    Flow::Next
                }
                action => self.nested(|| self.run_block(action, scope, out))?,
            };
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn print(&self, value: &'t Expr, scope: &Rc<Scope<'t>>, out: &mut String) -> Result<()> {
        let value = self.eval(value, scope)?;
        match &value {
            Value::Text(text) => self.write(out, text.as_str()),
            other => {
                let text = self.str(other)?;
                self.write(out, &text)
            }
        }
    }

    fn run_block(
        &self,
        action: &'t Action,
        scope: &Rc<Scope<'t>>,
        out: &mut String,
    ) -> Result<Flow> {
        match action {
            Action::If(cases, otherwise) => {
                for (condition, body) in cases {
                    if self.truth(&self.eval(condition, scope)?) {
                        return self.run(body, scope, out);
                    }
                }
                return self.run(otherwise, scope, out);
            }
            Action::Scope(body) => return self.run(body, &Scope::inside(scope), out),
            Action::For(node) => {
                let items = self.eval(&node.iterated, scope)?;
                self.run_loop(node, items, scope, 0, out)?;
            }
            Action::SetBlock(target, filters, body) => {
                let text = self.captured(|out| self.run_inside(body, scope, out))?;
                let value = match filters {
                    Some(filters) => self.filter_block(filters, text, scope)?,
                    None => text,
                };
                self.assign(target, value, scope)?;
            }
            Action::FilterBlock(filter, body) => {
                let text = self.captured(|out| self.run_inside(body, scope, out))?;
                let value = self.filter_block(filter, text, scope)?;
                let text = self.str(&value)?;
                self.write(out, &text)?;
            }
            Action::With(values, body) => {
                let inner = Scope::inside(scope);
                let evaluate = |(_, value)| self.eval(value, scope);
                let evaluated = values.iter().map(|(target, value)| (target, value));
                let evaluated: Vec<Value> = evaluated.map(evaluate).collect::<Result<_>>()?;
                for ((target, _), value) in values.iter().zip(evaluated) {
                    self.assign(target, value, &inner)?;
                }
                return self.run(body, &inner, out);
            }
            Action::Macro(index) => {
                let value = self.object(Object::Macro(*index, scope.clone()))?;
                scope.set(&self.template.macros[*index].name, value);
            }
            Action::CallBlock(call, index) => {
                let caller = self.object(Object::Macro(*index, scope.clone()))?;
                let value = self.call_with_caller(call, caller, scope)?;
                let text = self.str(&value)?;
                self.write(out, &text)?;
            }
            Action::Break => return Ok(Flow::Break),
            Action::Continue => return Ok(Flow::Continue),
            Action::Data(_) | Action::Print(_) | Action::Set(..) => {}
        }
        Ok(Flow::Next)
    }

    fn run_inside(
        &self,
        body: &'t [Statement],
        scope: &Rc<Scope<'t>>,
        out: &mut String,
    ) -> Result<()> {
        self.run(body, &Scope::inside(scope), out).map(|_| ())
    }

    fn filter_block(&self, filter: &'t Expr, text: Value, scope: &Rc<Scope<'t>>) -> Result<Value> {
        self.blocks.borrow_mut().push(text);
        let value = self.eval(filter, scope);
        self.blocks.borrow_mut().pop();
        value
    }

    pub(super) fn run_loop(
        &self,
        node: &'t For,
        iterated: Value,
        scope: &Rc<Scope<'t>>,
        depth: usize,
        out: &mut String,
    ) -> Result<()> {
        self.charge_read(&iterated)?;
        let mut items = self.items(&iterated)?;
        if let Some(condition) = &node.condition {
            let mut kept = Vec::new();
            for item in items {
                let inner = Scope::inside(scope);
                self.assign(&node.target, item.clone(), &inner)?;
                if self.truth(&self.eval(condition, &inner)?) {
                    kept.push(item);
                }
            }
            items = kept;
        }
        if items.is_empty() {
            return self.run_inside(&node.otherwise, scope, out);
        }
        let len = items.len();
        self.check_memory(len * size_of::<Value>())?;
        let state = self.object(Object::Loop(LoopState {
            node,
            scope: scope.clone(),
            items,
            index: 0,
            depth,
            last: None,
        }))?;
        let Value::Object(id) = state else {
            return Fault::other("the state of the loop is missing");
        };
        let result = self.iterate(node, id, len, scope, out);
        // A namespace may still refer to the finished loop object, so its items are freed here.
        if let Some(Object::Loop(state)) = self.objects.borrow_mut().get_mut(id) {
            state.items = Vec::new();
            state.last = None;
        }
        result
    }

    fn iterate(
        &self,
        node: &'t For,
        id: usize,
        len: usize,
        scope: &Rc<Scope<'t>>,
        out: &mut String,
    ) -> Result<()> {
        for index in 0..len {
            self.step(1)?;
            let item = match self.objects.borrow_mut().get_mut(id) {
                Some(Object::Loop(state)) => {
                    state.index = index;
                    state.items[index].clone()
                }
                _ => return Fault::other("the state of the loop is missing"),
            };
            let inner = Scope::inside(scope);
            inner.set("loop", Value::Object(id));
            self.assign(&node.target, item, &inner)?;
            if self.run(&node.body, &inner, out)? == Flow::Break {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn assign(&self, target: &'t Target, value: Value, scope: &Scope<'t>) -> Result<()> {
        match target {
            Target::Name(name) => scope.set(name, value),
            Target::Attribute(name, attribute) => {
                let Value::Object(id) = self.lookup(scope, name) else {
                    return Fault::other("cannot assign attribute on non-namespace object");
                };
                let mut objects = self.objects.borrow_mut();
                let Some(Object::Namespace(attributes)) = objects.get_mut(id) else {
                    return Fault::other("cannot assign attribute on non-namespace object");
                };
                if attribute.starts_with('_') {
                    return Fault::other(format!(
                        "Chat templates cannot store underscore-prefixed attributes on a namespace, but got \
                         '{attribute}'. Please rename the attribute."
                    ));
                }
                match attributes.iter_mut().find(|(known, _)| known == attribute) {
                    Some((_, current)) => *current = value,
                    None => attributes.push((attribute.clone(), value)),
                }
            }
            Target::Tuple(targets) => {
                let items = self.items(&value)?;
                if items.len() != targets.len() {
                    let (wanted, found) = (targets.len(), items.len());
                    return if found < wanted {
                        Fault::other(format!(
                            "not enough values to unpack (expected {wanted}, got {found})"
                        ))
                    } else {
                        Fault::other(format!("too many values to unpack (expected {wanted})"))
                    };
                }
                for (target, item) in targets.iter().zip(items) {
                    self.assign(target, item, scope)?;
                }
            }
        }
        Ok(())
    }
}
