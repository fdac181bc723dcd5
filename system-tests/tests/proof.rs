//! Checks that the statements of `loom-tests/tests/loom/main.rs` about models and mutants match the code.
#![cfg(not(any(loom, shuttle)))]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use wharf_loom_tests::mutants::{catalogue, instrument};
use wharf_system_tests::{root, rust_files};

/// Mutants by model, or models by mutant.
type Controls = BTreeMap<String, BTreeSet<String>>;

/// The functions that a hit and its check-in execute, each with its file. Each of them needs a negative control.
const HIT_PATH: &[(&str, &str)] = &[
    ("pool/core/acquire.rs", "fn try_hit"),
    ("pool/core/nearby.rs", "fn put_back"),
    ("pool/core/nearby.rs", "fn note_own_shard"),
    ("pool/core/shard.rs", "fn pop_from"),
    ("pool/core/shard.rs", "fn put_back"),
    ("pool/core/shard.rs", "fn try_pop"),
    ("pool/core/shard.rs", "fn try_push"),
    ("pool/core/shard.rs", "fn push_onto"),
    ("pool/core/shard.rs", "fn swap"),
    ("pool/core/shard.rs", "fn next"),
    ("pool/core/shard.rs", "fn load"),
    ("pool/core/slab.rs", "fn set_link"),
    ("pool/core/slab.rs", "fn stamp"),
    ("pool/core/state.rs", "fn load"),
    ("pool/core/lease.rs", "fn check_in("),
    ("pool/core/nearby.rs", "fn push("),
];

#[test]
fn every_mutant_has_a_negative_control() {
    let all = controls().into_values().chain(shuttle_controls().into_values());
    let controlled: BTreeSet<String> = all.flatten().collect();
    let instrumented = |(file, text): (&PathBuf, &String)| instrument(file, text).unwrap_or_else(|why| panic!("{why}"));
    let present: BTreeSet<String> = sources().iter().flat_map(|source| mutants_in(&instrumented(source))).collect();
    assert!(present.len() > 80, "only {} mutants found: does the test read the right files?", present.len());
    assert_eq!(present, controlled, "mutants in src and in the catalogue (left) and in the list of controls (right)");
}

/// With the `event-listener-queue` feature, CI runs only some of the controls.
#[test]
fn ci_runs_a_control_of_every_mutant_that_exists_only_with_events() {
    let file = Path::new("pool/core/waitlist/event.rs");
    let text = instrument(file, &read(&root().join("src").join(file))).unwrap_or_else(|why| panic!("{why}"));
    let commands = read(&root().join(".ci/models"));
    let words = commands.split_once("WHARF_LOOM_CONTROLS=").expect("CI selects the controls").1;
    let words: Vec<&str> = words.split_whitespace().next().expect("a list of words").split(',').collect();
    let is_run = |model: &str| words.iter().any(|word| model.starts_with(word));
    let run: BTreeSet<String> =
        controls().into_iter().filter(|(model, _)| is_run(model)).flat_map(|(_, mutants)| mutants).collect();
    let only_with_events = mutants_in(&text);
    assert!(only_with_events.len() > 1, "does the test read the right file?");
    assert!(only_with_events.is_subset(&run), "{only_with_events:?} in {}, of which CI runs {run:?}", file.display());
}

