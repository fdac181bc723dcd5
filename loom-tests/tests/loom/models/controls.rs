//! Negative controls: each mutant, in a child process of the instrumented build, must make its model fail.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use wharf_loom_tests::instrumented;

use super::harness::{FAILED, MUTANT, STARTED};

/// A mutant (see `loom-tests/src/mutants/mod.rs`) and the model that must notice it.
const CONTROLS: &[(&str, &str)] = &[
    ("ready_announced_late", "opening::pool_ready_is_emitted_before_any_establishment_of_a_check_out"),
    ("ready_announced_late", "opening::pool_ready_is_emitted_before_any_establishment_in_the_background"),
    ("created_outside_the_lock", "opening::pool_ready_is_emitted_before_any_establishment_while_another_clears"),
    ("pool_word_publishes_nothing", "opening::who_sees_the_pool_ready_knows_that_it_was_announced"),
    ("counts_read_after_the_search", "opening::pending_count_drops_after_the_connection_is_available"),
    ("pending_dropped_first", "opening::pending_count_drops_after_the_connection_is_available"),
    ("capacity_publishes_nothing", "opening::pending_count_drops_after_the_connection_is_available"),
    ("counts_read_after_the_search", "opening::pending_count_drops_after_the_connection_is_available_on_another_shard"),
    ("created_outside_the_lock", "opening::ids_are_in_the_order_of_the_created_events"),
    ("shared_permit_stays", "opening::a_permit_is_used_once_or_given_up"),
    ("shared_permit_is_lost", "opening::a_permit_is_used_once_or_given_up"),
    ("admission_without_comparing", "limits::total_stays_within_max_pool_size_at_every_instant"),
    ("admission_without_comparing", "limits::pending_stays_within_max_connecting_at_every_instant"),
    ("unused_permit_is_kept", "limits::both_counts_return_to_zero_after_close"),
    ("close_leaves_the_counts_alone", "limits::the_end_of_a_closed_pools_last_connection_is_noticed"),
    ("capacity_publishes_nothing", "limits::the_end_of_a_closed_pools_last_connection_is_noticed"),
    ("close_leaves_the_counts_alone", "limits::the_end_of_a_closed_pools_last_establishment_is_noticed"),
    ("close_leaves_the_counts_alone", "limits::the_end_of_a_closed_pools_last_permit_is_noticed"),
    ("capacity_publishes_nothing", "limits::the_end_of_a_closed_pools_last_permit_is_noticed"),
    ("look_before_the_flags", "waiting::a_check_in_against_a_registration_loses_no_wake_up"),
    ("push_ignores_waiters", "waiting::a_check_in_against_a_registration_loses_no_wake_up"),
    ("look_before_the_flags", "waiting::a_check_in_to_another_shard_against_a_registration_loses_no_wake_up"),
    ("push_ignores_waiters", "waiting::two_check_outs_share_one_connection_and_both_are_answered"),
    ("permits_are_not_served", "waiting::a_permit_that_comes_free_against_a_registration_loses_no_wake_up"),
    ("admit_then_wait", "waiting::a_permit_that_comes_free_against_a_registration_loses_no_wake_up"),
    ("grant_to_the_cancelled_is_lost", "waiting::a_cancelled_waiter_loses_no_connection_for_the_next"),
    ("grant_to_the_cancelled_is_lost", "waiting::a_cancelled_waiter_loses_no_permit_for_the_next"),
    ("grant_to_the_cancelled_is_lost", "waiting::a_connection_for_the_last_waiter_who_gave_up_is_available_again"),
    ("phase_not_asked_again", "waiting::a_clear_against_a_registration_lets_nobody_wait_forever"),
    ("phase_not_asked_again", "waiting::a_close_against_a_registration_lets_nobody_wait_forever"),
    ("current_asked_before_the_head", "waiting::a_clear_against_a_hand_over_answers_the_waiter_once"),
    ("hand_over_of_the_stale", "waiting::a_cleared_connection_is_never_handed_to_a_later_waiter"),
    ("last_come_first_served", "waiting::a_newcomer_never_overtakes_who_waits_for_a_connection"),
    ("newcomers_ignore_waiters", "waiting::a_newcomer_never_overtakes_who_waits_for_a_permit"),
    ("warm_up_ignores_waiters", "waiting::a_warm_up_never_overtakes_who_waits_for_a_permit"),
    ("last_come_first_served", "waiting::the_second_in_the_queue_is_never_served_before_the_first"),
    ("waker_is_not_renewed", "waiting::a_waiter_polled_with_another_waker_is_woken_by_that_one"),
    ("granter_writes_the_waker", "waiting::a_waiter_polled_again_with_its_waker_is_woken_once_it_is_served"),
    ("turned_away_still_count", "waiting::a_waiter_that_leaves_during_a_clear_is_counted_out_once"),
    ("look_before_the_flags", "openers::a_check_in_against_an_opener_loses_no_wake_up"),
    ("push_ignores_waiters", "openers::a_check_in_against_an_opener_loses_no_wake_up"),
    ("grant_to_the_cancelled_is_lost", "openers::an_opener_who_gives_up_loses_no_connection_for_the_next"),
    ("flags_lowered_over_openers", "openers::who_leaves_the_queue_lowers_no_flag_over_an_opener"),
    ("permits_are_not_served", "openers::a_permit_that_comes_free_is_not_for_an_opener"),
    ("current_asked_before_the_head", "clearing::a_check_in_against_a_clear_is_closed_once_as_stale"),
    ("empty_detach_keeps_the_head", "clearing::a_check_in_against_a_clear_is_closed_once_as_stale"),
    ("clear_detaches_first", "clearing::a_check_in_against_a_clear_is_closed_once_as_stale"),
    ("empty_detach_keeps_the_head", "clearing::a_check_in_against_a_close_is_closed_once_with_the_pool"),
    ("close_detaches_first", "clearing::a_check_in_against_a_close_is_closed_once_with_the_pool"),
    ("close_detaches_first", "clearing::a_check_in_against_a_clear_and_a_close_is_closed_once"),
    ("detach_in_two_steps", "clearing::a_check_out_against_a_clear_shares_no_connection_with_it"),
    ("permits_are_not_served", "clearing::a_check_out_after_a_clear_opens_anew_while_the_stale_are_closed"),
    ("cleared_announced_early", "clearing::pool_cleared_follows_the_generation_change"),
    ("paused_clear_announced", "clearing::a_clear_of_a_paused_pool_emits_nothing"),
    ("interrupt_reaches_one_more", "clearing::an_interruption_reaches_exactly_the_generations_before_its_clear"),
    ("mark_not_looked_at_again", "clearing::an_interruption_wakes_who_waits_for_it"),
    ("watch_publishes_nothing", "clearing::an_interruption_wakes_who_waits_for_it"),
    ("interrupts_without_the_lock", "clearing::a_slot_is_watched_anew_only_after_its_last_waker_was_taken"),
    ("interrupter_is_not_awaited", "clearing::a_slot_is_watched_anew_only_after_its_last_waker_was_taken"),
    ("current_asked_before_the_head", "draining::a_drain_against_a_clear_is_closed_once_as_stale"),
    ("drained_is_kept", "draining::a_drain_against_a_clear_is_closed_once_as_stale"),
    ("close_detaches_first", "draining::a_drain_against_a_close_is_closed_once_with_the_pool"),
    ("draining_is_available_too", "draining::a_drain_that_fails_against_a_clear_is_closed_once"),
    ("draining_is_available_too", "draining::a_drained_connection_goes_to_who_waits"),
    ("drained_is_kept", "draining::a_drained_connection_goes_to_who_waits"),
    ("push_ignores_waiters", "draining::a_drained_connection_goes_to_who_waits"),
    ("permits_are_not_served", "draining::a_drain_that_fails_gives_its_permit_to_who_waits"),
    ("current_asked_before_the_head", "draining::a_clear_against_a_drain_answers_who_waits_once"),
    ("hand_over_of_the_stale", "draining::a_cleared_connection_that_was_drained_is_never_handed_to_a_later_waiter"),
    ("drain_ignores_waiters", "drain_queue::a_drain_that_begins_against_a_registration_keeps_no_check_out_waiting"),
    ("waiters_ignore_drains", "drain_queue::a_drain_that_begins_against_a_registration_keeps_no_check_out_waiting"),
    ("drain_is_claimed_twice", "drain_queue::a_drain_that_ends_against_a_check_out_that_would_wait_has_one_end"),
    ("drain_is_claimed_twice", "drain_queue::a_drain_that_fails_against_a_check_out_that_would_wait_has_one_end"),
    ("waiters_ignore_drains", "drain_queue::a_permit_to_open_that_comes_free_against_a_registration_closes_a_drain"),
    ("drains_are_not_closed", "drain_queue::a_permit_to_open_that_comes_free_against_a_registration_closes_a_drain"),
    ("drain_ignores_waiters", "drain_queue::a_second_drain_that_begins_against_two_check_outs_keeps_neither_waiting"),
    (
        "flag_lowered_over_drains",
        "drain_queue::a_second_drain_stays_after_the_first_has_ended_and_keeps_no_check_out_waiting",
    ),
    ("current_asked_before_the_head", "drain_queue::a_drain_against_a_clear_and_a_check_out_has_one_end"),
    ("drain_is_claimed_twice", "drain_queue::a_drain_against_a_close_and_a_check_out_has_one_end"),
    ("current_asked_before_the_head", "renewal::check_in_against_a_renewal_is_closed_once_as_stale"),
    ("clear_detaches_first", "renewal::check_in_against_a_renewal_is_closed_once_as_stale"),
    ("permits_are_not_served", "renewal::registration_against_a_renewal_is_served"),
    ("permits_are_not_served", "renewal::waiter_is_served_through_a_renewal"),
    ("current_asked_before_the_head", "services::a_check_in_against_a_clear_of_its_service_is_closed_once_as_stale"),
    ("empty_detach_keeps_the_head", "services::a_check_in_against_a_clear_of_its_service_is_closed_once_as_stale"),
    ("push_ignores_waiters", "services::a_check_out_while_a_run_looks_through_the_shards_is_handed_what_is_put_back"),
    ("tag_not_counted", "stack::an_old_head_is_never_mistaken_for_a_new_one"),
    ("head_publishes_nothing", "stack::a_check_in_publishes_what_was_done_with_the_connection"),
    ("grant_publishes_nothing", "stack::a_hand_over_publishes_what_was_done_with_the_connection"),
    ("hit_without_comparing", "hits::two_hits_share_no_connection"),
    ("push_without_comparing", "hits::two_returns_lose_no_connection"),
    ("hit_without_comparing", "hits::a_hit_against_a_return_loses_no_connection"),
    ("push_without_comparing", "hits::a_hit_against_a_return_loses_no_connection"),
    ("head_publishes_nothing", "hits::a_hit_sees_what_the_last_user_did"),
    ("head_acquires_nothing", "hits::a_hit_sees_what_the_last_user_did"),
    ("tag_not_counted", "hits::a_hit_never_mistakes_an_old_head_for_a_new_one"),
    ("push_ignores_waiters", "hits::a_hit_and_its_return_against_a_registration_lose_no_wake_up"),
    ("look_before_the_flags", "hits::a_hit_and_its_return_against_a_registration_lose_no_wake_up"),
    ("return_that_fails_is_lost", "hits::a_hit_and_its_return_against_a_registration_lose_no_wake_up"),
    ("push_ignores_waiters", "hits::a_hit_never_overtakes_a_queued_waiter"),
    ("detach_in_two_steps", "hits::a_hit_against_a_clear_shares_no_connection_with_it"),
    ("push_ignores_the_generation", "hits::a_return_against_a_clear_leaves_no_stale_connection_to_hit"),
    ("current_asked_before_the_head", "hits::a_return_against_a_clear_leaves_no_stale_connection_to_hit"),
    ("empty_detach_keeps_the_head", "hits::a_return_against_a_clear_leaves_no_stale_connection_to_hit"),
    ("clear_detaches_first", "hits::a_return_against_a_clear_leaves_no_stale_connection_to_hit"),
    ("detach_in_two_steps", "hits::a_hit_against_a_close_shares_no_connection_with_it"),
    ("push_ignores_the_generation", "hits::a_return_against_a_close_is_closed_once"),
    ("close_detaches_first", "hits::a_return_against_a_close_is_closed_once"),
    ("link_publishes_nothing", "hits::a_consistent_status_counts_a_held_connection_as_in_use"),
    ("link_acquires_nothing", "hits::a_consistent_status_counts_a_held_connection_as_in_use"),
    ("hit_looks_at_nothing", "hits::a_hit_takes_nothing_where_events_are_due"),
    ("detach_leaves_a_shard", "shards::a_clear_against_returns_leaves_nothing_stale_on_any_shard"),
    ("detach_leaves_a_shard", "shards::a_close_against_returns_empties_every_shard"),
    ("settle_leaves_a_shard", "shards::a_cancelled_waiter_leaves_no_shard_flagged"),
    ("settle_leaves_a_shard", "shards::an_opener_is_served_from_every_shard_and_leaves_none_flagged"),
    ("flags_leave_out_a_shard", "shards::an_opener_is_served_from_every_shard_and_leaves_none_flagged"),
    ("look_leaves_out_a_shard", "shards::an_opener_is_served_from_every_shard_and_leaves_none_flagged"),
    ("settle_leaves_a_shard", "shards::a_clear_against_an_opener_that_gives_up_leaves_no_shard_flagged"),
    ("settle_leaves_a_shard", "shards::a_clear_against_a_registration_leaves_no_shard_flagged"),
    ("capacity_acquires_nothing", "opening::pending_count_drops_after_the_connection_is_available"),
    ("search_leaves_out_a_shard", "opening::pending_count_drops_after_the_connection_is_available_on_another_shard"),
    ("pool_word_acquires_nothing", "opening::who_sees_the_pool_ready_knows_that_it_was_announced"),
    ("flags_leave_out_a_shard", "waiting::a_check_in_to_another_shard_against_a_registration_loses_no_wake_up"),
    ("look_leaves_out_a_shard", "waiting::a_check_in_to_another_shard_against_a_registration_loses_no_wake_up"),
    ("looks_before_it_listens", "primitives::a_clear_against_a_watch_is_never_missed"),
    ("stale_before_they_are", "primitives::a_clear_against_a_watch_is_never_missed"),
    ("looks_before_it_listens", "primitives::a_close_against_a_watch_is_never_missed"),
    ("brief_lock_without_comparing", "primitives::a_brief_lock_has_one_holder_that_sees_what_the_last_one_did"),
    ("brief_lock_acquires_nothing", "primitives::a_brief_lock_has_one_holder_that_sees_what_the_last_one_did"),
    ("brief_lock_releases_nothing", "primitives::a_brief_lock_has_one_holder_that_sees_what_the_last_one_did"),
    ("reap_leaves_a_shard", "services::a_clear_of_a_service_reaches_every_shard_in_one_of_two_runs"),
    ("service_cleared_publishes_nothing", "services::a_clear_of_a_service_reaches_every_shard_in_one_of_two_runs"),
    ("service_cleared_acquires_nothing", "services::a_clear_of_a_service_reaches_every_shard_in_one_of_two_runs"),
    ("stamp_acquires_nothing", "clearing::an_establishment_that_a_close_gives_up_is_closed_with_the_pool"),
    ("growth_publishes_nothing", "clearing::an_interruption_against_the_growth_of_the_slab_finds_every_slot"),
    ("growth_acquires_nothing", "clearing::an_interruption_against_the_growth_of_the_slab_finds_every_slot"),
    ("refused_before_announced", "clearing::waiters_fail_after_the_pool_is_announced_as_cleared"),
    ("role_is_freed_for_the_successor", "delivery::events_arrive_one_at_a_time_in_the_order_of_emission"),
    (
        "queue_asked_before_the_role_is_freed",
        "delivery::events_of_three_callers_are_all_delivered_when_the_last_has_left",
    ),
    ("tired_deliverers_are_not_relieved", "delivery::one_call_delivers_its_turn_and_what_was_left_behind"),
    ("callers_leave_any_number_behind", "delivery::callers_leave_no_more_events_behind_than_there_is_room"),
    ("waiting_callers_are_forgotten", "delivery::waiting_callers_are_told_to_leave_or_to_deliver"),
    ("verdict_wakes_no_thread", "delivery::waiting_callers_are_told_to_leave_or_to_deliver"),
    ("subscribers_wait_too", "delivery::subscribers_that_publish_do_not_wait_for_themselves"),
    ("subscribers_wait_too", "delivery::subscribers_that_publish_to_each_other_do_not_wait_for_each_other"),
    ("panic_ends_the_delivery", "delivery::panicking_subscriber_keeps_no_role_and_loses_no_event"),
    ("ended_while_the_last_is_delivered", "delivery::closed_completes_after_the_last_event"),
    ("ended_before_the_queue_is_empty", "delivery::closed_completes_after_the_event_of_the_last_connection"),
    ("end_of_delivery_is_not_told", "delivery::closed_completes_after_the_event_of_the_last_connection"),
    ("look_again_wakes_no_task", "delivery::closed_completes_when_the_last_connection_is_gone"),
];

