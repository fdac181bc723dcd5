//! The CMAP specification's tests, and additional tests in the same format.
//!
//! The specification's `cmap-format` describes the files. Files with `style: unit` use connections without a server, in
//! virtual time. The pool reads tokio's clock, which is paused while a task can run and then jumps to the next timer. A
//! file therefore takes no real time, and its outcome does not depend on the machine. Files with `style: integration`
//! run against a real `mongod`, with its fail points, in real time.
//!
//! There is one test for each file. Another test compares the lists of tests with the folders, and fails if a file has
//! no test or a test has no file. No file is skipped.
//!
//! Each of the format's threads runs as a task. `waitForEvent` without a timeout waits for at most ten seconds.
//!
//! The newest files are run unchanged. `wharf_testbed::edition` lists how the fetched copy differs: one file has its
//! events in an earlier order, and one file is missing. In place of the missing file, the test runs the equivalent case
//! in `cases`.
//!
//! If a file does not set `backgroundThreadIntervalMS`, the interval of the background task is a day, so that no test
//! passes merely because an interval elapsed.
//!
//! # Extensions
//!
//! The files in `cmap/cases` are wharf's own, and use these extensions of the format:
//!
//! | Extension | Meaning |
//! |---|---|
//! | `exact` | `true`: no event follows the last one listed. |
//! | `poolOptions.loadBalanced` | The pool is in load-balanced mode. |
//! | `mock.establishMS` | How long it takes to establish a connection. Default 0. |
//! | `mock.hang`, `mock.fail`, `mock.overload` | The ids of connections whose establishment never ends, fails after the handshake, or fails with `SystemOverloadedError`. |
//! | `mock.serviceIds` | The services behind the load balancer, as numbers. The connections get them in turn. |
//! | `checkOut(times)` | That many check-outs, one after the other. |
//! | `checkOut(deadlineMS)` | The check-out gives up after this time, whatever its state. |
//! | `clear(serviceId)` | Clears a service of a load-balanced pool. |
//! | `cancel(target)` | Drops the current operation of a thread, and returns when it has been dropped. The thread continues. |
//! | `spoil(connection)` | Breaks the connection, so that it is closed at check-in. |
//! | `operate(connection)` | Runs an endless interruptible operation. Its interruption becomes this thread's error. |
//! | `assertStatus(status)` | Compares the pool's status, or part of it, and checks that the numbers add up. |
//! | `assertService(serviceId, service)` | Compares a service's generation and number of connections; both are 0 if the pool does not know it. |
//! A failure to establish a connection clears the pool where the SDAM specification requires it, as the server's
//! monitor would.

#![cfg(not(loom))]

mod case;
mod mock;
mod prose;
mod recorder;
mod runner;
mod server;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use case::Case;
use mock::{Mock, MockConnection};
use wharf_testbed::edition::Edition;
use wharf_testbed::table;

/// Defines one test for each file.
macro_rules! tests {
    ($list:ident, $style:literal, $folder:expr; $($file:ident)*) => {
        const $list: &[&str] = &[$(stringify!($file)),*];
        $(
            #[test]
            #[allow(non_snake_case, reason = "tests have the names of the files")]
            fn $file() {
                run($folder, stringify!($file), $style);
            }
        )*
    };
}

mod unit {
    use super::{official, run};

    tests! { FILES, "unit", official();
        connection_must_have_id
        connection_must_order_ids
        pool_checkin
        pool_checkin_destroy_closed
        pool_checkin_destroy_stale
        pool_checkin_make_available
        pool_checkout_connection
        pool_checkout_error_closed
        pool_checkout_multiple
        pool_checkout_no_idle
        pool_checkout_no_stale
        pool_clear_clears_waitqueue
        pool_clear_min_size
        pool_clear_paused
        pool_clear_ready
        pool_clear_schedule_run_interruptInUseConnections_false
        pool_close
        pool_close_destroy_conns
        pool_create
        pool_create_max_size
        pool_create_min_size
        pool_create_with_options
        pool_ready
        pool_ready_ready
        wait_queue_fairness
        wait_queue_timeout
    }

    #[test]
    fn lists_26_files() {
        assert_eq!(FILES.len(), 26);
    }

    pub(super) fn files() -> &'static [&'static str] {
        FILES
    }
}

mod integration {
    use super::{official, run};

    tests! { FILES, "integration", official();
        pool_checkout_custom_maxConnecting_is_enforced
        pool_checkout_maxConnecting_is_enforced
        pool_checkout_maxConnecting_timeout
        pool_checkout_minPoolSize_connection_maxConnecting
        pool_checkout_returned_connection_maxConnecting
        pool_clear_interrupting_pending_connections
        pool_create_min_size_error
    }

    #[test]
    fn lists_7_files() {
        assert_eq!(FILES.len(), 7);
    }

    pub(super) fn files() -> &'static [&'static str] {
        FILES
    }
}

mod own {
    use super::{own_cases, run};

