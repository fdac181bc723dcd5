//! The official suites in the unified test format, run against real servers: a standalone, five replica sets of three
//! members, a replica set of one member behind the runner's load balancer, and a standalone and a replica set of one
//! member that require authentication. Both the asynchronous client and the single client run all suites; the rows and
//! failures of the single client are labelled with its name.
//!
//! A case runs on a replica set if its requirements allow that, otherwise on the standalone. The five replica sets
//! take files from one queue, because a case spends most of its time waiting. The servers with authentication run only
//! the cases that require it. A case is skipped, with the reason, if it needs a different deployment, or a feature that
//! wharf or this runner lacks. A case that is known to fail is in the [`ledger`], with the reason; it still runs, and
//! the test fails if it passes. `WHARF_UNIFIED` limits the run to the files and cases whose names contain its value.
//! Such a run also prints the listed failures, and does not check whether each entry of the ledger is used. With
//! `WHARF_CHANGED`, the test runs only the files that the fetched copy lacks or contains in a different form.

#![cfg(not(any(loom, shuttle)))]

mod arguments;
mod calls;
mod case;
mod clients;
mod collections;
mod databases;
mod environment;
mod files;
mod format;
mod kms;
mod ledger;
mod matching;
mod observed;
mod operations;
mod results;
mod servers;
mod sessions;
mod spans;
mod stop;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use case::Case;
use clients::Which;
use environment::Environment;
use format::{Filled, RunOnRequirement, Test, TestFile, Topology};
use observed::{Message, TOPOLOGY, keeping};
use stop::Stop;
use wharf_testbed::edition::{Edition, root};
use wharf_testbed::mongod::{Mongod, MongodOptions};
use wharf_testbed::provision;
use wharf_testbed::table;

/// The suites, by folder.
const SUITES: &[&str] = &[
    "auth/unified",
    "change_streams",
    "client-backpressure",
    "collection_management",
    "command_logging",
    "command_monitoring",
    "crud",
    "csot",
    "discovery_and_monitoring",
    "handshake/unified",
    "load_balancer",
    "read_write_concern",
    "retryable_reads",
    "retryable_writes",
    "run_command",
    "server_selection_logging",
    "sessions",
    "transactions",
    "transactions-convenient-api",
    "unified-test-format/valid-pass",
    "versioned-api",
];

/// The suites that the fetched copy lacks.
const NEWER_SUITES: &[&str] = &["causal_consistency", "gridfs", "index_management", "open_telemetry"];

/// The suites that prefer the load balancer, then the standalone, so that all deployments are busy for about the same
/// time.
const ON_THE_BALANCER: &[&str] = &["crud", "retryable_reads"];

/// The name prefixes of files whose cases set short limits: a few tens of milliseconds for a command, or 250 ms for a
/// handshake that computes a key. On a busy machine, such a limit may expire although the command should have completed
/// in time. A failing case is therefore run again when all others have ended, and must pass in most of [`RUNS`] runs. The
/// tests print which cases were run again.
const WITH_SHORT_LIMITS: &[&str] = &["csot/", "discovery_and_monitoring/unified/auth-network-timeout-error"];

const RUNS: usize = 5;

/// At most one case in this many may be run again. On a busy machine with two cores, about one case in a hundred is run
/// again. If the limit set by an option such as `socketTimeoutMS` sometimes expired too early, this would affect all
/// cases with that option, about one in ten.
const ONE_RUN_AGAIN_IN: usize = 20;

const CLIENTS: [Which; 3] = [Which::Pooled, Which::Single, Which::Blocking];

/// The suites that the blocking client with pools runs. That client consists of parts of the other two clients.
const OF_THE_BLOCKING_CLIENT: &[&str] = &["crud"];

/// The suites that the given clients run on the standalone where possible, for the same reason.
const ON_THE_STANDALONE: &[(&str, &[Which])] = &[
    ("client-backpressure", &[Which::Pooled, Which::Single]),
    ("csot", &[Which::Single]),
    ("handshake/unified", &[Which::Single]),
];

