//! The specifications' prose tests. `prose.txt` lists each of them with the tests that run it, or with the reason why
//! there are none.
//!
//! A line that begins with `==` names a document in the specifications: its path, the heading above its prose tests,
//! and the form of their titles. The titles are the innermost `headings`, the `sections` (headings of the next level),
//! numbered `items`, or lines with `emphasis`; with `itself`, the heading is the only test. `none` says that the
//! document has no prose tests.
//!
//! Below this line, each prose test has a line with its title, which may be shortened. The tests that run it follow,
//! each on an indented line: the file, a space and the function. `not:` introduces the reason there is no test, and
//! `but:` introduces the parts that the tests leave out.
//!
//! The package with the suites does not contain the documents. `WHARF_SPECIFICATIONS` names the `source` folder of the
//! specifications' repository. If the variable is set, the titles are compared with the list. The list must also name
//! every document that belongs to the specifications' tests, or that has a test plan or prose tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use wharf_testbed::table;

const LIST: &str = include_str!("prose.txt");

/// A document in the specifications.
#[derive(Debug)]
struct Text {
    path: &'static str,
    /// The heading above the prose tests; empty for the whole document.
    under: &'static str,
    kind: &'static str,
    tests: Vec<Prose>,
}

/// A prose test.
#[derive(Debug)]
struct Prose {
    title: &'static str,
    /// Files and functions.
    run_by: Vec<(&'static str, &'static str)>,
    not: Option<&'static str>,
    but: Option<&'static str>,
}

fn read(list: &'static str) -> Vec<Text> {
    let mut texts: Vec<Text> = Vec::new();
    for line in list.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        if let Some(header) = line.strip_prefix("== ") {
            let mut fields = header.split('|').map(str::trim);
            let [path, under, kind] = [(); 3].map(|()| fields.next().unwrap_or_else(|| panic!("three fields: {line}")));
            assert!(["headings", "sections", "items", "emphasis", "itself", "none"].contains(&kind), "{line}");
            texts.push(Text { path, under, kind, tests: Vec::new() });
            continue;
        }
        let text = texts.last_mut().expect("a text before its tests");
        let Some(detail) = line.strip_prefix("    ") else {
            text.tests.push(Prose { title: line, run_by: Vec::new(), not: None, but: None });
            continue;
        };
        let test = text.tests.last_mut().expect("a title before its tests");
        if let Some(reason) = detail.strip_prefix("not: ") {
            test.not = Some(reason);
        } else if let Some(rest) = detail.strip_prefix("but: ") {
            test.but = Some(rest);
        } else {
            test.run_by.push(detail.split_once(' ').unwrap_or_else(|| panic!("a file and a function: {line}")));
        }
    }
    texts
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a package in the repository").to_owned()
}

/// Returns whether the source contains a test function with this name.
fn has_test(source: &str, function: &str) -> bool {
    let declaration = format!("fn {function}(");
    source.match_indices(&declaration).any(|(at, _)| {
        // A function's attributes are between its declaration and the previous item.
        let before = &source[..at];
        let before = &before[before.rfind(['}', ';']).map_or(0, |end| end + 1)..];
        before.contains("#[test]") || before.contains("#[tokio::test")
    })
}

