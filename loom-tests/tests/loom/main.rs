//! Models of the pool's orderings, on the code that ships, explored by loom.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test --release --test loom
//! ```
//!
//! takes some minutes on two cores, negative controls included. `-- --nocapture` shows each model's bound and
//! number of executions, and for each mutant how it was caught. `WHARF_LOOM_BOUND=4` (or `none`) replaces the bounds of
//! the bounded models.
//!
//! A model is one property, with two or three threads and one or two connections, and is named after the property. Its
//! *bound* is the number of preemptions up to which all executions are explored; "none" means all executions there are.
//! No model is truncated by time or number, whatever the environment says.
//!
//! A *mutant* is a deliberate fault of the pool. Weakened orderings stand in `src`, all other mutants in the catalogue
//! `loom-tests/src/mutants/`, so the models run the code as it ships. `every_mutant_is_caught` builds a copy of the pool
//! that has the catalogue's mutants in it (`loom-tests/src/instrumented.rs`). It runs each mutant in a child process of
//! that build and demands that the model fails, in time, by an assertion, a race or a deadlock.
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
//! Wake-ups and grants are loom's: a waiter that is not woken is a deadlock, which loom reports. Connections hold a
//! loom cell, so a missing release or acquire is a reported race. What the models themselves count is kept in std's
//! atomics, which loom neither sees nor orders by.
//!
//! Each model runs some of these against each other, and each mutant runs what its model runs. `system-tests/tests/proof.rs`
//! compares both tables with the code.
//!
//! | run | public path | functions |
//! | --- | --- | --- |
//! | *hit* | `Core::try_check_out` | `Shard::pop_at_once` |
//! | *return* | the drop of a `Lease` that the environment does not hear | `Shard::push_at_once` and `try_push`; where they fail, `Held::put_on`, `Shard::push`, `Held::hand_over` or `Held::retire` |
//! | *heard return* | the drop of a `Lease` that the environment hears | `Lease::give_back_and_tell`, then as the last of "return" |
//! | *take* | `Core::try_take`, the drop of an `Idle` | `Shard::pop`, `Core::vet` |
//! | *acquire* | `Core::acquire` | `Core::seek`, `take_any`, `Capacity::try_admit`; `Core::queue_up`, `look_for_the_first`, `Capacity::admit_or_wait`, the wait list |
//! | *opener* | `Core::acquire_as_opener` | `Core::queue_up_as_opener`, the wait list |
//! | *cancel* | the drop of either future | `WaitList::leave`, `Core::settle` |
//! | *permit* | the drop of a `Permit` or a `Pending` | `Capacity::release`, `Core::serve_permits`, `Capacity::admit_first` |
//! | *open* | `Permit::create`, `Pending::established` | `Registry::allocate`, `Slab::grow`, `Slot::set_established` |
//! | *hand on* | `Opening::hand_on` | `Held::offer`, `Capacity::release` |
//! | *shared permit* | `SharedPermit::take` | the same |
//! | *ready* | `Core::ready` | `PoolWord::store` |
//! | *clear* | `Core::clear` | `Core::detach_all`, `Shard::detach`, `Core::claim_all`, `refuse` |
//! | *renew* | `Core::renew` | `Core::begin_generation`, `detach_all` |
//! | *clear service* | `Core::clear_service` | `Services::clear`, `Membership::is_stale` |
//! | *close* | `Core::close` | as "clear", and `Capacity::order_releases`, `Core::interrupt_pending` |
//! | *maintain* | `Core::maintain` | `Core::interrupt_cleared`, `Slab::iter`, `close_stale`, `reap` |
//! | *populate* | `Core::populate` | `Capacity::try_admit` |
//! | *watch* | `Interruption::poll`, `Pending::poll_interrupted` | `Slot::poll_interrupted`, `watch`, `take_waker`, `interrupt` |
//! | *drain* | `Draining::revocable` and its drop | `Held::make_available` or `Held::retire` |
//! | *status* | `Core::status` | `Shard::len`, `Slot::link_between_heads` |
//! | *wait for change* | `Watch::poll` | the listeners of event-listener |
//! | *deliver* | `Delivery::publish`, `emit`, `deliver` | `src/delivery` |
//! | *end* | `Delivery::end`, `ended`, `look_again` | `src/delivery` |
//! | *brief lock* | `BriefLock::lock` and its guard | the same |
//!
//! | model | runs | bound | mutants |
//! | --- | --- | --- | --- |
//! | **opening**: orderings 1, 2, 7 | | | |
//! | `pool_ready_is_emitted_before_any_establishment_of_a_check_out` | ready, acquire, open | none | `ready_announced_late` |
//! | `pool_ready_is_emitted_before_any_establishment_in_the_background` | ready, populate | none | `ready_announced_late` |
//! | `pool_ready_is_emitted_before_any_establishment_while_another_clears` | ready, clear, acquire, open | 3 | `created_outside_the_lock` |
//! | `who_sees_the_pool_ready_knows_that_it_was_announced` | ready | none | `pool_word_publishes_nothing`, `pool_word_acquires_nothing` |
//! | `pending_count_drops_after_the_connection_is_available` | hand on, acquire | 6 | `counts_read_after_the_search`, `pending_dropped_first`, `capacity_publishes_nothing`, `capacity_acquires_nothing` |
//! | `pending_count_drops_after_the_connection_is_available_on_another_shard` | hand on, acquire | 6 | `counts_read_after_the_search`, `search_leaves_out_a_shard` |
//! | `ids_are_in_the_order_of_the_created_events` | open, open | none | `created_outside_the_lock` |
//! | `a_permit_is_used_once_or_given_up` | shared permit, shared permit, hand on, permit, acquire | 4 | `shared_permit_stays`, `shared_permit_is_lost` |
//! | **limits**: orderings 5, 9 | | | |
//! | `total_stays_within_max_pool_size_at_every_instant` | acquire, open, permit | 2 | `admission_without_comparing` |
//! | `pending_stays_within_max_connecting_at_every_instant` | acquire, open, hand on | 2 | `admission_without_comparing` |
//! | `both_counts_return_to_zero_after_close` | close, acquire, open | 3 | `unused_permit_is_kept` |
//! | `the_end_of_a_closed_pools_last_connection_is_noticed` | close, drain | 4 | `close_leaves_the_counts_alone`, `capacity_publishes_nothing` |
//! | `the_end_of_a_closed_pools_last_establishment_is_noticed` | close, permit | 4 | `close_leaves_the_counts_alone` |
//! | `the_end_of_a_closed_pools_last_permit_is_noticed` | close, permit | 6 | `close_leaves_the_counts_alone`, `capacity_publishes_nothing` |
//! | **hits**: the path without waiting | | | |
//! | `two_hits_share_no_connection` | hit, hit, return | none | `hit_without_comparing` |
//! | `two_returns_lose_no_connection` | return, return | none | `push_without_comparing` |
//! | `a_hit_against_a_return_loses_no_connection` | hit, return | none | `hit_without_comparing`, `push_without_comparing` |
//! | `a_hit_sees_what_the_last_user_did` | hit, return | none | `head_publishes_nothing`, `head_acquires_nothing` |
//! | `a_hit_never_mistakes_an_old_head_for_a_new_one` | hit, hit, return | 6 | `tag_not_counted` |
//! | `a_hit_and_its_return_against_a_registration_lose_no_wake_up` | hit, return, acquire | 4 | `push_ignores_waiters`, `look_before_the_flags`, `return_that_fails_is_lost` |
//! | `a_hit_never_overtakes_a_queued_waiter` | hit, return, acquire | 3 | `push_ignores_waiters` |
//! | `a_hit_against_a_clear_shares_no_connection_with_it` | hit, return, clear, maintain | 6 | `detach_in_two_steps` |
//! | `a_return_against_a_clear_leaves_no_stale_connection_to_hit` | return, clear, hit | 6 | `push_ignores_the_generation`, `current_asked_before_the_head`, `empty_detach_keeps_the_head`, `clear_detaches_first` |
//! | `a_hit_against_a_close_shares_no_connection_with_it` | hit, return, close | 4 | `detach_in_two_steps` |
//! | `a_return_against_a_close_is_closed_once` | return, close, hit | 6 | `push_ignores_the_generation`, `close_detaches_first` |
//! | `a_consistent_status_counts_a_held_connection_as_in_use` | hit, return, status | 2 | `link_publishes_nothing`, `link_acquires_nothing` |
//! | `a_hit_takes_nothing_where_events_are_due` | hit, heard return | none | `hit_looks_at_nothing` |
//! | **shards**: more than one shard | | | |
//! | `a_clear_against_returns_leaves_nothing_stale_on_any_shard` | return, clear, hit, maintain | 3 | `detach_leaves_a_shard` |
//! | `a_close_against_returns_empties_every_shard` | return, close | 2 | `detach_leaves_a_shard` |
//! | `a_cancelled_waiter_leaves_no_shard_flagged` | return, cancel, hit | 3 | `settle_leaves_a_shard` |
//! | `an_opener_is_served_from_every_shard_and_leaves_none_flagged` | return, opener, hit | 3 | `settle_leaves_a_shard`, `flags_leave_out_a_shard`, `look_leaves_out_a_shard` |
//! | `a_clear_against_an_opener_that_gives_up_leaves_no_shard_flagged` | clear, opener, cancel, hit, return | 3 | `settle_leaves_a_shard` |
//! | `a_clear_against_a_registration_leaves_no_shard_flagged` | clear, acquire, hit, return | 2 | `settle_leaves_a_shard` |
//! | **waiting**: orderings 3, 4 | | | |
//! | `a_check_in_against_a_registration_loses_no_wake_up` | return, acquire | 6 | `look_before_the_flags`, `push_ignores_waiters` |
//! | `a_check_in_to_another_shard_against_a_registration_loses_no_wake_up` | return, acquire | 6 | `look_before_the_flags`, `flags_leave_out_a_shard`, `look_leaves_out_a_shard` |
//! | `a_permit_that_comes_free_against_a_registration_loses_no_wake_up` | permit, acquire | none | `permits_are_not_served`, `admit_then_wait` |
//! | `two_check_outs_share_one_connection_and_both_are_answered` | return, acquire, acquire | 2 | `push_ignores_waiters` |
//! | `a_cancelled_waiter_loses_no_connection_for_the_next` | return, cancel, acquire | 3 | `grant_to_the_cancelled_is_lost` |
//! | `a_cancelled_waiter_loses_no_permit_for_the_next` | permit, cancel, acquire | 3 | `grant_to_the_cancelled_is_lost` |
//! | `a_connection_for_the_last_waiter_who_gave_up_is_available_again` | return, cancel, take | none | `grant_to_the_cancelled_is_lost` |
//! | `a_clear_against_a_registration_lets_nobody_wait_forever` | clear, acquire | 5 | `phase_not_asked_again` |
//! | `a_close_against_a_registration_lets_nobody_wait_forever` | close, acquire | 5 | `phase_not_asked_again` |
//! | `a_clear_against_a_hand_over_answers_the_waiter_once` | return, clear, acquire | 3 | `current_asked_before_the_head` |
//! | `a_cleared_connection_is_never_handed_to_a_later_waiter` | return, clear, acquire | 3 | `hand_over_of_the_stale` |
//! | `a_newcomer_never_overtakes_who_waits_for_a_connection` | return, acquire, acquire | 2 | `last_come_first_served` |
//! | `a_newcomer_never_overtakes_who_waits_for_a_permit` | permit, acquire, acquire | 2 | `newcomers_ignore_waiters` |
//! | `a_warm_up_never_overtakes_who_waits_for_a_permit` | permit, populate, acquire | 6 | `warm_up_ignores_waiters` |
//! | `the_second_in_the_queue_is_never_served_before_the_first` | return, acquire, acquire | none | `last_come_first_served` |
//! | `a_waiter_polled_with_another_waker_is_woken_by_that_one` | return, acquire | none | `waker_is_not_renewed` |
//! | `a_waiter_polled_again_with_its_waker_is_woken_once_it_is_served` | return, acquire | none | `granter_writes_the_waker` |
//! | `a_waiter_that_leaves_during_a_clear_is_counted_out_once` | clear, cancel, acquire | 2 | `turned_away_still_count` |
//! | **openers**: orderings 3, 4 for check-outs that open | | | |
//! | `a_check_in_against_an_opener_loses_no_wake_up` | return, opener | 6 | `look_before_the_flags`, `push_ignores_waiters` |
//! | `an_opener_who_gives_up_loses_no_connection_for_the_next` | return, opener, cancel, acquire | 3 | `grant_to_the_cancelled_is_lost` |
//! | `who_leaves_the_queue_lowers_no_flag_over_an_opener` | return, opener, cancel | 3 | `flags_lowered_over_openers` |
//! | `a_permit_that_comes_free_is_not_for_an_opener` | permit, opener, acquire | 3 | `permits_are_not_served` |
//! | **clearing**: orderings 6, 8 | | | |
//! | `a_check_in_against_a_clear_is_closed_once_as_stale` | heard return, clear, maintain | none | `current_asked_before_the_head`, `empty_detach_keeps_the_head`, `clear_detaches_first` |
//! | `a_check_in_against_a_close_is_closed_once_with_the_pool` | heard return, close | 6 | `empty_detach_keeps_the_head`, `close_detaches_first` |
//! | `a_check_in_against_a_clear_and_a_close_is_closed_once` | heard return, clear, close | 2 | `close_detaches_first` |
//! | `a_check_out_against_a_clear_shares_no_connection_with_it` | take, heard return, clear, maintain | 6 | `detach_in_two_steps` |
//! | `a_check_out_after_a_clear_opens_anew_while_the_stale_are_closed` | clear, maintain, acquire | 6 | `permits_are_not_served` |
//! | `pool_cleared_follows_the_generation_change` | clear | none | `cleared_announced_early` |
//! | `a_clear_of_a_paused_pool_emits_nothing` | clear, clear | none | `paused_clear_announced` |
//! | `an_interruption_reaches_exactly_the_generations_before_its_clear` | clear, maintain, open | 3 | `interrupt_reaches_one_more` |
//! | `an_interruption_wakes_who_waits_for_it` | clear, maintain, watch | 5 | `mark_not_looked_at_again`, `watch_publishes_nothing` |
//! | `a_slot_is_watched_anew_only_after_its_last_waker_was_taken` | clear, maintain, watch, open | 2 | `interrupts_without_the_lock`, `interrupter_is_not_awaited` |
//! | `an_establishment_that_a_close_gives_up_is_closed_with_the_pool` | close, watch, permit | 4 | `stamp_acquires_nothing` |
//! | `an_interruption_against_the_growth_of_the_slab_finds_every_slot` | maintain, open | 4 | `growth_publishes_nothing`, `growth_acquires_nothing` |
//! | `waiters_fail_after_the_pool_is_announced_as_cleared` | clear, acquire | 3 | `refused_before_announced` |
//! | **draining**: connections that come back undrained | | | |
//! | `a_drain_against_a_clear_is_closed_once_as_stale` | drain, clear, maintain | none | `current_asked_before_the_head`, `drained_is_kept` |
//! | `a_drain_against_a_close_is_closed_once_with_the_pool` | drain, close | 6 | `close_detaches_first` |
//! | `a_drain_that_fails_against_a_clear_is_closed_once` | drain, clear | none | `draining_is_available_too` |
//! | `a_drained_connection_goes_to_who_waits` | drain, acquire | 5 | `draining_is_available_too`, `drained_is_kept`, `push_ignores_waiters` |
//! | `a_drain_that_fails_gives_its_permit_to_who_waits` | drain, acquire | 6 | `permits_are_not_served` |
//! | `a_clear_against_a_drain_answers_who_waits_once` | drain, clear, acquire | 3 | `current_asked_before_the_head` |
//! | `a_cleared_connection_that_was_drained_is_never_handed_to_a_later_waiter` | drain, clear, acquire | 3 | `hand_over_of_the_stale` |
//! | **drain queue**: connections whose capacity is wanted | | | |
//! | `a_drain_that_begins_against_a_registration_keeps_no_check_out_waiting` | drain, acquire | 4 | `drain_ignores_waiters`, `waiters_ignore_drains` |
//! | `a_drain_that_ends_against_a_check_out_that_would_wait_has_one_end` | drain, acquire | 3 | `drain_is_claimed_twice` |
//! | `a_drain_that_fails_against_a_check_out_that_would_wait_has_one_end` | drain, acquire | 3 | `drain_is_claimed_twice` |
//! | `a_permit_to_open_that_comes_free_against_a_registration_closes_a_drain` | drain, permit, acquire | 4 | `waiters_ignore_drains`, `drains_are_not_closed` |
//! | `a_second_drain_that_begins_against_two_check_outs_keeps_neither_waiting` | drain, acquire, acquire | 3 | `drain_ignores_waiters` |
//! | `a_second_drain_stays_after_the_first_has_ended_and_keeps_no_check_out_waiting` | drain, drain, acquire | 3 | `flag_lowered_over_drains` |
//! | `a_drain_against_a_clear_and_a_check_out_has_one_end` | drain, clear, acquire | 2 | `current_asked_before_the_head` |
//! | `a_drain_against_a_close_and_a_check_out_has_one_end` | drain, close, acquire | 2 | `drain_is_claimed_twice` |
//! | **services**: load-balanced mode | | | |
//! | `a_check_in_against_a_clear_of_its_service_is_closed_once_as_stale` | heard return, clear service, maintain | none | `current_asked_before_the_head`, `empty_detach_keeps_the_head` |
//! | `a_check_out_while_a_run_looks_through_the_shards_is_handed_what_is_put_back` | maintain, acquire, heard return | 4 | `push_ignores_waiters` |
//! | `a_clear_of_a_service_reaches_every_shard_in_one_of_two_runs` | clear service, maintain | 4 | `reap_leaves_a_shard`, `service_cleared_publishes_nothing`, `service_cleared_acquires_nothing` |
//! | **stack**: the stack | | | |
//! | `an_old_head_is_never_mistaken_for_a_new_one` | take, return | 6 | `tag_not_counted` |
//! | `a_check_in_publishes_what_was_done_with_the_connection` | take, return | none | `head_publishes_nothing` |
//! | `a_hand_over_publishes_what_was_done_with_the_connection` | return, acquire | none | `grant_publishes_nothing` |
//! | **delivery**: events and the end of a pool | | | |
//! | `events_arrive_one_at_a_time_in_the_order_of_emission` | deliver, deliver | 3 | `role_is_freed_for_the_successor` |
//! | `events_of_three_callers_are_all_delivered_when_the_last_has_left` | deliver, deliver | 2 | `queue_asked_before_the_role_is_freed` |
//! | `one_call_delivers_its_turn_and_what_was_left_behind` | deliver, deliver | 4 | `tired_deliverers_are_not_relieved` |
//! | `callers_leave_no_more_events_behind_than_there_is_room` | deliver, deliver | 4 | `callers_leave_any_number_behind` |
//! | `waiting_callers_are_told_to_leave_or_to_deliver` | deliver, deliver | 3 | `waiting_callers_are_forgotten`, `verdict_wakes_no_thread` |
//! | `subscribers_that_publish_do_not_wait_for_themselves` | deliver, deliver | 3 | `subscribers_wait_too` |
//! | `subscribers_that_publish_to_each_other_do_not_wait_for_each_other` | deliver, deliver | 3 | `subscribers_wait_too` |
//! | `panicking_subscriber_keeps_no_role_and_loses_no_event` | deliver, deliver | 3 | `panic_ends_the_delivery` |
//! | `closed_completes_after_the_last_event` | deliver, end | 2 | `ended_while_the_last_is_delivered` |
//! | `closed_completes_after_the_event_of_the_last_connection` | deliver, end | 3 | `ended_before_the_queue_is_empty`, `end_of_delivery_is_not_told` |
//! | `closed_completes_when_the_last_connection_is_gone` | end | none | `look_again_wakes_no_task` |
//! | **primitives**: what the rest is built of | | | |
//! | `a_clear_against_a_watch_is_never_missed` | clear, wait for change | 4 | `looks_before_it_listens`, `stale_before_they_are` |
//! | `a_close_against_a_watch_is_never_missed` | close, wait for change | 4 | `looks_before_it_listens` |
//! | `a_brief_lock_has_one_holder_that_sees_what_the_last_one_did` | brief lock, brief lock | 3 | `brief_lock_without_comparing`, `brief_lock_acquires_nothing`, `brief_lock_releases_nothing` |
//! | **renewal** | | | |
//! | `check_in_against_a_renewal_is_closed_once_as_stale` | heard return, renew, maintain | none | `current_asked_before_the_head`, `clear_detaches_first` |
//! | `registration_against_a_renewal_is_served` | renew, acquire, maintain | 2 | `permits_are_not_served` |
//! | `waiter_is_served_through_a_renewal` | return, renew, acquire, maintain | 2 | `permits_are_not_served` |
#![cfg(loom)]

mod models;