fn on_the_standalone(suite: &str, which: Which) -> bool {
    ON_THE_STANDALONE.iter().any(|(of, clients)| *of == suite && clients.contains(&which))
}

/// The log messages about topologies, from all clients in this process.
pub fn topology_messages() -> &'static Mutex<Vec<Message>> {
    static MESSAGES: OnceLock<Arc<Mutex<Vec<Message>>>> = OnceLock::new();
    MESSAGES.get_or_init(|| {
        let messages = Arc::default();
        tracing::subscriber::set_global_default(keeping(&[TOPOLOGY], Arc::clone(&messages)))
            .expect("the only subscriber of this process");
        messages
    })
}

/// The outcomes of a suite's cases.
#[derive(Default)]
struct Row {
    files: usize,
    cases: usize,
    passed: usize,
    skipped: BTreeMap<String, usize>,
    /// The cases that were run again, each with its last failure.
    run_again: Vec<String>,
    failed: Vec<String>,
}

type Rows = BTreeMap<(&'static str, Which), Row>;

/// A file in a suite.
struct Loaded {
    suite: &'static str,
    name: String,
    file: TestFile,
}

impl Loaded {
    fn has_short_limits(&self) -> bool {
        WITH_SHORT_LIMITS.iter().any(|limited| self.name.starts_with(limited))
    }

    /// Returns the file's name, with the client's name unless it is the usual client.
    fn name(&self, which: Which) -> String {
        match which {
            Which::Pooled => self.name.clone(),
            Which::Single => format!("single client: {}", self.name),
            Which::Blocking => format!("blocking client: {}", self.name),
        }
    }
}

/// Returns the name of a suite's row for one of the clients.
fn title(suite: &str, which: Which) -> String {
    match which {
        Which::Pooled => suite.to_owned(),
        Which::Single => format!("{suite}, single client"),
        Which::Blocking => format!("{suite}, blocking client"),
    }
}

fn json_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(json_files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

/// Reads the files in a suite that are in the unified format.
fn load(suite: &'static str) -> Vec<Loaded> {
    let root = root();
    let fetched = changed_only().then(|| provision::fetched_suites().expect("the fetched suites"));
    let has = |fetched: &Path, name: &str, text: &str| {
        fs::read_to_string(fetched.join(format!("{name}.json"))).is_ok_and(|fetched| fetched == text)
    };
    let mut loaded = Vec::new();
    for path in json_files(&root.join(suite)) {
        let text = fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(root).unwrap().with_extension("").to_str().unwrap().to_owned();
        if text.contains("\"schemaVersion\"") && !fetched.as_ref().is_some_and(|fetched| has(fetched, &name, &text)) {
            let file = TestFile::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
            loaded.push(Loaded { suite, name, file });
        }
    }
    assert!(!loaded.is_empty() || changed_only(), "{suite} has no files");
    loaded
}

#[test]
fn invalid_files_are_refused() {
    let files = json_files(&root().join("unified-test-format/invalid"));
    assert!(files.len() > 200, "the suite has shrunk");
    let is_accepted = |path: &&PathBuf| TestFile::parse(&fs::read_to_string(path).unwrap()).is_ok();
    let accepted: Vec<_> = files.iter().filter(is_accepted).collect();
    assert!(accepted.is_empty(), "{accepted:#?}");
    table::show([table::Row::passed("unified-test-format/invalid", files.len())], "");
}

fn wanted() -> Option<String> {
    std::env::var("WHARF_UNIFIED").ok().filter(|filter| !filter.is_empty())
}

/// Returns whether to leave out the files that both editions contain.
fn changed_only() -> bool {
    std::env::var_os("WHARF_CHANGED").is_some_and(|value| !value.is_empty())
}

fn requirements(of: &Option<Filled<RunOnRequirement>>) -> &[RunOnRequirement] {
    of.as_ref().map_or(&[], |requirements| &requirements.0)
}

fn is_of_topology(refusal: &str) -> bool {
    refusal.starts_with("topology ")
}

/// Returns the environment that a case runs in, or why there is none.
fn place<'e>(
    environments: impl Iterator<Item = &'e Arc<Environment>>,
    file: &TestFile,
    test: &Test,
) -> Result<&'e Arc<Environment>, String> {
    let mut why = None;
    for environment in environments {
        let refusal = environment
            .refuses(requirements(&file.run_on_requirements))
            .or_else(|| environment.refuses(requirements(&test.run_on_requirements)));
        match refusal {
            None => return Ok(environment),
            // If a deployment has the right topology, its missing features are a more useful reason than another
            // deployment's wrong topology. If several deployments have the right topology, report the last deployment's
            // missing features: it is a server with users, which lacks nothing else.
            Some(refusal) if why.as_deref().is_none_or(is_of_topology) || !is_of_topology(&refusal) => {
                why = Some(refusal)
            }
            Some(_) => {}
        }
    }
    Err(format!("needs {}", why.unwrap_or_default()))
}

