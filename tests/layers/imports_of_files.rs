//! Finds the files that each file of a crate imports, from the source as text.
//!
//! A path is resolved to the file that defines its item, through the `use` lines of other files. A module's use of its
//! children is not an import. Tests are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{read, sources};

/// The imports of each file, by module paths as in `state::pool`.
pub type Graph = BTreeMap<String, BTreeSet<String>>;
type Names = Vec<String>;

/// A name that a module imports with `use`, and its path.
struct Use {
    name: String,
    path: Names,
}

#[derive(Default)]
struct Module {
    uses: Vec<Use>,
    /// Paths in the code outside of `use`.
    paths: Vec<Names>,
}

/// The modules of a crate, without tests.
pub struct Sources(BTreeMap<Names, Module>);

impl Sources {
    /// Reads all files below the folder of a crate's root.
    pub fn read(base: &Path) -> Self {
        let mut files = Vec::new();
        sources(base, &mut files);
        let mut modules = BTreeMap::new();
        let mut tests = Vec::new();
        for file in files {
            let path = file.strip_prefix(base).expect("the file is in base");
            let mut names: Names = path
                .with_extension("")
                .iter()
                .map(|name| name.to_string_lossy().into_owned())
                .collect();
            names.pop_if(|last| ["mod", "lib"].contains(&last.as_str()));
            let mut reader = Reader::new(&read(&file));
            reader.read();
            tests.extend(reader.tests.into_iter().map(|test| {
                let mut names = names.clone();
                names.push(test);
                names
            }));
            modules.insert(names, reader.module);
        }
        modules.retain(|names, _| !tests.iter().any(|test| names.starts_with(test)));
        Self(modules)
    }

    /// Makes the file `from` import an item of `to`.
    pub fn add_import(&mut self, from: &str, to: &str) {
        let names = |shown: &str| shown.split("::").map(str::to_owned).collect::<Names>();
        let mut path = vec!["crate".to_owned()];
        path.extend(names(to));
        path.push("Planted".to_owned());
        let module = self.0.get_mut(&names(from)).expect("a known file");
        module.paths.push(path);
    }

    pub fn graph(&self) -> Graph {
        let mut graph = Graph::new();
        for (names, module) in &self.0 {
            let uses = module.uses.iter().map(|import| &import.path);
            let targets = uses.chain(&module.paths).filter(|path| leads_outside(path));
            let targets = targets.filter_map(|path| self.resolve(names, path, 0));
            let to: BTreeSet<String> = targets
                .filter(|to| to != names && !to.is_empty())
                .map(|to| to.join("::"))
                .collect();
            if !to.is_empty() && !names.is_empty() {
                graph.insert(names.join("::"), to);
            }
        }
        graph
    }

    /// Resolves a path in a module to a file; `None` if the path is in another crate.
    fn resolve(&self, from: &Names, path: &[String], depth: usize) -> Option<Names> {
        let mut at = from.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => {
                at.clear();
                rest = &path[1..];
            }
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|name| name == "super") {
                    at.pop();
                    rest = &rest[1..];
                }
            }
            first => {
                at.push(first.to_owned());
                if !self.0.contains_key(&at) {
                    return None;
                }
                rest = &path[1..];
            }
        }
        while let Some((name, after)) = rest.split_first() {
            at.push(name.clone());
            if !self.0.contains_key(&at) {
                at.pop();
                return Some(self.follow(&at, name, after, depth).unwrap_or(at));
            }
            rest = after;
        }
        Some(at)
    }

    /// Resolves a name that a module imports from another one.
    fn follow(&self, at: &Names, name: &str, after: &[String], depth: usize) -> Option<Names> {
        let import = self
            .0
            .get(at)?
            .uses
            .iter()
            .find(|import| import.name == name)?;
        if depth > 16 {
            return None;
        }
        let mut path = import.path.clone();
        path.extend_from_slice(after);
        self.resolve(at, &path, depth + 1)
    }
}

/// Reads the tokens of a file.
struct Reader {
    tokens: Vec<String>,
    at: usize,
    module: Module,
    /// Modules that are compiled for tests only.
    tests: Vec<String>,
}

impl Reader {
    fn new(text: &str) -> Self {
        Self {
            tokens: tokens(text),
            at: 0,
            module: Module::default(),
            tests: Vec::new(),
        }
    }

    fn token(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or("", String::as_str)
    }