#[test]
fn every_fragment_of_the_catalogue_is_in_its_file_exactly_once() {
    let files: BTreeSet<&Path> = catalogue().map(|mutant| Path::new(mutant.file)).collect();
    let texts = files.into_iter().map(|file| instrument(file, &read(&root().join("src").join(file))));
    let complaints: Vec<String> = texts.filter_map(Result::err).collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn every_name_of_the_catalogue_is_one_mutant() {
    let in_source: BTreeSet<String> = sources().values().flat_map(|text| mutants_in(text)).collect();
    let mut names = BTreeSet::new();
    for mutant in catalogue() {
        let name = mutant.name;
        assert!(names.insert(name), "{name} is in the catalogue twice");
        assert!(!in_source.contains(name), "{name} is in src and in the catalogue");
        assert!(!mutant.edits.is_empty(), "{name} changes nothing");
        assert!(mutant.does.ends_with('.'), "{name} does not say what it does: {:?}", mutant.does);
    }
}

#[test]
fn sources_weaken_orderings_and_nothing_else() {
    for (file, text) in sources() {
        if file == Path::new("pool/sync.rs") {
            continue;
        }
        let code = text.lines().map(|line| line.split("//").next().unwrap());
        for line in code {
            let asks = line.replace("unless_mutant(", "").contains("mutant(");
            assert!(!asks, "src/{}: move this mutant to loom-tests/src/mutants: {line}", file.display());
        }
    }
}

#[test]
fn every_negative_control_names_a_model() {
    let models = models();
    for model in controls().keys() {
        assert!(models.contains(model), "{model} is not a model");
    }
}

#[test]
fn every_model_has_a_negative_control() {
    let controls = controls();
    let without: Vec<_> = models().into_iter().filter(|model| !controls.contains_key(model)).collect();
    assert_eq!(without, [""; 0], "a model that no mutant fails proves nothing");
}

#[test]
fn table_lists_every_model_with_its_mutants() {
    let listed: Controls = table().into_iter().map(|row| (row.model, row.mutants)).collect();
    let by_name = |name: String| name.rsplit("::").next().unwrap().to_owned();
    let present: Controls = controls().into_iter().map(|(model, mutants)| (by_name(model), mutants)).collect();
    for (model, mutants) in &present {
        assert_eq!(listed.get(model), Some(mutants), "the row of {model}");
    }
    assert_eq!(listed.len(), present.len(), "number of rows (left) and of models (right)");
}

#[test]
fn table_states_the_bounds_of_the_models() {
    let rows: BTreeMap<String, String> = table().into_iter().map(|row| (row.model, row.bound)).collect();
    let mut compared = 0;
    for file in rust_files(&root().join("loom-tests/tests/loom/models")) {
        // A model whose name is a parameter gets its bound from the function that runs it.
        for call in read(&file).split("model(\"").skip(1) {
            let (name, arguments) = call.split_once("\", ").expect("a model without a bound");
            let bound = arguments.split_once(", ").expect("a model without a body").0;
            let bound = bound.trim_start_matches("Some(").trim_end_matches(')').to_lowercase();
            assert_eq!(rows.get(name), Some(&bound), "the bound of {name}");
            compared += 1;
        }
    }
    // The second bound of a model applies to the wait list on event-listener.
    let harness = read(&root().join("loom-tests/tests/loom/models/harness.rs"));
    let list = harness.split_once("BOUNDS_WITH_EVENT_LISTENER").expect("the list of smaller bounds is missing").1;
    let list = list.split_once("];").expect("the list of smaller bounds has no end").0;
    let entries = list.split("(\"").skip(1).map(|entry| entry.split_once("\", ").expect("an entry without a bound"));
    let smaller: BTreeMap<&str, &str> =
        entries.map(|(name, rest)| (name, rest.split(')').next().expect("an entry without an end"))).collect();
    let stated: BTreeMap<String, String> =
        table().into_iter().filter_map(|row| Some((row.model, row.smaller_bound?))).collect();
    let stated: BTreeMap<&str, &str> = stated.iter().map(|(name, bound)| (name.as_str(), bound.as_str())).collect();
    assert_eq!(stated, smaller, "the second bounds of the table (left) and of the harness (right)");
    assert!(compared > 50, "only {compared} models found: does the test read the right files?");
}

#[test]
fn table_explains_every_path_that_a_model_runs() {
    let words = words();
    for row in table() {
        assert!(!row.runs.is_empty(), "{} runs nothing", row.model);
        for run in row.runs {
            assert!(words.contains(&run), "{} runs {run:?}, which the list of paths does not explain", row.model);
        }
    }
}

#[test]
fn every_function_of_the_hit_path_has_a_negative_control() {
    let controlled: BTreeSet<String> = controls().into_values().flatten().collect();
    for (file, function) in HIT_PATH {
        let source = read(&root().join("src").join(file));
        let text = instrument(Path::new(file), &source).unwrap_or_else(|why| panic!("{why}"));
        let start = text.find(function).unwrap_or_else(|| panic!("{file} has no {function}"));
        let body = body(&text[start..]);
        let mutants = mutants_in(body);
        assert!(!mutants.is_empty(), "{function} of {file} has no mutant");
        assert!(mutants.is_subset(&controlled), "{function} of {file}: {mutants:?}");
    }
}

/// One row of the table of models.
struct Row {
    model: String,
    /// The preemption bound, or `none`.
    bound: String,
    /// The bound with the wait list on event-listener. The table states it in parentheses if it differs.
    smaller_bound: Option<String>,
    runs: Vec<String>,
    mutants: BTreeSet<String>,
}

fn table() -> Vec<Row> {
    let text = read(&root().join("loom-tests/tests/loom/main.rs"));
    let lines = text.lines().filter_map(|line| line.strip_prefix("//! | `"));
    let rows = lines.map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [model, runs, bound, mutants, _] = cells[..] else { panic!("unexpected shape of a row: {line}") };
        let (bound, smaller) = bound.split_once(" (").map_or((bound, None), |(bound, smaller)| (bound, Some(smaller)));
        Row {
            model: model.trim_matches('`').to_owned(),
            bound: bound.to_owned(),
            smaller_bound: smaller.map(|smaller| smaller.trim_end_matches(')').to_owned()),
            runs: runs.split(',').map(|run| run.trim().to_owned()).filter(|run| !run.is_empty()).collect(),
            mutants: mutants.split(',').map(|mutant| mutant.trim().trim_matches('`').to_owned()).collect(),
        }
    });
    rows.collect()
}