/// The cases in a file that run in one environment, with one of the clients.
type Group<'f> = (&'f Loaded, Which, Vec<&'f Test>);

type Queue<'f> = VecDeque<Group<'f>>;

/// A case in a file, and the client that runs it.
type Planned<'f> = (&'f Loaded, Which, &'f Test);

fn listed((loaded, which, test): Planned<'_>) -> Option<&'static ledger::Entry> {
    ledger::entry(which, &loaded.name, &test.description)
}

#[test]
fn unified_suites_pass() {
    topology_messages();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let servers = servers::start(&runtime);
    let filter = wanted();
    let is_wanted = |name: &str, test: &str| {
        filter.as_ref().is_none_or(|filter| format!("{name} {test}").contains(filter.as_str()))
    };
    let rows: Mutex<Rows> = Mutex::default();
    let used: Mutex<BTreeSet<(Which, String, String)>> = Mutex::default();
    let lacking: Mutex<BTreeSet<&str>> = Mutex::default();
    let newer = Edition::present().pick(&[][..], NEWER_SUITES);
    let files: Vec<Loaded> = SUITES.iter().chain(newer).flat_map(|suite| load(suite)).collect();
    // A file's cases stay together, grouped by environment.
    let mut queues: Vec<Queue<'_>> = servers.environments.iter().map(|_| VecDeque::new()).collect();
    let runs = |(loaded, which): &(&Loaded, Which)| {
        *which != Which::Blocking || OF_THE_BLOCKING_CLIENT.contains(&loaded.suite)
    };
    let all = files.iter().flat_map(|loaded| CLIENTS.map(|which| (loaded, which)));
    for (loaded, which) in all.filter(runs) {
        let mut rows = rows.lock().unwrap();
        let row = rows.entry((loaded.suite, which)).or_default();
        row.files += 1;
        let mut placed_in = vec![Vec::new(); servers.environments.len()];
        for test in &loaded.file.tests.0 {
            row.cases += 1;
            let placed = match &test.skip_reason {
                Some(reason) => Err(format!("skipped by its file: {reason}")),
                None if ON_THE_BALANCER.contains(&loaded.suite) => {
                    let (others, with_users) = servers.environments.split_at(servers.environments.len() - 2);
                    place(others.iter().rev().chain(with_users), &loaded.file, test)
                }
                None if on_the_standalone(loaded.suite, which) => {
                    let standalone = servers.environments[1..2].iter();
                    place(standalone.chain(&servers.environments), &loaded.file, test)
                }
                None => place(servers.environments.iter(), &loaded.file, test),
            };
            match placed {
                Err(reason) => *row.skipped.entry(reason).or_default() += 1,
                Ok(environment) if is_wanted(&loaded.name(which), &test.description) => {
                    let lane = servers.environments.iter().position(|one| Arc::ptr_eq(one, environment)).unwrap();
                    placed_in[lane].push(test);
                }
                Ok(_) => {}
            }
        }
        for (lane, tests) in placed_in.into_iter().enumerate().filter(|(_, tests)| !tests.is_empty()) {
            queues[lane].push_back((loaded, which, tests));
        }
    }
    // The cases with short limits come last, when some deployments are already idle. These limits leave the server only
    // about 50 ms.
    queues.iter_mut().for_each(|queue| queue.make_contiguous().sort_by_key(|(loaded, ..)| loaded.has_short_limits()));
    let queues: Vec<_> = queues.into_iter().map(Mutex::new).collect();
    // The cases of one deployment share its fail points, so they run one after another.
    let mut lanes: Vec<_> = servers.environments.iter().zip(&queues).collect();
    lanes.extend(servers.other_sets.iter().map(|set| (set, &queues[0])));
    let run = |environment: &Arc<Environment>, planned: Planned<'_>| {
        let (loaded, which, test) = planned;
        let by_chance = listed(planned).is_some_and(|entry| entry.timeout_by_chance);
        runtime.block_on(Case::run(environment, which, &loaded.file, test, by_chance))
    };
    let note = |planned: Planned<'_>, ended| {
        let (loaded, which, test) = planned;
        let name = format!("{}: {}", loaded.name(which), test.description);
        let mut rows = rows.lock().unwrap();
        let row = rows.get_mut(&(loaded.suite, which)).unwrap();
        match (ended, listed(planned)) {
            (Ok(()), None) => row.passed += 1,
            (Ok(()), Some(entry)) if entry.timeout_by_chance => {
                used.lock().unwrap().insert((which, loaded.name.clone(), test.description.clone()));
                row.passed += 1;
            }
            (Ok(()), Some(entry)) => {
                row.failed.push(format!("{name}: passes, but is listed: {}", entry.reason));
            }
            (Err(Stop::Lacks(what)), None) => match ledger::lack(what) {
                Some(reason) => {
                    lacking.lock().unwrap().insert(what);
                    *row.skipped.entry(reason).or_default() += 1;
                }
                None => row.failed.push(format!("{name}: lacks {what}, for which the ledger has no reason")),
            },
            (Err(Stop::Lacks(what)), Some(_)) => {
                row.failed.push(format!("{name}: is listed, but lacks {what}"));
            }
            (Err(stop), Some(entry)) if !entry.timeout_by_chance => {
                if wanted().is_some() {
                    println!("{name} fails as listed: {}", stop.describe());
                }
                used.lock().unwrap().insert((which, loaded.name.clone(), test.description.clone()));
                *row.skipped.entry(entry.reason.to_owned()).or_default() += 1;
            }
            (Err(stop), _) => row.failed.push(format!("{name}: {}", stop.describe())),
        }
    };
    let run_again = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for (environment, queue) in lanes {
            let (run, note, run_again) = (&run, &note, &run_again);
            scope.spawn(move || {
                let began = std::time::Instant::now();
                let groups = std::iter::from_fn(|| queue.lock().unwrap().pop_front());
                let cases =
                    groups.flat_map(|(loaded, which, tests)| tests.into_iter().map(move |test| (loaded, which, test)));
                for planned in cases {
                    let (loaded, which, test) = planned;
                    let began = std::time::Instant::now();
                    let ended = run(environment, planned);
                    if wanted().is_some() || began.elapsed().as_secs() >= 3 {
                        println!("{}: {}: {:?}", loaded.name(which), test.description, began.elapsed());
                    }
                    let must_pass = listed(planned).is_none_or(|entry| entry.timeout_by_chance);
                    if loaded.has_short_limits() && must_pass && has_failed(&ended) {
                        run_again.lock().unwrap().push((environment, planned, ended));
                    } else {
                        note(planned, ended);
                    }
                }
                println!("{:?} on {}: {:?}", environment.topology, environment.uri, began.elapsed());
            });
        }
    });
    for (environment, planned, ended) in run_again.into_inner().unwrap() {
        let (ended, failures) = by_majority(ended, || run(environment, planned));
        note(planned, ended);
        let (loaded, which, test) = planned;
        let failures = format!("{}: {failures}", test.description);
        rows.lock().unwrap().get_mut(&(loaded.suite, which)).unwrap().run_again.push(failures);
    }
    let rows = rows.into_inner().unwrap();
    report(&rows);
    if filter.is_none() {
        let used = used.into_inner().unwrap();
        // If only changed files are run, the entries for the other files are not checked.
        let has_run = |name: &str| !changed_only() || files.iter().any(|loaded| loaded.name == name);
        let is_used = |which, file: &str, case: &str| used.contains(&(which, file.to_owned(), case.to_owned()));
        let unused: Vec<_> =
            ledger::cases().filter(|&(which, file, case)| has_run(file) && !is_used(which, file, case)).collect();
        assert!(unused.is_empty(), "no case needs these entries of the ledger: {unused:#?}");
        let lacking = lacking.into_inner().unwrap();
        let unused: Vec<_> = ledger::lacks().filter(|what| !changed_only() && !lacking.contains(what)).collect();
        assert!(unused.is_empty(), "no case lacks what the ledger says is lacking: {unused:#?}");
        for ((suite, which), Row { run_again, passed, failed, .. }) in &rows {
            let (run_again, most) = (run_again.len(), (passed + failed.len()) / ONE_RUN_AGAIN_IN);
            let most = most.max(usize::from(changed_only()));
            assert!(
                run_again <= most,
                "{}: {run_again} cases were run again, at most {most} may",
                title(suite, *which)
            );
        }
    }
    let failed: Vec<_> = rows.values().flat_map(|row| &row.failed).collect();
    assert!(failed.is_empty(), "{} cases failed", failed.len());
}

