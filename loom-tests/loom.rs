//! Models of the pool's orderings, on the code that ships, explored by loom.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test --release --test loom
//! ```
//!
//! takes three to four minutes on two cores, negative controls included. `-- --nocapture` shows each model's bound and
//! number of executions, and for each mutant how it was caught. `WHARF_LOOM_BOUND=4` (or `none`) replaces the bounds of
//! the bounded models.
//!
//! A model is one property, with two or three threads and one or two connections, and is named after the property. Its
//! *bound* is the number of preemptions up to which all executions are explored; "none" means all executions there are.
//! No model is truncated by time or number, whatever the environment says.
//!
//! A *mutant* is a deliberate weakening of the pool (see `src/sync.rs`). `every_mutant_is_caught` runs each in a child
//! process and demands that the model fails, in time, by an assertion, a race or a deadlock.
//!
//! # What loom needs help with
//!
//! loom (0.7.2) remembers only the last access to an atomic when it looks for orders to try. A load of one thread is
//! forgotten when another thread loads too, so it never tries the other's compare-and-swap before the first load.
//! On plain loom atomics nine of the negative controls survive, and the ABA model, unbounded, passes after 21 executions
//! instead of 161,622. `src/sync/explored.rs` has the remedy.
//!
//! # Models
//!
//! Wake-ups and grants are loom's: a waiter that nobody wakes is a deadlock, which loom reports. Connections hold a
//! loom cell, so a missing release or acquire is a reported race. What the models themselves count is kept in std's
//! atomics, which loom neither sees nor orders by.
//!
//! | model | bound | executions | mutants |
//! | --- | --- | --- | --- |
//! | **opening: orderings 1, 2, 7** | | | |
//! | `pool_ready_is_emitted_before_any_establishment_of_a_check_out` | none | 28 | `ready_announced_late` |
//! | `pool_ready_is_emitted_before_any_establishment_in_the_background` | none | 17 | `ready_announced_late` |
//! | `pool_ready_is_emitted_before_any_establishment_while_another_clears` | 3 | 1,197 | `created_outside_the_lock` |
//! | `who_sees_the_pool_ready_knows_that_it_was_announced` | none | 17 | `pool_word_publishes_nothing` |
//! | `pending_count_drops_after_the_connection_is_available` | 6 | 37,823 | `counts_read_after_the_search`, `pending_dropped_first`, `capacity_publishes_nothing` |
//! | `pending_count_drops_after_the_connection_is_available_on_another_shard` | 6 | 37,823 | `counts_read_after_the_search` |
//! | `ids_are_in_the_order_of_the_created_events` | none | 7,100 | `created_outside_the_lock` |
//! | **limits: orderings 5, 9** | | | |
//! | `total_stays_within_max_pool_size_at_every_instant` | 2 | 95,335 | `admission_without_comparing` |
//! | `pending_stays_within_max_connecting_at_every_instant` | 2 | 95,335 | `admission_without_comparing` |
//! | `both_counts_return_to_zero_after_close` | 3 | 2,751 | `unused_place_is_kept` |
//! | `the_end_of_a_closed_pools_last_connection_is_noticed` | 4 | 29,027 | `close_leaves_the_counts_alone`, `capacity_publishes_nothing` |
//! | `the_end_of_a_closed_pools_last_establishment_is_noticed` | 4 | 32,348 | `close_leaves_the_counts_alone` |
//! | `the_end_of_a_closed_pools_last_place_is_noticed` | 6 | 9,947 | `close_leaves_the_counts_alone`, `capacity_publishes_nothing` |
//! | **waiting: orderings 3, 4** | | | |
//! | `a_check_in_against_a_registration_loses_no_wake_up` | 6 | 19,740 | `look_before_the_flags`, `push_ignores_waiters` |
//! | `a_check_in_to_another_shard_against_a_registration_loses_no_wake_up` | 6 | 19,740 | `look_before_the_flags` |
//! | `a_place_that_comes_free_against_a_registration_loses_no_wake_up` | none | 173,414 | `places_are_not_served`, `admit_then_wait` |
//! | `two_check_outs_share_one_connection_and_both_are_answered` | 2 | 40,452 | `push_ignores_waiters` |
//! | `a_cancelled_waiter_loses_no_connection_for_the_next` | 3 | 5,963 | `grant_to_the_cancelled_is_lost` |
//! | `a_cancelled_waiter_loses_no_place_for_the_next` | 3 | 11,646 | `grant_to_the_cancelled_is_lost` |
//! | `a_connection_for_the_last_waiter_who_gave_up_is_available_again` | none | 72 | `grant_to_the_cancelled_is_lost` |
//! | `a_clear_against_a_registration_lets_nobody_wait_forever` | 5 | 163,729 | `phase_not_asked_again` |
//! | `a_close_against_a_registration_lets_nobody_wait_forever` | 5 | 154,816 | `phase_not_asked_again` |
//! | `a_clear_against_a_hand_over_answers_the_waiter_once` | 3 | 63,446 | `current_asked_before_the_head` |
//! | `a_cleared_connection_is_never_handed_to_a_later_waiter` | 3 | 31,214 | `hand_over_of_the_stale` |
//! | `a_newcomer_never_overtakes_who_waits_for_a_connection` | 2 | 16,364 | `last_come_first_served` |
//! | `a_newcomer_never_overtakes_who_waits_for_a_place` | 2 | 45,869 | `newcomers_ignore_waiters` |
//! | `a_warm_up_never_overtakes_who_waits_for_a_place` | 6 | 639 | `warm_up_ignores_waiters` |
//! | `the_second_in_the_queue_is_never_served_before_the_first` | none | 356 | `last_come_first_served` |
//! | `a_waiter_polled_with_another_waker_is_woken_by_that_one` | none | 2,383 | `waker_is_not_renewed` |
//! | `a_waiter_polled_again_with_its_waker_is_woken_once_it_is_served` | none | 11,937 | `granter_writes_the_waker` |
//! | `a_waiter_that_leaves_during_a_clear_is_counted_out_once` | 2 | | `turned_away_still_count` |
//! | **clearing: orderings 6, 8** | | | |
//! | `a_check_in_against_a_clear_is_closed_once_as_stale` | none | 3,260 | `current_asked_before_the_head`, `empty_detach_keeps_the_head`, `clear_detaches_first` |
//! | `a_check_in_against_a_close_is_closed_once_with_the_pool` | 6 | 84,404 | `empty_detach_keeps_the_head`, `close_detaches_first` |
//! | `a_check_in_against_a_clear_and_a_close_is_closed_once` | 2 | 2,335 | `close_detaches_first` |
//! | `a_check_out_against_a_clear_shares_no_connection_with_it` | 6 | 87,302 | `detach_in_two_steps` |
//! | `a_check_out_after_a_clear_opens_anew_while_the_stale_are_closed` | 6 | 39,540 | `places_are_not_served` |
//! | `pool_cleared_follows_the_generation_change` | none | 6 | `cleared_announced_early` |
//! | `a_clear_of_a_paused_pool_emits_nothing` | none | 11 | `paused_clear_announced` |
//! | `an_interruption_reaches_exactly_the_generations_before_its_clear` | 3 | 7,002 | `interrupt_reaches_one_more` |
//! | `an_interruption_wakes_who_waits_for_it` | 5 | 8,890 | `mark_not_looked_at_again`, `watch_publishes_nothing` |
//! | `a_slot_is_watched_anew_only_after_its_last_waker_was_taken` | 2 | 17,108 | `interrupts_without_the_lock`, `interrupter_is_not_awaited` |
//! | **recovery: connections that come back unfinished** | | | |
//! | `a_recovery_against_a_clear_is_closed_once_as_stale` | none | 4,132 | `current_asked_before_the_head`, `recovered_is_kept` |
//! | `a_recovery_against_a_close_is_closed_once_with_the_pool` | 6 | 94,708 | `close_detaches_first` |
//! | `a_recovery_that_fails_against_a_clear_is_closed_once` | none | 73 | `unfinished_is_available_too` |
//! | `a_recovered_connection_goes_to_who_waits` | 6 | 25,988 | `unfinished_is_available_too`, `recovered_is_kept`, `push_ignores_waiters` |
//! | `a_recovery_that_fails_gives_its_place_to_who_waits` | 6 | 15,175 | `places_are_not_served` |
//! | `a_clear_against_a_recovery_answers_who_waits_once` | 3 | 1,729 | `current_asked_before_the_head` |
//! | `a_cleared_connection_that_recovers_is_never_handed_to_a_later_waiter` | 3 | 43,454 | `hand_over_of_the_stale` |
//! | **services: load-balanced mode** | | | |
//! | `a_check_in_against_a_clear_of_its_service_is_closed_once_as_stale` | none | 34,170 | `current_asked_before_the_head`, `empty_detach_keeps_the_head` |
//! | `a_check_out_while_a_run_looks_through_the_shards_is_handed_what_is_put_back` | 4 | 12,932 | `push_ignores_waiters` |
//! | **stack: the stack** | | | |
//! | `an_old_head_is_never_mistaken_for_a_new_one` | 6 | 12,533 | `tag_not_counted` |
//! | `a_check_in_publishes_what_was_done_with_the_connection` | none | 17 | `head_publishes_nothing` |
//! | `a_hand_over_publishes_what_was_done_with_the_connection` | none | 220 | `grant_publishes_nothing` |
//! | **delivery: events and the end of a pool** | | | |
//! | `events_arrive_one_at_a_time_in_the_order_of_emission` | 3 | 2,618 | `role_is_freed_for_the_successor` |
//! | `events_of_three_callers_are_all_delivered_when_the_last_has_left` | 2 | 1,327 | `queue_asked_before_the_role_is_freed` |
//! | `one_call_delivers_its_turn_and_what_was_left_behind` | 4 | 271 | `tired_deliverers_are_not_relieved` |
//! | `callers_leave_no_more_events_behind_than_there_is_room` | 4 | 140 | `callers_leave_any_number_behind` |
//! | `waiting_callers_are_told_to_leave_or_to_deliver` | 3 | 26 | `waiting_callers_are_forgotten`, `verdict_wakes_no_thread` |
//! | `subscribers_that_publish_do_not_wait_for_themselves` | 3 | 169 | `subscribers_wait_too` |
//! | `subscribers_that_publish_to_each_other_do_not_wait_for_each_other` | 3 | 60 | `subscribers_wait_too` |
//! | `panicking_subscriber_keeps_no_role_and_loses_no_event` | 3 | 30 | `panic_ends_the_delivery` |
//! | `closed_completes_after_the_last_event` | 2 | 4,966 | `ended_while_the_last_is_delivered` |
//! | `closed_completes_after_the_event_of_the_last_connection` | 3 | 1,569 | `ended_before_the_queue_is_empty`, `end_of_delivery_is_not_told` |
//! | `closed_completes_when_the_last_connection_is_gone` | none | 202 | `look_again_wakes_no_task` |
#![cfg(loom)]

mod models;