#[test]
fn every_prose_test_has_a_test_or_a_reason() {
    let texts = read(LIST);
    let mut sources: BTreeMap<&str, String> = BTreeMap::new();
    let mut problems = Vec::new();
    let (mut lines, mut reasons) = (String::from("\n"), String::new());
    for text in &texts {
        assert_eq!(text.tests.is_empty(), text.kind == "none", "{}", text.path);
        let mut titles = BTreeSet::new();
        for test in &text.tests {
            let name = format!("{}, {:?}", text.path, test.title);
            if !titles.insert(test.title) {
                problems.push(format!("{name} is listed twice"));
            }
            if test.run_by.is_empty() == test.not.is_none() {
                problems.push(format!("{name} needs either tests or a reason"));
            }
            for &(file, function) in &test.run_by {
                let source = sources.entry(file).or_insert_with(|| {
                    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{name}: {file}: {error}"))
                });
                if !has_test(source, function) {
                    problems.push(format!("{name}: {file} has no test {function}"));
                }
            }
            for (word, reason) in [("not run", test.not), ("in part", test.but)] {
                if let Some(reason) = reason {
                    reasons.push_str(&format!("{}: {word}: {}: {reason}\n", text.path, test.title));
                }
            }
        }
        if text.kind != "none" {
            let run = text.tests.iter().filter(|test| test.not.is_none()).count();
            let of = text.tests.len();
            let name = format!("{} {}", text.path, text.under);
            lines.push_str(&format!("prose {name:<100} {of:>3} tests {run:>3} run {:>3} not\n", of - run));
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
    table::print(&(lines + &reasons));
}

#[test]
fn titles_are_those_of_the_specifications() {
    let Some(folder) = std::env::var_os("WHARF_SPECIFICATIONS").filter(|folder| !folder.is_empty()) else {
        table::print("\nprose tests: the titles are not compared, because WHARF_SPECIFICATIONS is not set\n");
        return;
    };
    let folder = Path::new(&folder);
    let texts = read(LIST);
    let mut problems = Vec::new();
    for path in markdown_files(folder) {
        let markdown = fs::read_to_string(folder.join(&path)).unwrap();
        let of_path: Vec<_> = texts.iter().filter(|text| text.path == path).collect();
        problems.extend(unlisted(&path, &markdown, &of_path));
    }
    for text in texts.iter().filter(|text| text.kind != "none") {
        let markdown = fs::read_to_string(folder.join(text.path)).unwrap();
        let titles = titles(&markdown, text.under, text.kind);
        assert!(!titles.is_empty(), "{} has no {:?} with {}", text.path, text.under, text.kind);
        // If one title is the beginning of another, the shorter title comes first in the document, so each entry takes
        // the first remaining match.
        let mut left: Vec<_> = titles.iter().map(String::as_str).collect();
        for test in &text.tests {
            match left.iter().position(|title| title.starts_with(test.title)) {
                Some(position) => drop(left.remove(position)),
                None => problems.push(format!("{} has no {:?}", text.path, test.title)),
            }
        }
        problems.extend(left.iter().map(|title| format!("{}: {title:?} is not listed", text.path)));
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

/// Returns the paths of all documents below the folder.
fn markdown_files(folder: &Path) -> Vec<String> {
    let mut folders = vec![folder.to_owned()];
    let mut files = Vec::new();
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                files.push(path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    files.sort();
    files
}

/// Returns the parts of a document that the list lacks: the document itself, or a heading above prose tests. `listed`
/// holds the document's entries.
fn unlisted(path: &str, markdown: &str, listed: &[&Text]) -> Vec<String> {
    let mut is_code = false;
    let headings = markdown.lines().filter(|line| {
        is_code ^= line.trim_start().starts_with("```");
        !is_code && line.starts_with('#')
    });
    let headings: Vec<_> = headings.map(|line| line.trim_start_matches('#').trim()).collect();
    let has = |heading: &str, words: &[&str]| words.iter().any(|word| heading.to_lowercase().contains(word));
    if listed.is_empty() {
        let is_test = path.contains("/tests/") || path.ends_with("-tests.md");
        let plan = headings.iter().find(|heading| has(heading, &["prose", "test plan"]));
        return match plan {
            Some(plan) => vec![format!("{path} is not listed, but has {plan:?}")],
            None if is_test => vec![format!("{path} is not listed, but is among the tests")],
            None => Vec::new(),
        };
    }
    let covers = |text: &Text, heading: &str| {
        let is_title = text.tests.iter().any(|test| heading.starts_with(test.title));
        text.kind != "none" && (text.under.is_empty() || text.under == heading || is_title)
    };
    let is_left = |heading: &&&str| has(heading, &["prose"]) && !listed.iter().any(|text| covers(text, heading));
    let left = headings.iter().filter(is_left);
    left.map(|heading| format!("{path}: no entry has the tests below {heading:?}")).collect()
}

/// Returns the titles of the prose tests below a heading.
fn titles(markdown: &str, under: &str, kind: &str) -> Vec<String> {
    let level = |line: &str| match line.chars().take_while(|&character| character == '#').count() {
        0 => None,
        level => line[level..].starts_with(' ').then_some(level),
    };
    let heading = |line: &str| line.trim_start_matches('#').trim().to_owned();
    let mut lines = markdown.lines().peekable();
    let mut top = 0;
    if !under.is_empty() {
        let found = lines.by_ref().find(|line| level(line).is_some() && heading(line) == under);
        top = level(found.unwrap_or_else(|| panic!("no heading {under:?}"))).unwrap_or(0);
    }
    // Code may contain lines that begin with a hash.
    let mut is_code = false;
    let mut section = Vec::new();
    for line in lines {
        is_code ^= line.trim_start().starts_with("```");
        if is_code {
            continue;
        }
        if level(line).is_some_and(|level| level <= top) {
            break;
        }
        section.push(line);
    }
    // A prose test that was removed keeps its number in the document.
    section.retain(|line| !line.contains("*Removed*") && !line.contains("REMOVED"));
    let is_item = |line: &&str| {
        line.split_once(". ")
            .is_some_and(|(number, _)| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    match kind {
        "itself" => vec![under.to_owned()],
        "items" => section.into_iter().filter(is_item).map(str::to_owned).collect(),
        "emphasis" => {
            let titles = section.into_iter().filter_map(|line| line.strip_prefix('*')?.strip_suffix('*'));
            titles.map(|title| title.trim_matches('*').to_owned()).collect()
        }
        "sections" => {
            let is_next = |line: &&str| level(line) == Some(top + 1);
            section.into_iter().filter(is_next).map(heading).collect()
        }
        _ => {
            let headings: Vec<_> = section.into_iter().filter_map(|line| Some((level(line)?, heading(line)))).collect();
            let has_own =
                |position: usize| headings.get(position + 1).is_none_or(|next| next.0 <= headings[position].0);
            let leaves = (0..headings.len()).filter(|&position| has_own(position));
            leaves.map(|position| headings[position].1.clone()).filter(|title| title != "Changelog").collect()
        }
    }
}

#[test]
fn function_counts_as_a_test_only_with_its_attribute() {
    let source =
        "#[test]\nfn first() {}\n\nfn second() {}\n\n#[tokio::test(start_paused = true)]\nasync fn third() {}\n";
    assert_eq!(["first", "second", "third", "fourth"].map(|name| has_test(source, name)), [true, false, true, false]);
}

#[test]
fn titles_are_read_from_headings_items_and_emphasis() {
    let markdown = "# A\n\n## Tests\n\n### 1. One\n\n1. step\n\n```\n# no heading\n```\n\n### 2. Two\n\n#### 2.1 x\n\n*Test 1: y*\n\n**Test 2: z**\n\n### 3. *Removed*\n\n## Later\n\n### 3. z\n";
    assert_eq!(titles(markdown, "Tests", "headings"), ["1. One", "2.1 x"]);
    assert_eq!(titles(markdown, "Tests", "items"), ["1. step"]);
    assert_eq!(titles(markdown, "Tests", "emphasis"), ["Test 1: y", "Test 2: z"]);
    assert_eq!(titles(markdown, "Tests", "sections"), ["1. One", "2. Two"]);
}

#[test]
fn text_with_prose_tests_must_be_listed_with_all_of_them() {
    let plan = "# A\n\n## Test Plan\n\n```\n# prose\n```\n";
    let prose = "# A\n\n## Prose Tests\n\n### 1. x\n\n## More Prose Tests\n\n### 2. y\n";
    let of = |list: &'static str, path: &str, markdown: &str| {
        unlisted(path, markdown, &read(list).iter().collect::<Vec<_>>())
    };
    assert_eq!(of("", "a/a.md", plan), [r#"a/a.md is not listed, but has "Test Plan""#]);
    assert_eq!(of("", "a/tests/README.md", "# A\n"), ["a/tests/README.md is not listed, but is among the tests"]);
    assert!(of("", "a/a.md", "# A\n").is_empty() && of("== a/a.md | | none", "a/a.md", plan).is_empty());
    let left = |heading: &str| format!("a/a.md: no entry has the tests below {heading:?}");
    assert_eq!(of("== a/a.md | | none", "a/a.md", prose), [left("Prose Tests"), left("More Prose Tests")]);
    assert_eq!(of("== a/a.md | Prose Tests | sections\n1. x", "a/a.md", prose), [left("More Prose Tests")]);
}