fn has_failed(ended: &Result<(), Stop>) -> bool {
    ended.as_ref().is_err_and(|stop| !matches!(stop, Stop::Lacks(_)))
}

/// Repeats a case until most of [`RUNS`] runs have passed, or most have failed. `first` is the outcome of the first
/// run. Returns the outcome of the majority, and a description of the failures.
fn by_majority(first: Result<(), Stop>, run: impl Fn() -> Result<(), Stop>) -> (Result<(), Stop>, String) {
    let (mut ended, mut failures, mut passed) = (first, Vec::new(), 0);
    loop {
        match &ended {
            Ok(()) => passed += 1,
            Err(stop) => failures.push(stop.describe()),
        }
        if passed.max(failures.len()) > RUNS / 2 {
            let last = failures.last().map_or("", String::as_str);
            return (ended, format!("{} of {} runs failed, the last: {last}", failures.len(), failures.len() + passed));
        }
        ended = run();
    }
}

#[test]
fn case_that_fails_must_pass_in_most_of_its_runs() {
    let outcomes = |later: [bool; 4]| {
        let runs = Mutex::new(later.into_iter());
        let outcome = |passes| if passes { Ok(()) } else { Err(Stop::Broken("it failed".to_owned())) };
        by_majority(outcome(false), || outcome(runs.lock().unwrap().next().expect("at most five runs"))).0.is_ok()
    };
    assert!(outcomes([true, true, true, false]) && outcomes([false, true, true, true]));
    assert!(!outcomes([false, false, true, true]) && !outcomes([true, false, true, false]));
}