const AT_A_TIME: usize = 2;
const TIME_LIMIT: Duration = Duration::from_secs(120);

#[test]
fn every_mutant_is_caught() {
    if std::env::var_os(MUTANT).is_some() {
        return;
    }
    let binary = &instrumented::build("loom").unwrap_or_else(|why| panic!("the instrumented build: {why}"));
    let remaining = Mutex::new(CONTROLS.iter());
    let survivors = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let Some((mutant, model)) = remaining.lock().unwrap().next() else { return };
                    let started = Instant::now();
                    let verdict = examine(binary, mutant, model);
                    let time = started.elapsed();
                    match verdict {
                        Ok(how) => println!("mutant {mutant} → {model}: caught in {time:.1?}, {how}"),
                        Err(why) => {
                            println!("mutant {mutant} → {model}: NOT CAUGHT in {time:.1?}, {why}");
                            survivors.lock().unwrap().push((mutant, model, why));
                        }
                    }
                }
            });
        }
    });
    let survivors = survivors.into_inner().unwrap();
    assert!(survivors.is_empty(), "{} of {} were not caught: {survivors:#?}", survivors.len(), CONTROLS.len());
}

/// How the model failed; or why that does not count.
fn examine(binary: &Path, mutant: &str, model: &str) -> Result<String, String> {
    let mut child = Command::new(binary)
        .args(["--exact", &format!("models::{model}"), "--nocapture"])
        .env(MUTANT, mutant)
        // Backtraces of a failing model take longer than the model.
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut stdout = child.stdout.take().expect("a piped stdout");
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        // What cannot be read is not there, and then the model has not started.
        let _ = stdout.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let ended = wait(&mut child);
    let output = reader.join().expect("a reader that does not panic");
    if !output.contains(STARTED) {
        return Err(format!("the model did not start: {output}"));
    }
    match ended {
        None => Err("not done within the time limit".into()),
        Some(true) => Err("the model passes".into()),
        Some(false) => {
            let failure = output.lines().find_map(|line| line.split_once(FAILED)).map(|(_, failure)| failure.trim());
            let failure = failure.ok_or_else(|| format!("it ended without a failure of the model: {output}"))?;
            Ok(failure.split_once(' ').map_or(failure, |(_, of)| of).chars().take(140).collect())
        }
    }
}

/// Whether the child succeeded; `None` if it had to be ended.
fn wait(child: &mut Child) -> Option<bool> {
    let deadline = Instant::now() + TIME_LIMIT;
    loop {
        if let Some(status) = child.try_wait().expect("a child that was spawned") {
            return Some(status.success());
        }
        if Instant::now() > deadline {
            child.kill().expect("a child that runs");
            child.wait().expect("a child that was ended");
            return None;
        }
        thread::sleep(Duration::from_millis(10));
    }
}
