//! Interprets a parsed template.

mod attributes;
mod calls;
mod expressions;
mod globals;
mod operators;
mod slices;
mod statements;

pub(super) use expressions::compare;
pub(super) use slices::slice_indices;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::Limits;
use super::ast::For;
use super::error::{Error, Fault, Result};
use super::meter;
use super::parser::SyntaxTree;
use super::value::Value;

/// Maximum nesting depth of calls and blocks.
const MAX_LEVELS: usize = 2_000;
/// Maximum stack use of a rendering. Threads have stacks of at least 2 MiB.
const MAX_STACK_BYTES: usize = 1 << 20;
/// Bytes that cost one instruction to read.
const BYTES_PER_INSTRUCTION: usize = 64;

/// The variables of a block, and the scope around it.
pub(super) struct Scope<'t> {
    variables: RefCell<Vec<(&'t str, Value)>>,
    outer: Option<Rc<Scope<'t>>>,
}

impl<'t> Scope<'t> {
    fn inside(outer: &Rc<Self>) -> Rc<Self> {
        Rc::new(Self {
            variables: RefCell::default(),
            outer: Some(outer.clone()),
        })
    }

    fn get(&self, name: &str) -> Option<Value> {
        let mut scope = Some(self);
        while let Some(Self { variables, outer }) = scope {
            let variables = variables.borrow();
            if let Some((_, value)) = variables.iter().find(|(known, _)| *known == name) {
                return Some(value.clone());
            }
            scope = outer.as_deref();
        }
        None
    }

    fn set(&self, name: &'t str, value: Value) {
        let mut variables = self.variables.borrow_mut();
        match variables.iter_mut().find(|(known, _)| *known == name) {
            Some((_, current)) => *current = value,
            None => variables.push((name, value)),
        }
    }
}

pub(super) enum Object<'t> {
    Namespace(Vec<(String, Value)>),
    /// The index of a macro, and the scope that defines it.
    Macro(usize, Rc<Scope<'t>>),
    Loop(LoopState<'t>),
    Cycler {
        items: Vec<Value>,
        at: usize,
    },
    Joiner {
        separator: Value,
        is_used: bool,
    },
}

pub(super) struct LoopState<'t> {
    node: &'t For,
    scope: Rc<Scope<'t>>,
    items: Vec<Value>,
    index: usize,
    depth: usize,
    /// Arguments of the last call of `loop.changed`.
    last: Option<Value>,
}

pub(super) struct Interpreter<'t> {
    template: &'t SyntaxTree,
    variables: &'t FxHashMap<String, Value>,
    limits: Limits,
    objects: RefCell<Vec<Object<'t>>>,
    /// The texts of the filter blocks that are being evaluated.
    blocks: RefCell<Vec<Value>>,
    /// Bytes of the output and of unfinished captured blocks.
    written: Cell<usize>,
    line: Cell<usize>,
    levels: Cell<usize>,
    stack_start: usize,
    /// Bytes of live values when the rendering began.
    memory_start: usize,
}

pub(super) fn render(
    template: &SyntaxTree,
    variables: &FxHashMap<String, Value>,
    limits: Limits,
) -> std::result::Result<String, Error> {
    meter::begin(limits.instructions);
    let interpreter = Interpreter {
        template,
        variables,
        limits,
        objects: RefCell::default(),
        blocks: RefCell::default(),
        written: Cell::new(0),
        line: Cell::new(1),
        levels: Cell::new(0),
        stack_start: stack_address(),
        memory_start: meter::live_bytes(),
    };
    let root = Rc::new(Scope {
        variables: RefCell::default(),
        outer: None,
    });
    let mut out = String::new();
    let ran = interpreter.run(&template.body, &root, &mut out);
    // If instructions ran out during a comparison, its result is wrong, so the rendering must fail.
    let ran = ran.and_then(|_| interpreter.step(1));
    meter::begin(u64::MAX);
    match ran {
        Ok(()) => Ok(out),
        Err(fault) => Err(Error {
            fault,
            line: interpreter.line.get(),
        }),
    }
}

/// The approximate stack pointer.
fn stack_address() -> usize {
    let here = 0u8;
    std::ptr::from_ref(&here).addr()
}

impl<'t> Interpreter<'t> {
    pub(super) fn step(&self, count: usize) -> Result<()> {
        if meter::spend(count) {
            self.check_memory(0)
        } else {
            Err(Fault::Instructions)
        }
    }

    /// Spends the instructions for reading a value.
    pub(super) fn charge_read(&self, value: &Value) -> Result<()> {
        self.step(1 + value.bytes() / BYTES_PER_INSTRUCTION)
    }

    pub(super) fn check_memory(&self, bytes: usize) -> Result<()> {
        let used = meter::live_bytes().saturating_sub(self.memory_start);
        if used.saturating_add(bytes) <= self.limits.memory_bytes {
            Ok(())
        } else {
            Err(Fault::Memory)
        }
    }

    /// Checks the limits before `count * bytes` are allocated, and spends the instructions for writing them.
    pub(super) fn check_allocation(&self, bytes: usize, count: usize) -> Result<()> {
        let Some(all) = bytes.checked_mul(count) else {
            return Err(Fault::Memory);
        };
        self.step(all / BYTES_PER_INSTRUCTION)?;
        self.check_memory(all)
    }

    fn nested<T>(&self, part: impl FnOnce() -> Result<T>) -> Result<T> {
        let levels = self.levels.get();
        let stack_bytes = self.stack_start.abs_diff(stack_address());
        if levels >= MAX_LEVELS || stack_bytes > MAX_STACK_BYTES {
            return Err(Fault::Depth);
        }
        self.levels.set(levels + 1);
        let result = part();
        self.levels.set(levels);
        result
    }

    fn write(&self, out: &mut String, text: &str) -> Result<()> {
        let written = self.written.get() + text.len();
        if written > self.limits.output_bytes {
            return Err(Fault::Output);
        }
        self.written.set(written);
        out.push_str(text);
        Ok(())
    }

    fn captured(&self, part: impl FnOnce(&mut String) -> Result<()>) -> Result<Value> {
        let mut out = String::new();
        part(&mut out)?;
        self.written.set(self.written.get() - out.len());
        Ok(Value::text(out))
    }

    fn object(&self, object: Object<'t>) -> Result<Value> {
        self.check_memory(self.objects.borrow().len() * size_of::<Object<'_>>())?;
        let mut objects = self.objects.borrow_mut();
        objects.push(object);
        Ok(Value::Object(objects.len() - 1))
    }

    fn lookup(&self, scope: &Scope<'t>, name: &str) -> Value {
        let variable = scope.get(name);
        let variable = variable.or_else(|| self.variables.get(name).cloned());
        let function = || globals::NAMES.iter().find(|known| **known == name);
        variable
            .or_else(|| function().map(|name| Value::Function(name)))
            .unwrap_or_else(|| Value::undefined(format!("'{name}' is undefined")))
    }
}