fn report(rows: &Rows) {
    let mut reasons = String::new();
    for failure in rows.values().flat_map(|row| &row.failed) {
        reasons.push_str(&format!("FAILED {failure}\n"));
    }
    let titles = rows.keys().map(|(suite, which)| title(suite, *which)).collect::<Vec<_>>();
    for (suite, row) in titles.iter().zip(rows.values()) {
        for (reason, count) in &row.skipped {
            reasons.push_str(&format!("{suite}: {count} skipped: {reason}\n"));
        }
        for failure in &row.run_again {
            reasons.push_str(&format!("{suite}: run again, because its time limits are short: {failure}\n"));
        }
    }
    let printed = titles.iter().zip(rows.values()).map(|(suite, row)| table::Row {
        suite,
        files: row.files,
        cases: row.cases,
        passed: row.passed,
        skipped: row.skipped.values().sum(),
        failed: row.failed.len(),
    });
    table::show(printed, &reasons);
}

/// The expected failures of the cases that must fail, by file.
const WAYS_TO_FAIL: &[(&str, &[&str])] = &[
    (
        "assertNumberConnectionsCheckedOut",
        &[
            "needs the string client",
            "needs the number connections",
            "no entity client1",
            "0 connections are in use, not 1",
        ],
    ),
    ("entity-bucket-database-undefined", &["no entity foo"]),
    ("entity-client-apiVersion-unsupported", &["server_will_never_support_this_api_version is not supported"]),
    ("entity-collection-database-undefined", &["no entity foo"]),
    ("entity-database-client-undefined", &["no entity foo"]),
    ("entity-findCursor", &["no entity cursor0"]),
    ("entity-findCursor-malformed", &["needs filter"]),
    ("entity-session-client-undefined", &["no entity foo"]),
    ("ignoreResultAndError", &["E11000 duplicate key"]),
    ("ignoreResultAndError-malformed", &["insertOne needs document"]),
    ("operation-failure", &["no such command: 'unsupportedCommand'", "unknown top level operator"]),
    ("operation-unsupported", &["unsupportedOperation is not an operation"]),
    (
        "operator-matchAsDocument",
        &[
            "json: y: expected \"two\", got 2",
            "json: y: $$exists false does not hold",
            "json: unexpected field y",
            "json: expected {}, got",
            "is not JSON",
        ],
    ),
    ("operator-matchAsRoot", &["x: y: expected 3, got 2"]),
    ("returnDocument-enum-invalid", &["\"invalid\" is not a value of returnDocument"]),
];