    fn read(&mut self) {
        while self.at < self.tokens.len() {
            let is_test = (0..7).map(|ahead| self.token(ahead)).collect::<Vec<_>>()
                == ["#", "[", "cfg", "(", "test", ")", "]"];
            match self.token(0) {
                _ if is_test => {
                    self.at += 7;
                    self.skip_item();
                }
                "use" => {
                    self.at += 1;
                    self.read_use(Names::new());
                }
                "crate" | "super" if self.token(1) == "::" => self.read_path(),
                _ => self.at += 1,
            }
        }
    }

    /// Skips an item that only tests compile, to its semicolon or the end of its block. Records the name of a module.
    fn skip_item(&mut self) {
        let mut depth = 0_usize;
        while self.at < self.tokens.len() {
            match self.token(0) {
                "mod" if depth == 0 => self.tests.push(self.token(1).to_owned()),
                "{" => depth += 1,
                ";" if depth == 0 => break,
                "}" => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        break;
                    }
                }
                _ => {}
            }
            self.at += 1;
        }
        self.at += 1;
    }

    fn read_path(&mut self) {
        let mut path = vec![self.token(0).to_owned()];
        self.at += 1;
        while self.token(0) == "::" && is_name(self.token(1)) {
            path.push(self.token(1).to_owned());
            self.at += 2;
        }
        self.module.paths.push(path);
    }

    /// Reads one path or a group of paths, up to the next separator.
    fn read_use(&mut self, mut path: Names) {
        loop {
            match self.token(0) {
                "{" => return self.read_group(&path),
                "::" => self.at += 1,
                "*" => {
                    self.at += 1;
                    return self.add_use("*".to_owned(), path);
                }
                "as" => {
                    let name = self.token(1).to_owned();
                    self.at += 2;
                    return self.add_use(name, path);
                }
                name if is_name(name) => {
                    path.push(name.to_owned());
                    self.at += 1;
                }
                _ => {
                    let name = path.last().cloned().unwrap_or_default();
                    return self.add_use(name, path);
                }
            }
        }
    }

    fn read_group(&mut self, path: &Names) {
        self.at += 1;
        while !["}", ""].contains(&self.token(0)) {
            self.read_use(path.clone());
            if self.token(0) == "," {
                self.at += 1;
            }
        }
        self.at += 1;
    }

    fn add_use(&mut self, name: String, mut path: Names) {
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        self.module.uses.push(Use { name, path });
    }
}

/// Whether a path points outside its module and the module's children.
fn leads_outside(path: &[String]) -> bool {
    let first = path.first().map(String::as_str);
    matches!(first, Some("crate" | "super"))
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// The names and punctuation of a file, without comments and literals.
fn tokens(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |at| at + 2)
        } else if let Some(length) = literal(rest) {
            length
        } else if is_name(rest) {
            rest.find(|c: char| !c.is_alphanumeric() && c != '_')
                .unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            c.len_utf8()
        };
        let (token, after) = rest.split_at(length);
        let is_code = is_name(token) || token == "::" || token.len() == 1;
        if is_code && !c.is_whitespace() && literal(rest).is_none() {
            found.push(token.to_owned());
        }
        rest = after;
    }
    found
}

/// The length of the string or character literal at the start of `rest`; `None` if there is none.
fn literal(rest: &str) -> Option<usize> {
    let raw = rest.strip_prefix('b').unwrap_or(rest);
    if let Some(hashes) = raw.strip_prefix('r') {
        let count = hashes.len() - hashes.trim_start_matches('#').len();
        let content = hashes[count..].strip_prefix('"')?;
        let close = format!("\"{}", "#".repeat(count));
        let end = content
            .find(&close)
            .map_or(content.len(), |at| at + close.len());
        return Some(rest.len() - content.len() + end);
    }
    let quote = raw.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let content = &raw[1..];
    let is_lifetime =
        quote == '\'' && !content.starts_with('\\') && content.chars().nth(1) != Some('\'');
    if is_lifetime {
        return None;
    }
    let mut is_escaped = false;
    let end = content.char_indices().find(|(_, c)| {
        let is_end = *c == quote && !is_escaped;
        is_escaped = *c == '\\' && !is_escaped;
        is_end
    });
    let end = end.map_or(content.len(), |(at, _)| at + 1);
    Some(rest.len() - content.len() + end)
}
