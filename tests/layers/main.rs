//! Tests that the tables in ARCHITECTURE.md list exactly the dependencies of the packages, and the imports of the
//! modules of `crates/` and `src/state/`. The tests read the source as text and link no code of the engine.

mod circles;
mod functions;
mod glossary;
mod imports_of_files;
#[path = "../common/repository.rs"]
mod repository;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// For each layer, the layers that it imports or may import.
type Imports = BTreeMap<String, BTreeSet<String>>;

fn root() -> PathBuf {
    repository::repository().to_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rows of the tables in the section "Layers", bottom layer first. A layer may have several rows.
fn table() -> Vec<(String, BTreeSet<String>)> {
    let text = read(&root().join("ARCHITECTURE.md"));
    let section = text
        .split("\n## ")
        .find(|part| part.starts_with("Layers\n"));
    let section = section.expect("ARCHITECTURE.md has a section named Layers");
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let names = |cell: &str| {
        let quoted = cell.split('`').skip(1).step_by(2);
        quoted.map(str::to_owned).collect::<Vec<String>>()
    };
    rows.flat_map(|row| {
        let mut cells = row.split('|').skip(1).map(names);
        let layers = cells.next().unwrap_or_default();
        let imports: BTreeSet<String> = cells.next().unwrap_or_default().into_iter().collect();
        layers
            .into_iter()
            .map(move |layer| (layer, imports.clone()))
    })
    .collect()
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries =
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let path = entry.expect("the folder can be read").path();
        if path.is_dir() {
            if !is_package(&path) {
                sources(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The code of a line: without its comment, and without the visibility `pub(in ..)`, which is not an import.
fn code(line: &str) -> &str {
    let line = line.split("//").next().unwrap_or_default();
    match line.trim_start().strip_prefix("pub(in ") {
        Some(rest) => rest.split_once(')').map_or("", |(_, code)| code),
        None => line,
    }
}

/// The names that follow `prefix` as path segments in the code of a file. Paths at the start of a string are left out.
fn named_after<'a>(text: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().map(code).flat_map(move |line| {
        let places = line.match_indices(prefix).map(|(at, _)| at);
        let places = places.filter(move |at| !line[..*at].ends_with('"'));
        places.map(move |at| {
            let rest = &line[at + prefix.len()..];
            let is_name = |c: char| c.is_alphanumeric() || c == '_';
            assert!(
                rest.starts_with(is_name),
                "write one `use` for each layer, so that this test can read it: {line}"
            );
            rest.split(|c| !is_name(c)).next().unwrap_or_default()
        })
    })
}

/// The layer that a file belongs to: the first part of its path below `base`.
fn layer_of(path: &Path, base: &Path) -> String {
    let first = path.strip_prefix(base).expect("the file is below the base");
    let first = first.components().next().expect("the path has a part");
    let first = first.as_os_str().to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

/// The layers that each layer below `base` imports. The name of a layer follows one of `prefixes` in the code, and
/// `shown` in the table.
fn imports(base: &Path, prefixes: &[&str], shown: &str) -> Imports {
    let mut files = Vec::new();
    sources(base, &mut files);
    let mut found = Imports::new();
    for file in files {
        let layer = layer_of(&file, base);
        if ["lib", "main", "mod", "tests"].contains(&layer.as_str()) {
            continue;
        }
        let text = read(&file);
        let imports = found.entry(format!("{shown}{layer}")).or_default();
        let names = prefixes
            .iter()
            .flat_map(|prefix| named_after(&text, prefix));
        imports.extend(
            names
                .filter(|name| *name != layer && !name.starts_with(char::is_uppercase))
                .map(|name| format!("{shown}{name}")),
        );
    }
    found
}

/// The source folders of the crates in `crates/`, by the names of the crates' folders.
fn crates() -> BTreeMap<String, PathBuf> {
    let folder = root().join("crates");
    let entries = fs::read_dir(&folder).expect("crates can be listed");
    let paths = entries.map(|entry| entry.expect("the folder can be listed").path());
    let named = paths.map(|path| {
        let name = path.file_name().expect("the folder has a name");
        (name.to_string_lossy().into_owned(), path.join("src"))
    });
    named.collect()
}

/// Whether a folder is a separate package, whose imports are checked separately.
fn is_package(folder: &Path) -> bool {
    folder.join("Cargo.toml").is_file()
}

/// The packages of the workspace except the root and the emulator, by their names without `souffleur-`.
fn packages() -> BTreeMap<String, PathBuf> {
    let folders = ["src", "crates"].map(|folder| {
        let entries = fs::read_dir(root().join(folder)).expect("the folder can be listed");
        entries.map(|entry| entry.expect("the folder can be listed").path())
    });
    let single = ["kernels", "models"].map(|folder| root().join(folder));
    let paths = folders.into_iter().flatten().chain(single);
    let named = paths.filter(|path| is_package(path)).map(|path| {
        let manifest = read(&path.join("Cargo.toml"));
        let name = manifest.split("name = \"souffleur-").nth(1);
        let name = name.and_then(|rest| rest.split('"').next());
        (name.expect("packages are named").replace('-', "_"), path)
    });
    named.collect()
}

/// The packages of this workspace that a manifest depends on outside of its tests.
fn dependencies(package: &Path) -> BTreeSet<String> {
    let manifest = read(&package.join("Cargo.toml"));
    let section = manifest
        .split("\n[")
        .find_map(|part| part.strip_prefix("dependencies]\n"));
    let lines = section.into_iter().flat_map(str::lines);
    let names = lines.filter_map(|line| line.strip_prefix("souffleur-")?.split(' ').next());
    names.map(|name| name.replace('-', "_")).collect()
}

#[test]
fn modules_and_packages_import_what_the_tables_allow() {
    let mut found = imports(&root().join("src/state"), &["crate::"], "state/");
    for (name, src) in crates() {
        found.extend(imports(&src, &["crate::"], &format!("{name}/")));
    }
    // Leave out re-exported modules of other packages: the rows of those packages have their imports.
    let modules: BTreeSet<String> = found.keys().cloned().collect();
    for imports in found.values_mut() {
        imports.retain(|name| modules.contains(name));
    }
    for (name, path) in packages() {
        found.insert(name, dependencies(&path));
    }
    let mut allowed = Imports::new();
    for (layer, imports) in table() {
        allowed.entry(layer).or_default().extend(imports);
    }
    assert_eq!(found, allowed, "left: the code; right: ARCHITECTURE.md");
}

#[test]
fn every_row_imports_from_rows_above_it() {
    let mut above = BTreeSet::new();
    for (layer, imports) in table() {
        let below: Vec<&String> = imports.difference(&above).collect();
        assert!(below.is_empty(), "{layer} imports {below:?} below it");
        above.insert(layer);
    }
}