#[test]
fn cases_that_must_fail_do_fail() {
    topology_messages();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let standalone = Mongod::start(MongodOptions::default()).unwrap();
    let address = standalone.address().to_string();
    let uri = format!("mongodb://{address}/?");
    let environment = Arc::new(runtime.block_on(Environment::new(uri, Topology::Single, &[address])));
    let (mut files, mut failed, mut skipped) = (0, 0, 0);
    for path in json_files(&root().join("unified-test-format/valid-fail")) {
        files += 1;
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let file = match TestFile::parse(&fs::read_to_string(&path).unwrap()) {
            Ok(file) => file,
            // These are the only files that the parser itself refuses.
            Err(error) => {
                assert!(
                    ["schemaVersion-unsupported", "ignoreResultAndError-malformed"].contains(&&*name)
                        || name.contains("malformed"),
                    "{name}: {error}"
                );
                failed += 1;
                continue;
            }
        };
        for test in &file.tests.0 {
            if place([&environment].into_iter(), &file, test).is_err() {
                skipped += 1;
                continue;
            }
            match runtime.block_on(Case::run(&environment, Which::Pooled, &file, test, false)) {
                Ok(()) => panic!("{name}: {} passes", test.description),
                // These cases fail, but not for the reason that their files are meant to test.
                Err(Stop::Lacks(what)) => {
                    assert!(["client-side encryption"].contains(&what), "{name} lacks {what}");
                    skipped += 1;
                }
                Err(stop) => {
                    let (_, expected) = WAYS_TO_FAIL.iter().find(|(file, _)| *file == name).expect("how a case fails");
                    let failure = stop.describe();
                    let is_expected = expected.iter().any(|text| failure.contains(text));
                    assert!(is_expected, "{name}: {} fails for another reason: {failure}", test.description);
                    failed += 1;
                }
            }
        }
    }
    assert!(failed >= 15, "only {failed} cases failed");
    let row = table::Row { files, skipped, ..table::Row::passed("unified-test-format/valid-fail", failed) };
    table::show([table::Row { cases: failed + skipped, ..row }], "");
}
