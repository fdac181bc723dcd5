//! Reads the sources to find out which modules of the library use each other. Tests are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use wharf_system_tests::{root, rust_files};

/// The path of a module without `crate`, such as `pool::core::lease`. The root's path is empty.
pub type Module = String;

/// The modules that a module uses, for each module.
pub type Uses = BTreeMap<Module, BTreeSet<Module>>;

/// The names that modules re-export, each with the module that it comes from.
type Exports = BTreeMap<(Module, String), Module>;

/// Reads the sources.
pub fn uses() -> Uses {
    let codes = codes();
    let paths: BTreeMap<&Module, Vec<Named>> = codes.iter().map(|(module, code)| (module, paths(code))).collect();
    let mut exports = Exports::new();
    // A re-export may refer to another re-export. Each pass resolves one more level, and rooms are not nested any
    // deeper than that.
    for _ in 0..4 {
        let mut found = Exports::new();
        for (&module, paths) in &paths {
            for path in paths.iter().filter(|path| path.is_export) {
                let from = resolve(module, &path.segments, &codes, &exports);
                if let (Some(from), Some(name)) = (from.filter(|from| from != module), path.segments.last()) {
                    found.insert((module.clone(), name.clone()), from);
                }
            }
        }
        exports = found;
    }
    let used = |module: &Module, paths: Vec<Named>| -> BTreeSet<Module> {
        let all = paths.iter().filter_map(|path| resolve(module, &path.segments, &codes, &exports));
        all.filter(|used| used != module).collect()
    };
    paths.into_iter().map(|(module, paths)| (module.clone(), used(module, paths))).collect()
}

/// Returns the groups of modules that use each other, directly or through other modules in the group. A use of a module
/// by the module that contains it is ignored.
pub fn circles(uses: &Uses) -> BTreeSet<BTreeSet<Module>> {
    let is_inside = |inner: &str, outer: &str| inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with("::"));
    let reached = |from: &Module| {
        let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(module) = next.pop() {
            let new = uses[module].iter().filter(|used| !is_inside(used, module) && !module.is_empty());
            next.extend(new.filter(|used| reached.insert((*used).clone())));
        }
        reached
    };
    let reached: Uses = uses.keys().map(|module| (module.clone(), reached(module))).collect();
    let circle = |module: &Module| -> BTreeSet<Module> {
        reached[module].iter().filter(|other| reached[*other].contains(module)).cloned().collect()
    };
    uses.keys().map(circle).filter(|circle| circle.len() > 1).collect()
}

/// Returns the code of each module, without comments and tests.
fn codes() -> BTreeMap<Module, String> {
    let source = root().join("src");
    let files = rust_files(&source);
    let named = files.iter().map(|file| (module_of(file.strip_prefix(&source).unwrap()), file));
    let is_test = |module: &Module| module.split("::").any(|part| part == "tests" || part.ends_with("_tests"));
    named.filter(|(module, _)| !is_test(module)).map(|(module, file)| (module, code(file))).collect()
}

fn module_of(file: &Path) -> Module {
    let path = file.with_extension("");
    let parts: Vec<&str> = path.iter().map(|part| part.to_str().unwrap()).collect();
    match &parts[..] {
        ["lib"] => Module::new(),
        [outer @ .., "mod"] => outer.join("::"),
        all => all.join("::"),
    }
}

fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let is_test =
        |pair: &[&str]| pair[0].starts_with("#[cfg(") && pair[0].contains("test") && pair[1].ends_with("mod tests {");
    let end = lines.windows(2).position(is_test).unwrap_or(lines.len());
    lines[..end].join("\n")
}

/// A path in the code, either in an import or in an expression.
struct Named {
    segments: Vec<String>,
    is_export: bool,
}

/// Returns the paths that a file contains.
fn paths(code: &str) -> Vec<Named> {
    let mut paths = Vec::new();
    for statement in code.split(';') {
        // If the text before a semicolon contains an import, it ends with that import. Attributes and blocks may
        // precede the import.
        let Some((before, tree)) = statement.rsplit_once("use ") else { continue };
        let line = before.rsplit('\n').next().unwrap();
        let is_export = line.trim().starts_with("pub");
        if line.trim().is_empty() || is_export {
            let mut all = Vec::new();
            // In a module inside the file, `super` is the file's own module.
            let tree = if line.starts_with(' ') { tree.replacen("super::", "self::", 1) } else { tree.to_owned() };
            expand(&[], &tree, &mut all);
            paths.extend(all.into_iter().map(|segments| Named { segments, is_export }));
        }
    }
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start).filter(|(at, _)| !code[..*at].ends_with("use ")) {
            let text: String =
                code[at..].chars().take_while(|&char| char.is_alphanumeric() || char == '_' || char == ':').collect();
            let segments = text.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
            paths.push(Named { segments, is_export: false });
        }
    }
    paths
}

/// Adds the paths in an import tree.
fn expand(before: &[String], tree: &str, paths: &mut Vec<Vec<String>>) {
    let parts =
        |text: &str| text.split("::").map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect();
    let Some((head, rest)) = tree.split_once('{') else {
        let plain = tree.split(" as ").next().unwrap();
        let path: Vec<String> = parts(plain);
        return paths.push([before, &path].concat());
    };
    let head: Vec<String> = parts(head);
    let (mut depth, mut branch) = (0, String::new());
    for char in rest.rsplit_once('}').map_or(rest, |(inside, _)| inside).chars().chain([',']) {
        depth += i32::from(char == '{') - i32::from(char == '}');
        match char {
            ',' if depth == 0 => {
                let branch = std::mem::take(&mut branch);
                if !branch.trim().is_empty() {
                    expand(&[before, &head].concat(), &branch, paths);
                }
            }
            char => branch.push(char),
        }
    }
}

/// Resolves a path that is used in `module`. Returns the module that contains the item, or `None` if the item is in
/// another crate.
fn resolve(module: &Module, path: &[String], codes: &BTreeMap<Module, String>, exports: &Exports) -> Option<Module> {
    let outer = |module: &str| module.rsplit_once("::").map_or(String::new(), |(outer, _)| outer.to_owned());
    let join = |outer: &str, name: &str| if outer.is_empty() { name.to_owned() } else { format!("{outer}::{name}") };
    let (mut at, mut rest) = match path.split_first()? {
        (first, rest) if first == "crate" => (Module::new(), rest),
        (first, rest) if first == "self" => (module.clone(), rest),
        (first, rest) if first == "super" => (outer(module), rest),
        (first, _) if codes.contains_key(&join(module, first)) => (module.clone(), path),
        _ => return None,
    };
    while let Some((name, after)) = rest.split_first() {
        let inner = join(&at, name);
        at = match name.as_str() {
            "super" => outer(&at),
            _ if codes.contains_key(&inner) => inner,
            _ => match exports.get(&(at.clone(), name.clone())) {
                Some(from) => from.clone(),
                None => return Some(at),
            },
        };
        rest = after;
    }
    Some(at)
}
