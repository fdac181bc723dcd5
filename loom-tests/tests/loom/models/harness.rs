//! Running a model: its bound, its counts, and how a failure is reported to the negative controls.

use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use loom::model::Builder;

/// Names the mutant in a negative control; see `src/sync.rs`.
pub const MUTANT: &str = "WHARF_MUTANT";

/// Replaces the preemption bound of the bounded models; `none` takes it away.
const BOUND: &str = "WHARF_LOOM_BOUND";

/// What a model prints when it starts, and when it fails.
pub const STARTED: &str = "model started:";
pub const FAILED: &str = "model failed:";

/// Explores all executions with up to `bound` preemptions (`None`: all there are) and prints how many that were.
pub fn model(name: &'static str, bound: Option<usize>, execution: impl Fn() + Send + Sync + 'static) {
    let bound = bound.and_then(|bound| match std::env::var(BOUND).as_deref() {
        Ok("none") => None,
        Ok(deeper) => Some(deeper.parse().expect("WHARF_LOOM_BOUND is a number or none")),
        Err(_) => Some(bound),
    });
    let mut builder = Builder::new();
    builder.preemption_bound = bound;
    builder.max_branches = 20_000;
    // A truncated pass is no pass, whatever the environment says.
    builder.max_duration = None;
    builder.max_permutations = None;

    let iterations = Arc::new(AtomicU64::new(0));
    if std::env::var_os(MUTANT).is_some() {
        report_failure(name, iterations.clone());
    }
    println!("{STARTED} {name}");
    let (counted, started) = (iterations.clone(), Instant::now());
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        execution();
    });
    let bound = bound.map_or("none".into(), |bound| bound.to_string());
    let iterations = iterations.load(Ordering::Relaxed);
    println!("{name} bound={bound} iterations={iterations} time={:.2?}", started.elapsed());
}

/// Prints the first panic on one line; a failing model may abort the process right after it.
fn report_failure(name: &'static str, iterations: Arc<AtomicU64>) {
    let earlier = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        let message = panic.payload_as_str().unwrap_or("a panic without a message");
        let message = message.lines().map(str::trim).collect::<Vec<_>>().join(" ");
        println!("{FAILED} {name} iterations={} {message}", iterations.load(Ordering::Relaxed));
        earlier(panic);
    }));
}
