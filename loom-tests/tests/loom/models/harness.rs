//! Runs a model: applies its bound, counts its executions, and reports a failure to the negative controls.

use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use loom::model::Builder;

/// The environment variable that names the mutant in a negative control; see `src/pool/sync.rs`.
pub const MUTANT: &str = "WHARF_MUTANT";

/// The environment variable that replaces the preemption bound of the bounded models. `none` removes the bound.
const BOUND: &str = "WHARF_LOOM_BOUND";

/// The strings that a model prints when it starts and when it fails.
pub const STARTED: &str = "model started:";
pub const FAILED: &str = "model failed:";

/// The models that have a smaller bound when the wait list is built on event-listener. A wait then takes more steps,
/// and with its usual bound each of these models would take half a minute or more.
pub const BOUNDS_WITH_EVENT_LISTENER: &[(&str, usize)] = &[
    ("pending_count_drops_after_the_connection_is_available", 4),
    ("pending_count_drops_after_the_connection_is_available_on_another_shard", 4),
];

/// Explores all executions with up to `bound` preemptions (`None`: all executions), and prints their number.
pub fn model(name: &'static str, bound: Option<usize>, execution: impl Fn() + Send + Sync + 'static) {
    explore(name, bound, Arc::new(execution));
}

/// Not generic, so that loom's explorer is compiled once and not for each model.
fn explore(name: &'static str, bound: Option<usize>, execution: Arc<dyn Fn() + Send + Sync>) {
    let smaller = BOUNDS_WITH_EVENT_LISTENER.iter().find(|(model, _)| *model == name);
    let smaller = smaller.filter(|_| cfg!(feature = "event-listener-queue")).map(|&(_, bound)| bound);
    let bound = smaller.or(bound);
    let bound = bound.and_then(|bound| match std::env::var(BOUND).as_deref() {
        Ok("none") => None,
        Ok(deeper) => Some(deeper.parse().expect("WHARF_LOOM_BOUND must be a number or none")),
        Err(_) => Some(bound),
    });
    let mut builder = Builder::new();
    builder.max_branches = 20_000;
    // A truncated run proves nothing, so loom's environment variables must not truncate it.
    builder.max_duration = None;
    builder.max_permutations = None;

    let (iterations, started) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let mut check = |bound| {
        let (execution, iterations) = (execution.clone(), iterations.clone());
        builder.preemption_bound = bound;
        builder.check(move || {
            iterations.fetch_add(1, Ordering::Relaxed);
            execution();
        });
    };
    println!("{STARTED} {name}");
    if std::env::var_os(MUTANT).is_some() {
        report_failure(name, iterations.clone());
        // Most mutants need fewer preemptions than the bound, and those executions are soon explored.
        (1..bound.unwrap_or(0)).for_each(|fewer| check(Some(fewer)));
    }
    check(bound);
    let bound = bound.map_or("none".into(), |bound| bound.to_string());
    let iterations = iterations.load(Ordering::Relaxed);
    println!("{name} bound={bound} iterations={iterations} time={:.2?}", started.elapsed());
}

/// Installs a panic hook that prints the panic on one line, because a failing model may abort the process right after
/// its first panic.
fn report_failure(name: &'static str, iterations: Arc<AtomicU64>) {
    let earlier = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        let message = panic.payload_as_str().unwrap_or("a panic without a message");
        let message = message.lines().map(str::trim).collect::<Vec<_>>().join(" ");
        println!("{FAILED} {name} iterations={} {message}", iterations.load(Ordering::Relaxed));
        earlier(panic);
    }));
}