/// Returns the terms that the first table uses for what the models run.
fn words() -> BTreeSet<String> {
    let text = read(&root().join("loom-tests/tests/loom/main.rs"));
    let rows = text.lines().filter_map(|line| line.strip_prefix("//! | *")?.split_once('*'));
    rows.map(|(word, _)| word.to_owned()).collect()
}

/// Returns the mutants that are negative controls of the loom models, by model.
fn controls() -> Controls {
    controls_in("loom-tests/tests/loom/models/controls.rs", "const CONTROLS")
}

/// Returns the mutants that are negative controls of the tests with shuttle, by test.
fn shuttle_controls() -> Controls {
    controls_in("loom-tests/tests/shuttle.rs", "const MUTANTS")
}

fn controls_in(file: &str, list: &str) -> Controls {
    let text = read(&root().join(file));
    let list = text.split_once(list).expect("the list of controls is missing").1;
    let list = list.split_once("];").expect("the list of controls has no end").0;
    let mut controls = Controls::new();
    let quoted: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
    for pair in quoted.chunks(2) {
        let [mutant, model] = pair else { panic!("a control without a model: {pair:?}") };
        assert!(
            controls.entry((*model).to_owned()).or_default().insert((*mutant).to_owned()),
            "{pair:?} is listed twice"
        );
    }
    controls
}

/// Returns the models, as `file::function`.
fn models() -> BTreeSet<String> {
    let mut models = BTreeSet::new();
    for file in rust_files(&root().join("loom-tests/tests/loom/models")) {
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        if name == "controls" {
            continue;
        }
        let text = read(&file);
        for test in text.split("#[test]").skip(1) {
            let function = test.split_once("fn ").expect("a #[test] without a function").1;
            models.insert(format!("{name}::{}", function.split('(').next().unwrap()));
        }
    }
    models
}

/// Returns the files in `src`, by path, with their contents.
fn sources() -> BTreeMap<PathBuf, String> {
    let source = root().join("src");
    let relative = |file: &Path| file.strip_prefix(&source).unwrap().to_owned();
    rust_files(&source).into_iter().map(|file| (relative(&file), read(&file))).collect()
}

/// Returns the names in calls to `mutant` and `unless_mutant`.
fn mutants_in(code: &str) -> BTreeSet<String> {
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code: String = lines.collect::<Vec<_>>().join(" ");
    let mut mutants = BTreeSet::new();
    for given in code.split("mutant(").skip(1) {
        if let Some(name) = given.trim_start().strip_prefix('"') {
            mutants.insert(name.split('"').next().unwrap().to_owned());
        }
    }
    mutants
}

/// Returns the text up to the brace that closes the first open brace.
fn body(text: &str) -> &str {
    let mut depth = 0;
    for (at, character) in text.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 1 => return &text[..at],
            '}' => depth -= 1,
            _ => {}
        }
    }
    panic!("the function has no end")
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}
