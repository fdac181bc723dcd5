//! Models of the pool's orderings. loom explores them on the code that ships.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p wharf-loom-tests --profile models --test loom
//! ```
//!
//! This takes about five minutes on two cores, including the builds and the negative controls. `-- --nocapture` shows
//! each model's bound and number of executions, and how each mutant was caught. `WHARF_LOOM_BOUND=4` (or `none`)
//! replaces the bounds of the bounded models. `WHARF_LOOM_CONTROLS=inline,hits` runs only the controls for models whose
//! paths begin with `inline` or `hits`, and fails if one of the words selects no control.
//!
//! A model checks one property, with two or three threads and one or two connections, and is named after the property.
//! Its *bound* is a number of preemptions: loom explores all executions with at most that many. With "none", it
//! explores all executions. Models are never truncated by time or by number of executions, even if loom's environment
//! variables ask for it.
//!
//! A *mutant* is a deliberate fault in the pool. Mutants that weaken an ordering are in `src`. All other mutants are in
//! the catalogue `loom-tests/src/mutants/`, so the models run the code as it ships. `every_mutant_is_caught` builds a
//! copy of the pool that contains the catalogue's mutants (`loom-tests/src/instrumented.rs`). It runs each mutant in a
//! child process of that build, and requires the model to fail within a time limit, with an assertion, a race or a
//! deadlock.
//!
//! Waiters park in one of two ways, selected by the `event-listener-queue` feature. A mutant for one way is tested only
//! in builds that use that way. All models can run with either way. To save time, CI runs only some of them with
//! events: the models of waiting, of openers and of the wait list alone. With events, CI runs only the controls for the
//! models of waiting, and the controls for the mutants that exist only with events. A wait takes more steps with
//! events, so two models have a smaller bound with events, which the list below gives in parentheses. CI runs these two
//! models only without events. In the models, an operation on an event is a single step (`src/pool/sync/events.rs`),
//! and a thread that waits for another thread polls twice and then sleeps (`src/pool/sync/patience.rs`).
//!
//! # A gap in loom
//!
//! loom (0.7.2) remembers only the last access to an atomic when it looks for orders to try. When two threads load one
//! after the other, it forgets the first load, and so never tries the second thread's compare-and-swap before that
//! load. With loom's own atomics, nine of the mutants survive, and the ABA model without a bound passes after 21
//! executions instead of 19,662. `src/pool/sync/explored.rs` closes the gap, and `explored.rs` beside this file checks
//! it with small random programs.
//!
//! # One waker
//!
//! `loom::future::block_on` polls with the same waker each time. But if the waker's function table is compiled into
//! more than one unit, a clone of the waker has a different table. `Waker::will_wake` then returns false, and a waiter
//! that is polled again replaces its waker. So the `models` profile compiles everything as one unit. A waiter that
//! `queued` has put into the queue gets a new waker at its next poll in any case.
//!
//! # Models
//!
//! Wake-ups and grants go through loom, so a waiter that is never woken causes a deadlock, which loom reports. Each
//! connection holds a loom cell, so a missing release or acquire causes a race, which loom also reports. The models
//! keep their own counts in std's atomics. loom does not see these, so they do not order anything.
//!
//! Each model runs some of the following operations concurrently, and each mutant is tested with its model's
//! operations. `system-tests/tests/proof.rs` compares this table and the table of models with the code.
//!
//! | run | public path | functions |
//! | --- | --- | --- |
//! | *hit* | `Core::note_and_try_hit` | `Core::try_hit`, `pop_nearby`; `pop_noted`, `Shard::pop_from`, or else `Shard::try_pop`; `Hit::begin` |
//! | *return* | the drop of a `Lease` if the environment does not listen | `Lease::check_in`; `Held::put_back`, `Shard::put_back`; or else `Held::push`, `Shard::try_push` and `push_onto`; if they fail, `Held::make_available`, `Shard::push`, `Held::hand_over` or `Held::retire` |
//! | *heard return* | the drop of a `Lease` if the environment listens | `check_in_at_length`, then as "return" after a failed push |
//! | *take* | `Core::try_take`, the drop of an `Idle` | `Shard::pop`, `Core::vet`, `Held::end_hold` |
//! | *acquire* | `Core::acquire` | `Core::seek`, `take_any`, `Capacity::try_admit`; `Core::queue_up`, `look_for_the_first`, `Capacity::admit_or_wait`, the wait list |
//! | *acquire again* | `Core::reacquire` | `Core::enter`, `queue_up`, the wait list; the drop of the stale `Idle` or the failed `Checking` |
//! | *opener* | `Core::acquire_as_opener` | `Core::queue_up_as_opener`, the wait list |
//! | *cancel* | the drop of either future | `WaitList::leave`, `Core::settle` |
//! | *permit* | the drop of a `Permit` or a `Pending` | `Capacity::release`, `Core::serve_permits`, `Capacity::admit_first` |
//! | *open* | `Permit::create`, `Pending::established` | `Registry::allocate`, `Slab::grow`, `Slot::set_established` |
//! | *hand on* | `Opening::hand_on` | `Held::offer`, `Capacity::release`, `Core::serve_permits` |
//! | *end opening* | `SharedOpening::end` | `Opening::stop_counting`, `Capacity::release`, `Core::serve_permits` |
//! | *shared permit* | `SharedPermit::take` | the same |
//! | *ready* | `Core::ready` | `PoolWord::store` |
//! | *clear* | `Core::clear` | `Core::detach_all`, `Shard::detach`, `Core::claim_all`, `refuse` |
//! | *renew* | `Core::renew` | `Core::begin_generation`, `detach_all` |
//! | *resize* | `Core::try_resize` | `Capacity::outdate_readings`, `Core::serve_permits`, `trim`, `has_surplus` |
//! | *share* | the operations of a pool under a `Budget` | `Core::try_admit`, `admit_first`, `give_back`; `Budget::take_or_queue`, `leave`, `settle`, `gives_idle_up`, `gives_one_up` |
//! | *clear service* | `Core::clear_service` | `Services::clear`, `Membership::is_stale` |
//! | *close* | `Core::close` | as "clear", also `Capacity::order_releases`, `Core::interrupt_pending` |
//! | *maintain* | `Core::maintain` | `Core::interrupt_cleared`, `Slab::iter`, `close_stale`, `reap` |
//! | *populate* | `Core::populate` | `Capacity::try_admit` |
//! | *watch* | `Interruption::poll`, `Pending::poll_interrupted` | `Slot::poll_interrupted`, `watch`, `take_waker`, `interrupt` |
//! | *check* | `Idle::begin_check`, `Checking::pass`, the drop of a `Checking` | `Held::make_available` or `Held::close` |
//! | *worn return* | the drop of a `Lease` whose lifetime is over | `Core::give_up`, then as "heard return" or `Held::retire` |
//! | *drain* | `Draining::revocable` and its drop | `Core::leave_drains`, `displace_oldest_drain`, `Held::make_available` or `Held::close` |
//! | *status* | `Core::status` | `Shard::len`, `Slot::link_between_heads` |
//! | *wait for change* | `Watch::poll` | the listeners of event-listener |
//! | *deliver* | `Delivery::publish`, `emit`, `deliver` | `src/pool/delivery` |
//! | *deliver inline* | `Delivery::deliver_inline` | `src/pool/delivery` |
//! | *end* | `Delivery::end`, `ended`, `look_again` | `src/pool/delivery` |
//! | *note* | `Idle::note_holder` | `Hold::begin` |
//! | *noted return* | the drop of a `Lease` if the pool accounts for holders | `Held::end_hold`, `Hold::end`, then as "heard return" |
//! | *list holders* | `Core::holders` | `Hold::read`, `Shard::for_each_slot` |
//! | *review holds* | `Core::review_holds` | the same, and `Core::report`, `Hold::mark_reported` |
//! | *brief lock* | `BriefLock::lock` and its guard | the same |
//! | *run section* | `BriefLock::run` | the same, and `wait`, `serve`, `take_requests`, `take_over` |
//! | *wait alone* | `ModelledList::wait`, `waits`, `take` | `WaitList::try_join`, `sit_down`, `look_ahead`, `poll`; `Cell::park`, `take` |
//! | *grant alone* | `ModelledList::grant` | `WaitList::try_claim`, `look_after`, `sweep`; `Claimed::grant`, `Cell::grant`; `Directory::install`, `remove` |
//! | *take slot* | `SlotStack::pop` | `SlotStack::change` |
//! | *put slot* | `SlotStack::push` | `SlotStack::push_chain`, `change` |
//! | *detach slots* | `SlotStack::detach`, `push_chain` | `SlotStack::change` |
//! | *take front* | `Front::take` | `Front::hold`, `release` |
//! | *put front* | `Front::put` | the same |
//!
//! Like an application's threads, the models' threads note their shard and the stack that they left there
//! (`src/pool/core/nearby.rs`). More tests of the notes are in `system-tests/tests/pool/nearby.rs` and
//! `system-tests/tests/fork/`.
//!
//! | model | runs | bound | mutants |
//! | --- | --- | --- | --- |
//! | **opening**: orderings 1, 2, 7 | | | |
//! | `pool_ready_is_emitted_before_a_check_out_creates_a_connection` | ready, acquire, open | none | `ready_announced_late` |
//! | `pool_ready_is_emitted_before_the_background_task_creates_a_connection` | ready, populate | none | `ready_announced_late` |
//! | `connections_are_created_only_between_pool_ready_and_pool_cleared` | ready, clear, acquire, open | 3 | `created_outside_the_lock` |
//! | `thread_that_sees_a_ready_pool_sees_the_pool_ready_event` | ready | none | `pool_word_publishes_nothing`, `pool_word_acquires_nothing` |
//! | `pending_count_drops_after_the_connection_is_available` | hand on, acquire | 5 (4) | `counts_read_after_the_search`, `pending_count_drops_early`, `capacity_publishes_nothing`, `capacity_acquires_nothing` |
//! | `pending_count_drops_after_the_connection_is_available_on_another_shard` | hand on, acquire | 5 (4) | `counts_read_after_the_search`, `search_leaves_out_a_shard` |
//! | `ids_are_in_the_order_of_the_created_events` | open, open | none | `created_outside_the_lock` |
//! | `shared_permit_is_used_once_or_given_up` | shared permit, shared permit, hand on, permit, acquire | 4 | `shared_permit_is_never_taken`, `shared_permit_is_lost` |
//! | `connection_that_is_handed_to_a_waiter_is_not_pending` | hand on, acquire | 4 | `counted_as_pending_until_after_the_grant` |
//! | `opened_connection_is_not_pending_when_its_check_out_returns` | end opening, end opening | none | `second_end_of_an_opening_overtakes_the_first` |
//! | `permit_of_an_opening_that_two_end_goes_to_a_waiter` | end opening, end opening, acquire | 4 | `permit_of_a_shared_opening_is_lost` |
//! | **limits**: orderings 5, 9 | | | |
//! | `total_never_exceeds_max_pool_size` | acquire, open, permit | 2 | `admission_without_comparing` |
//! | `pending_never_exceeds_max_connecting` | acquire, open, hand on | 2 | `admission_without_comparing` |
//! | `connection_counts_until_it_is_disposed_of` | return, acquire | 4 | `capacity_is_released_before_the_close` |
//! | `both_counts_return_to_zero_after_close` | close, acquire, open | 3 | `unused_permit_is_kept` |
//! | `end_of_the_last_connection_of_a_closed_pool_is_noticed` | close, drain | 4 | `close_leaves_the_counts_alone`, `capacity_publishes_nothing` |
//! | `end_of_the_last_establishment_of_a_closed_pool_is_noticed` | close, permit | 4 | `close_leaves_the_counts_alone` |
//! | `end_of_the_last_permit_of_a_closed_pool_is_noticed` | close, permit | 6 | `close_leaves_the_counts_alone`, `capacity_publishes_nothing` |
//! | **resizing**: ordering 5 | | | |
//! | `check_out_during_a_resize_is_not_admitted_by_the_old_maximum` | resize, acquire, permit | 3 | `resize_outdates_no_reading` |
//! | `check_out_that_queues_up_while_the_pool_grows_is_served` | resize, acquire, permit | 4 | `growth_is_not_served` |
//! | `connection_checked_in_while_the_pool_shrinks_is_no_surplus` | resize, return, maintain | 4 | `maintenance_leaves_a_surplus` |
//! | `connection_opened_while_the_pool_shrinks_is_no_surplus` | resize, hand on, maintain | 4 | `maintenance_leaves_a_surplus` |
//! | `pool_that_is_closed_while_it_shrinks_closes_each_connection_once` | resize, close | 4 | `detach_in_two_steps` |
//! | **sharing**: ordering 11 | | | |
//! | `pools_never_hold_more_connections_than_their_budget_has_places` | share, acquire, permit | 4 | `place_is_taken_and_stays_free` |
//! | `place_given_back_while_another_pool_queues_up_loses_no_wake_up` | share, acquire, permit | 4 | `place_given_back_serves_no_pool`, `settling_ends_after_the_look` |
//! | `place_given_back_while_a_pool_leaves_the_queue_goes_to_the_next_pool` | share, acquire, cancel, permit | 2 | `place_given_back_serves_no_pool`, `settling_ends_after_the_look` |
//! | `pool_whose_waiters_leave_is_no_longer_in_the_queue` | share, cancel, return | 4 | `pool_without_a_waiter_stays_in_the_queue` |
//! | `connection_returned_while_another_pool_queues_up_is_found_at_the_next_look` | share, acquire, return, maintain | none | `pool_in_the_queue_does_not_look_again` |
//! | `pool_in_the_queue_costs_others_one_connection` | share, acquire, return | 4 | `leaving_places_are_not_counted` |
//! | `connection_is_returned_while_a_check_out_that_may_not_wait_asks_for_a_place` | share, acquire, return | 4 | `flags_stay_raised_while_the_budget_is_settled` |
//! | **hits**: check-outs and check-ins on the fast path | | | |
//! | `concurrent_hits_share_no_connection` | hit, hit, return | none | `hit_without_comparing`, `noted_slot_is_taken_without_comparing` |
//! | `concurrent_returns_lose_no_connection` | return, return | none | `push_without_comparing`, `link_is_kept_at_another_height` |
//! | `hit_during_a_return_loses_no_connection` | hit, return | none | `noted_slot_is_taken_without_comparing`, `push_without_comparing` |
//! | `hit_sees_the_last_users_writes` | hit, return | none | `head_publishes_nothing`, `head_acquires_nothing` |
//! | `hit_never_mistakes_an_old_head_for_a_new_one` | hit, hit, return | 6 | `tag_not_counted` |
//! | `hit_and_return_while_a_check_out_queues_up_lose_no_wake_up` | hit, return, acquire | 4 | `push_ignores_waiters`, `look_precedes_the_flag`, `return_that_fails_is_lost` |
//! | `hit_never_overtakes_a_waiter` | hit, return, acquire | 3 | `push_ignores_waiters` |
//! | `hit_during_a_clear_shares_no_connection_with_it` | hit, return, clear, maintain | 6 | `detach_in_two_steps` |
//! | `return_during_a_clear_leaves_no_stale_connection_to_hit` | return, clear, hit | 6 | `push_ignores_the_generation`, `generation_is_read_before_the_head`, `empty_detach_keeps_the_head`, `clear_detaches_first` |
//! | `connection_put_back_during_a_clear_is_not_left_to_hit` | hit, return, clear | 6 | `empty_detach_keeps_the_head`, `slot_is_put_back_without_comparing` |
//! | `connection_put_back_after_another_shard_had_it_is_linked_anew` | hit, return | none | `slot_from_another_shard_keeps_its_link` |
//! | `hit_after_the_use_of_another_pool_takes_no_slot_of_that_pool` | hit, return | none | `note_keeps_the_heads_of_another_shard` |
//! | `connection_is_not_put_back_by_the_head_of_another_pool` | hit, return | none | `note_keeps_the_head_that_a_hit_left_on_another_shard` |
//! | `hit_takes_the_connection_that_was_put_back_and_not_the_noted_one` | hit, return | none | `another_slot_is_put_back_as_the_noted_one` |
//! | `hit_during_a_close_shares_no_connection_with_it` | hit, return, close | 4 | `detach_in_two_steps` |
//! | `connection_returned_during_a_close_is_closed_once` | return, close, hit | 6 | `push_ignores_the_generation`, `close_detaches_first` |
//! | `consistent_status_counts_a_held_connection_as_in_use` | hit, return, status | 2 | `link_publishes_nothing`, `link_acquires_nothing` |
//! | `hit_takes_no_connection_if_the_environment_listens` | hit, heard return | none | `hit_ignores_the_subscribers` |
//! | `each_hit_is_counted_once_and_the_timed_one_is_measured` | hit, return | none | `hit_is_counted_before_the_slot_is_owned`, `timed_use_ends_after_the_return` |
//! | **shards**: more than one shard | | | |
//! | `clear_during_returns_leaves_no_stale_connection_on_any_shard` | return, clear, hit, maintain | 3 | `detach_leaves_a_shard` |
//! | `close_during_returns_empties_every_shard` | return, close | 2 | `detach_leaves_a_shard` |
//! | `cancelled_waiter_leaves_no_shard_flagged` | return, cancel, hit | 3 | `settle_leaves_a_shard` |
//! | `opener_is_served_from_every_shard_and_leaves_none_flagged` | return, opener, hit | 3 | `settle_leaves_a_shard`, `flags_leave_out_a_shard`, `flag_is_raised_over_connections` |
//! | `opener_cancelled_during_a_clear_leaves_no_shard_flagged` | clear, opener, cancel, hit, return | 3 | `settle_leaves_a_shard` |
//! | `check_out_that_queues_up_during_a_clear_leaves_no_shard_flagged` | clear, acquire, hit, return | 2 | `settle_leaves_a_shard` |
//! | **waiting**: orderings 3, 4 | | | |
//! | `check_in_while_a_check_out_queues_up_loses_no_wake_up` | return, acquire | 5 | `look_precedes_the_flag`, `push_ignores_waiters`, `granter_does_not_notify` |
//! | `check_in_to_another_shard_while_a_check_out_queues_up_loses_no_wake_up` | return, acquire | 5 | `look_precedes_the_flag`, `flags_leave_out_a_shard`, `flag_is_raised_over_connections` |
//! | `permit_freed_while_a_check_out_queues_up_loses_no_wake_up` | permit, acquire | 5 | `permits_are_not_served`, `admit_then_wait` |
//! | `two_check_outs_are_both_served_by_one_connection` | return, acquire, acquire | 1 | `push_ignores_waiters`, `last_waiter_is_claimed_without_the_lock` |
//! | `cancelled_waiter_passes_its_connection_on` | return, cancel, acquire | 3 | `cancelled_check_out_keeps_its_grant`, `waiter_is_not_withheld`, `gap_stays_in_the_word`, `claim_ignores_openers_and_gaps` |
//! | `cancelled_waiter_passes_its_permit_on` | permit, cancel, acquire | 3 | `cancelled_check_out_keeps_its_grant` |
//! | `connection_granted_to_a_cancelled_last_waiter_is_available_again` | return, cancel, take | none | `cancelled_check_out_keeps_its_grant` |
//! | `check_out_that_queues_up_during_a_clear_is_refused` | clear, acquire | 4 | `phase_is_not_read_again` |
//! | `check_out_that_queues_up_behind_another_during_a_clear_is_refused` | clear, acquire, acquire | 3 | `tickets_are_swapped_without_comparing` |
//! | `check_out_that_queues_up_during_a_close_is_refused` | close, acquire | 4 | `phase_is_not_read_again` |
//! | `hand_over_during_a_clear_answers_the_waiter_once` | return, clear, acquire | 2 | `generation_is_read_before_the_head` |
//! | `stale_connection_is_never_handed_to_a_later_waiter` | return, clear, acquire | 3 | `stale_connection_is_handed_over` |
//! | `newcomer_never_overtakes_a_waiter_for_a_connection` | return, acquire, acquire | 2 | `tickets_are_swapped_without_comparing`, `word_that_became_the_same_again_is_not_acquired`, `second_waiter_is_claimed_first`, `early_grant_is_not_seen` |
//! | `newcomer_never_overtakes_a_check_out_whose_connection_went_stale` | acquire again, acquire | 2 | `check_out_is_queued_again_behind_waiters`, `stale_connection_is_closed_first` |
//! | `check_out_queued_again_during_a_clear_is_refused` | acquire again, clear | 3 | `check_outs_queued_again_are_not_refused` |
//! | `newcomer_never_overtakes_a_waiter_for_a_permit` | permit, acquire, acquire | 2 | `newcomers_ignore_waiters` |
//! | `background_task_never_overtakes_a_waiter_for_a_permit` | permit, populate, acquire | 6 | `background_task_ignores_waiters` |
//! | `second_waiter_is_never_served_before_the_first` | return, acquire, acquire | none | `second_waiter_is_claimed_first` |
//! | `waiter_polled_with_a_new_waker_is_woken_through_it` | return, acquire | 5 | `waker_is_not_renewed` |
//! | `waiter_polled_again_with_its_waker_is_woken_when_served` | return, acquire | 4 | `granter_writes_the_waker` |
//! | `waiter_cancelled_during_a_clear_is_counted_out_once` | clear, cancel, acquire | 2 | `turned_away_waiter_stays_in_its_range` |
//! | `stale_connection_is_never_handed_to_the_first_of_two_later_waiters` | return, clear, acquire, acquire | 2 | `claim_ignores_the_generation`, `stale_connection_is_handed_over`, `tickets_publish_nothing`, `tickets_acquire_nothing` |
//! | `newcomer_that_leaves_takes_no_grant_of_one_before_it` | return, acquire, cancel | 2 | `cancelled_check_out_keeps_its_grant` |
//! | `third_waiter_is_never_served_before_the_first` | return, acquire, acquire, cancel | 2 | `cancelled_check_out_keeps_its_grant` |
//! | `refusal_never_reaches_a_waiter_that_came_after_the_clear` | return, clear, acquire | 2 | `turned_away_waiters_are_claimed` |
//! | `claim_reaches_its_waiter_during_two_clears` | return, clear, acquire | 1 | `turned_away_waiters_are_claimed` |
//! | **openers**: orderings 3, 4 for check-outs that open | | | |
//! | `check_in_while_an_opener_queues_up_loses_no_wake_up` | return, opener | 6 | `look_precedes_the_flag`, `push_ignores_waiters` |
//! | `cancelled_opener_passes_its_connection_on` | return, opener, cancel, acquire | 3 | `cancelled_check_out_keeps_its_grant` |
//! | `waiter_that_leaves_keeps_the_flags_raised_for_an_opener` | return, opener, cancel | 3 | `flags_lowered_over_openers` |
//! | `freed_permit_goes_to_a_waiter_and_not_to_an_opener` | permit, opener, acquire | 3 | `permits_are_not_served` |
//! | **clearing**: orderings 6, 8 | | | |
//! | `connection_checked_in_during_a_clear_is_closed_once_as_stale` | heard return, clear, maintain | none | `generation_is_read_before_the_head`, `empty_detach_keeps_the_head`, `clear_detaches_first` |
//! | `connection_checked_in_during_a_close_is_closed_once_with_the_pool` | heard return, close | 6 | `empty_detach_keeps_the_head`, `close_detaches_first` |
//! | `connection_checked_in_during_a_clear_and_a_close_is_closed_once` | heard return, clear, close | 2 | `close_detaches_first` |
//! | `check_out_during_a_clear_shares_no_connection_with_it` | take, heard return, clear, maintain | 6 | `detach_in_two_steps` |
//! | `check_out_after_a_clear_gets_a_permit_while_stale_connections_are_closed` | clear, maintain, acquire | 6 | `permits_are_not_served` |
//! | `pool_cleared_follows_the_generation_change` | clear | none | `cleared_announced_early` |
//! | `clear_of_a_paused_pool_emits_no_event` | clear, clear | none | `paused_clear_announced` |
//! | `interruption_reaches_exactly_the_generations_before_its_clear` | clear, maintain, open | 3 | `interruption_reaches_the_new_generation` |
//! | `interruption_wakes_the_user_that_waits_for_it` | clear, maintain, watch | 5 | `mark_is_not_read_again`, `watch_publishes_nothing` |
//! | `slot_is_watched_again_only_after_its_last_waker_was_taken` | clear, maintain, watch, open | 2 | `interrupts_without_the_lock`, `interrupter_is_not_awaited` |
//! | `pending_connection_interrupted_by_a_close_is_closed_with_the_pool` | close, watch, permit | 4 | `stamp_acquires_nothing` |
//! | `interruption_during_growth_of_the_slab_finds_every_slot` | maintain, open | 4 | `growth_publishes_nothing`, `growth_acquires_nothing` |
//! | `waiters_fail_after_pool_cleared_is_emitted` | clear, acquire | 3 | `refused_before_announced` |
//! | **checking**: connections that are checked before use | | | |
//! | `connection_that_fails_its_check_gives_a_permit_to_a_waiter` | check, acquire | 4 | `connection_that_fails_its_check_is_available` |
//! | `check_out_whose_connection_fails_its_check_is_granted_its_capacity` | check, acquire again, acquire | 3 | `connection_that_fails_its_check_is_kept` |
//! | `connection_whose_check_ends_during_a_clear_is_closed_once` | check, clear, maintain | 4 | `connection_that_fails_its_check_is_kept` |
//! | **draining**: connections that are drained | | | |
//! | `connection_drained_during_a_clear_is_closed_once_as_stale` | drain, clear, maintain | none | `generation_is_read_before_the_head`, `drained_connection_is_not_made_available` |
//! | `connection_drained_during_a_close_is_closed_once_with_the_pool` | drain, close | 6 | `close_detaches_first` |
//! | `drain_that_fails_during_a_clear_closes_its_connection_once` | drain, clear | none | `draining_connection_is_available` |
//! | `drained_connection_goes_to_a_waiter` | drain, acquire | 4 | `draining_connection_is_available`, `drained_connection_is_not_made_available`, `push_ignores_waiters` |
//! | `failed_drain_gives_a_permit_to_a_waiter` | drain, acquire | 4 | `permits_are_not_served` |
//! | `clear_during_a_drain_answers_a_waiter_once` | drain, clear, acquire | 3 | `generation_is_read_before_the_head` |
//! | `stale_drained_connection_is_never_handed_to_a_later_waiter` | drain, clear, acquire | 3 | `stale_connection_is_handed_over` |
//! | **drain queue**: drains whose capacity a check-out needs | | | |
//! | `drain_that_begins_while_a_check_out_queues_up_does_not_delay_it` | drain, acquire | 4 | `drain_ignores_waiters`, `waiters_ignore_drains`, `displaced_drain_is_not_told`, `capacity_is_released_before_the_close` |
//! | `drain_that_ends_while_a_check_out_needs_its_capacity_ends_once` | drain, acquire | 3 | `displaced_connection_is_kept` |
//! | `drain_that_fails_while_a_check_out_needs_its_capacity_ends_once` | drain, acquire | 3 | `displaced_connection_is_kept` |
//! | `permit_freed_while_a_check_out_queues_up_displaces_a_drain` | drain, permit, acquire | 4 | `waiters_ignore_drains`, `drains_are_not_displaced` |
//! | `second_drain_that_begins_delays_neither_of_two_check_outs` | drain, acquire, acquire | 3 | `drain_ignores_waiters`, `displacing_never_ends` |
//! | `second_drain_outlives_the_first_and_delays_no_check_out` | drain, drain, acquire | 3 | `flag_lowered_over_drains`, `drain_that_ends_stays_in_the_queue` |
//! | `drain_during_a_clear_and_a_check_out_ends_once` | drain, clear, acquire | 2 | `generation_is_read_before_the_head` |
//! | `drain_during_a_close_and_a_check_out_ends_once` | drain, close, acquire | 2 | `displaced_connection_is_kept` |
//! | **services**: load-balanced mode | | | |
//! | `connection_checked_in_during_a_clear_of_its_service_is_closed_once_as_stale` | heard return, clear service, maintain | none | `generation_is_read_before_the_head`, `empty_detach_keeps_the_head` |
//! | `check_out_during_maintenance_gets_the_connection_that_is_put_back` | maintain, acquire, heard return | 4 | `push_ignores_waiters` |
//! | `clear_of_a_service_reaches_every_shard_in_one_of_two_runs` | clear service, maintain | 4 | `reap_leaves_a_shard`, `service_cleared_publishes_nothing`, `service_cleared_acquires_nothing` |
//! | **stack**: the stack of a shard | | | |
//! | `old_head_is_never_mistaken_for_a_new_one` | take, return | 6 | `tag_not_counted` |
//! | `check_in_publishes_the_users_writes` | take, return | none | `head_publishes_nothing` |
//! | `hand_over_publishes_the_users_writes` | return, acquire | none | `grant_publishes_nothing` |
//! | **delivery**: events and the end of a pool | | | |
//! | `events_arrive_one_at_a_time_in_the_order_of_emission` | deliver, deliver | 3 | `role_is_freed_for_the_successor` |
//! | `all_events_of_three_callers_are_delivered_when_the_last_returns` | deliver, deliver | 2 | `queue_is_checked_before_the_role_is_freed` |
//! | `call_delivers_at_most_its_turn_and_the_events_left_behind` | deliver, deliver | 4 | `tired_deliverers_are_not_relieved` |
//! | `callers_leave_no_more_events_behind_than_the_room_allows` | deliver, deliver | 4 | `callers_leave_any_number_behind` |
//! | `waiting_callers_are_told_to_leave_or_to_deliver` | deliver, deliver | 3 | `waiting_callers_are_forgotten`, `verdict_wakes_no_thread` |
//! | `subscribers_that_publish_do_not_wait_for_themselves` | deliver, deliver | 3 | `subscribers_wait_too` |
//! | `subscribers_that_publish_to_each_other_do_not_wait_for_each_other` | deliver, deliver | 3 | `subscribers_wait_too` |
//! | `panicking_subscriber_keeps_no_role_and_loses_no_event` | deliver, deliver | 3 | `panic_ends_the_delivery` |
//! | `closed_completes_after_the_last_event` | deliver, end | 2 | `ended_while_the_last_is_delivered` |
//! | `closed_completes_after_the_event_of_the_last_connection` | deliver, end | 3 | `ended_before_the_queue_is_empty`, `end_of_delivery_wakes_no_task` |
//! | `closed_completes_when_the_last_connection_is_gone` | end | none | `look_again_wakes_no_task` |
//! | **holders**: the records of the holders of connections | | | |
//! | `holder_is_read_from_one_use` | note, noted return, take, list holders | 2 | `hold_publishes_nothing`, `hold_acquires_nothing`, `hold_is_written_without_a_fence`, `hold_is_read_without_a_fence`, `hold_is_read_once` |
//! | `use_that_was_reported_as_long_is_reported_as_ended` | noted return, review holds | none | `hold_ends_in_two_steps` |
//! | `earlier_use_that_was_reported_as_long_is_reported_as_ended` | noted return, review holds | 4 | `earlier_hold_is_reported_without_a_second_look`, `earlier_hold_that_ends_meanwhile_is_not_reported` |
//! | `check_out_that_was_reported_as_an_earlier_use_ends_it_when_it_is_noted` | note, review holds | 4 | `noted_check_out_ends_no_earlier_hold`, `check_out_is_noted_after_the_earlier_hold_ends` |
//! | `check_out_that_was_reported_as_an_earlier_use_ends_it_when_it_gives_up` | take, review holds | 4 | `check_out_that_gives_up_ends_no_hold` |
//! | **inline**: events that their callers deliver | | | |
//! | `inline_event_follows_the_queued_event_before_it` | deliver, deliver inline | 3 | `queued_event_raises_no_flag`, `idle_while_an_event_is_delivered`, `idle_publishes_nothing`, `idle_acquires_nothing`, `verdict_publishes_nothing`, `verdict_acquires_nothing` |
//! | `inline_event_is_delivered_before_its_caller_goes_on` | deliver, deliver inline | 3 | `inline_event_is_left_behind` |
//! | `inline_event_waits_for_the_event_that_its_caller_left_behind` | deliver, deliver inline | 3 | `inline_callers_leave_events_behind` |
//! | `event_emitted_inside_an_inline_delivery_follows_it` | deliver, deliver inline | 3 | `subscribers_deliver_inline`, `embargo_is_ignored`, `reserved_role_is_not_taken`, `embargo_is_not_lifted` |
//! | `subscriber_of_an_inline_event_is_not_called_inside_of_its_own_call` | deliver, deliver inline | 3 | `inline_delivery_delivers_the_queue` |
//! | `panicking_subscriber_ends_its_inline_delivery` | deliver, deliver inline | 3 | `panic_ends_the_inline_delivery` |
//! | `caller_that_delivers_inline_is_held_for_a_bounded_number_of_events` | deliver, deliver inline | 4 | `turns_do_not_end` |
//! | **primitives**: the watch, the brief lock, the wait list alone, the stacks of slots and the front | | | |
//! | `watch_never_misses_a_clear` | clear, wait for change | 4 | `watch_checks_before_it_listens`, `stale_announced_early` |
//! | `watch_never_misses_a_close` | close, wait for change | 4 | `watch_checks_before_it_listens` |
//! | `brief_lock_has_one_holder_that_sees_the_last_holders_writes` | brief lock, brief lock | 3 | `brief_lock_without_comparing`, `brief_lock_acquires_nothing`, `brief_lock_releases_nothing` |
//! | `brief_lock_runs_each_section_once_and_its_thread_sees_the_outcome` | run section, brief lock | 3 | `brief_lock_request_publishes_nothing`, `brief_lock_takes_unseen_requests`, `brief_lock_serves_unseen`, `brief_lock_served_acquires_nothing`, `brief_lock_leaves_a_request_behind`, `brief_lock_reads_a_request_that_was_served` |
//! | `brief_lock_that_is_given_to_a_thread_is_held` | brief lock, run section | 1 | `brief_lock_is_given_and_released` |
//! | `brief_lock_is_given_with_the_later_request` | brief lock, run section | 4 | `brief_lock_is_given_without_the_later_requests` |
//! | `waiter_and_granter_meet_in_either_order` | wait alone, grant alone | none | `early_grant_is_left_for_a_waiter_that_came`, `early_grant_publishes_nothing`, `cell_publishes_no_waiter`, `cell_acquires_no_waiter` |
//! | `cell_is_used_again_only_when_its_ticket_is_over` | wait alone, grant alone | 3 | `cell_is_over_before_its_grant_is_taken`, `segment_is_removed_before_it_is_over`, `taken_cell_is_over_early` |
//! | `segment_is_freed_only_when_its_tickets_are_over` | wait alone, grant alone | 3 | `cell_is_gone_unseen` |
//! | `cell_is_used_again_only_when_its_granter_is_done` | wait alone, grant alone | 3 | `grant_publishes_nothing`, `grant_is_not_acquired`, `granter_takes_the_waker_after_the_grant`, `waiter_does_not_wait_for_its_listener` |
//! | `newcomers_find_the_cells_of_their_tickets` | wait alone, wait alone | 3 | `newcomer_takes_a_ticket_without_a_cell`, `limit_publishes_nothing`, `limit_acquires_nothing` |
//! | `slot_is_owned_by_one_thread_although_its_stack_looks_unchanged` | take slot, put slot | 4 | `slot_stack_tag_not_counted` |
//! | `taker_of_a_slot_sees_what_its_last_owner_stored` | take slot, put slot | 4 | `slot_stack_publishes_nothing`, `slot_stack_acquires_nothing` |
//! | `slots_pushed_while_others_are_detached_are_not_lost` | take slot, put slot, detach slots | 4 | `slots_are_detached_in_two_steps` |
//! | `front_gives_each_value_once_and_whole` | take front, put front | 4 | `front_publishes_nothing`, `front_acquires_nothing`, `front_is_held_by_two` |
//! | **renewal**: the end of a pool's runtime, and worn connections | | | |
//! | `connection_checked_in_during_a_renewal_is_closed_once_as_stale` | heard return, renew, maintain | none | `generation_is_read_before_the_head`, `clear_detaches_first` |
//! | `check_out_that_queues_up_during_a_renewal_is_served` | renew, acquire, maintain | 2 | `permits_are_not_served` |
//! | `waiter_is_served_despite_a_renewal` | return, renew, acquire, maintain | 2 | `permits_are_not_served` |
//! | `two_worn_connections_that_come_back_leave_one_open` | worn return, worn return | 3 | `connection_that_is_given_up_still_counts` |
//! | `worn_connection_that_comes_back_during_maintenance_leaves_one_open` | worn return, maintain | 3 | `connection_that_is_given_up_still_counts` |
#![cfg(loom)]

mod explored;
mod models;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod stacks;