    tests! { FILES, "unit", own_cases();
        available_closed_before_pool_closed
        cancelled_establishment_becomes_available
        cancelled_establishment_goes_to_waiter
        cancelled_waiter_gives_way
        clear_by_service_needs_load_balanced_mode
        clear_interrupts_in_use_and_pending
        clear_schedules_a_run
        clear_without_interruption_lets_finish
        cleared_before_waiters_fail
        close_gives_up_pending_connections
        closed_fails_waiters
        deadline_leaves_establishment_alone
        events_of_a_check_out
        failed_connection_is_closed_at_check_in
        failed_establishment_clears_then_closes
        failed_populating_waits_for_the_next_run
        idle_removal_keeps_the_minimum
        idle_removal_without_traffic
        interruption_spares_newer_connections
        load_balanced_clear_by_service
        load_balanced_clear_leaves_waiters
        load_balanced_clear_of_whole_pool_is_refused
        load_balanced_failed_handshake_does_not_clear
        load_balanced_failure_clears_its_service
        load_balanced_interrupts_one_service
        min_pool_size_larger_than_max_connecting
        newcomer_does_not_overtake
        no_background_runs
        opened_connection_whose_check_out_has_another
        operations_on_a_closed_pool
        overload_does_not_clear
        populated_connection_serves_first_waiter
        populating_leaves_a_permit_for_check_outs
        populating_stops_when_cleared
        ready_before_background_connections
        returned_connection_goes_to_opener
        second_clear_while_paused_is_silent
        unlimited_pool
        unlimited_pool_is_bound_by_max_connecting
        wait_queue_fairness
        wait_queue_timeout_clears_nothing
        wait_queue_timeout_does_not_limit_establishment
    }

    pub(super) fn files() -> &'static [&'static str] {
        FILES
    }
}

/// The file that the fetched copy lacks.
const LEFT_OUT: &str = "wait_queue_fairness";

#[test]
fn every_official_file_has_a_test() {
    let mut present = names_in(&official());
    if Edition::present() == Edition::Fetched {
        assert!(present.insert(LEFT_OUT.to_owned()), "the fetched copy has the file");
    }
    let tested: BTreeSet<String> =
        unit::files().iter().chain(integration::files()).map(|name| (*name).to_owned()).collect();
    assert_eq!(present, tested);
    assert_eq!(present.len(), 33);
    table::show([table::Row::passed("connection_monitoring", present.len())], "");
}

#[test]
fn every_own_case_has_a_test() {
    let tested: BTreeSet<String> = own::files().iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(names_in(&own_cases()), tested);
}

fn official() -> PathBuf {
    wharf_testbed::provision::suite("connection_monitoring").expect("the official test suite")
}

fn own_cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cmap/cases")
}

/// Returns the names of a folder's files as test names: without the extension, and with underscores instead of hyphens.
fn names_in(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let files = entries.map(|entry| entry.unwrap().path());
    let cases = files.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    cases.map(|path| path.file_stem().unwrap().to_str().unwrap().replace('-', "_")).collect()
}

fn path(folder: PathBuf, name: &str) -> PathBuf {
    folder.join(name.replace('_', "-")).with_extension("json")
}

fn run(folder: PathBuf, name: &str, style: &str) {
    let is_fetched = folder == official() && Edition::present() == Edition::Fetched;
    let folder = if is_fetched && name == LEFT_OUT { own_cases() } else { folder };
    let mut case = Case::read(&path(folder, name));
    assert_eq!(case.style, style);
    assert!(!case.operations.is_empty());
    match style {
        "unit" => in_virtual_time(&case),
        _ => {
            if is_fetched && name == "pool_create_min_size_error" {
                clear_before_closing(&mut case);
            }
            server::run(&case);
        }
    }
}

fn in_virtual_time(case: &Case) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(runner::run(case, "mock:27017", Mock::new(&case.mock), MockConnection::spoil));
}

/// Swaps the two events, as a later commit to the specifications did.
fn clear_before_closing(case: &mut Case) {
    let place_of = |event_type: &str| case.events.iter().position(|event| event["type"] == event_type);
    let (closed, cleared) = (place_of("ConnectionClosed").unwrap(), place_of("ConnectionPoolCleared").unwrap());
    assert!(closed < cleared, "the fetched copy has the later order");
    case.events.swap(closed, cleared);
}

/// Tests of the runner itself: a mismatch must make a case fail.
mod negative_controls {
    use super::*;

    fn altered(alter: impl FnOnce(&mut Case)) {
        let mut case = Case::read(&path(own_cases(), "events_of_a_check_out"));
        alter(&mut case);
        in_virtual_time(&case);
    }

    #[test]
    #[should_panic(expected = "events[0].type: expected")]
    fn events_in_another_order() {
        altered(|case| case.events.swap(0, 1));
    }

    #[test]
    #[should_panic(expected = "an unexpected event")]
    fn additional_event() {
        altered(|case| drop(case.events.pop()));
    }

    #[test]
    #[should_panic(expected = "found nothing")]
    fn missing_event() {
        altered(|case| case.events.push(case.events[0].clone()));
    }

    #[test]
    #[should_panic(expected = "no error, but expected")]
    fn missing_error() {
        altered(|case| case.error = Some(serde_json::json!({ "type": "PoolClosedError" })));
    }

    #[test]
    #[should_panic(expected = "an unexpected error")]
    fn unexpected_error() {
        altered(|case| case.operations.insert(0, serde_json::json!({ "name": "checkOut" })));
    }
}
