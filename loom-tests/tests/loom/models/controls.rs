//! Negative controls: each mutant must make its model fail, in a child process of the instrumented build.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use wharf_loom_tests::instrumented;
use wharf_loom_tests::mutants;

use super::harness::{FAILED, MUTANT, STARTED};

/// Pairs of a mutant (see `loom-tests/src/mutants/mod.rs`) and the model that must catch it.
const CONTROLS: &[(&str, &str)] = &[
    ("ready_announced_late", "opening::pool_ready_is_emitted_before_a_check_out_creates_a_connection"),
    ("ready_announced_late", "opening::pool_ready_is_emitted_before_the_background_task_creates_a_connection"),
    ("created_outside_the_lock", "opening::connections_are_created_only_between_pool_ready_and_pool_cleared"),
    ("pool_word_publishes_nothing", "opening::thread_that_sees_a_ready_pool_sees_the_pool_ready_event"),
    ("counts_read_after_the_search", "opening::pending_count_drops_after_the_connection_is_available"),
    ("pending_count_drops_early", "opening::pending_count_drops_after_the_connection_is_available"),
    ("capacity_publishes_nothing", "opening::pending_count_drops_after_the_connection_is_available"),
    ("counts_read_after_the_search", "opening::pending_count_drops_after_the_connection_is_available_on_another_shard"),
    ("created_outside_the_lock", "opening::ids_are_in_the_order_of_the_created_events"),
    ("shared_permit_is_never_taken", "opening::shared_permit_is_used_once_or_given_up"),
    ("shared_permit_is_lost", "opening::shared_permit_is_used_once_or_given_up"),
    ("counted_as_pending_until_after_the_grant", "opening::connection_that_is_handed_to_a_waiter_is_not_pending"),
    (
        "second_end_of_an_opening_overtakes_the_first",
        "opening::opened_connection_is_not_pending_when_its_check_out_returns",
    ),
    ("permit_of_a_shared_opening_is_lost", "opening::permit_of_an_opening_that_two_end_goes_to_a_waiter"),
    ("admission_without_comparing", "limits::total_never_exceeds_max_pool_size"),
    ("admission_without_comparing", "limits::pending_never_exceeds_max_connecting"),
    ("capacity_is_released_before_the_close", "limits::connection_counts_until_it_is_disposed_of"),
    ("unused_permit_is_kept", "limits::both_counts_return_to_zero_after_close"),
    ("close_leaves_the_counts_alone", "limits::end_of_the_last_connection_of_a_closed_pool_is_noticed"),
    ("capacity_publishes_nothing", "limits::end_of_the_last_connection_of_a_closed_pool_is_noticed"),
    ("close_leaves_the_counts_alone", "limits::end_of_the_last_establishment_of_a_closed_pool_is_noticed"),
    ("close_leaves_the_counts_alone", "limits::end_of_the_last_permit_of_a_closed_pool_is_noticed"),
    ("capacity_publishes_nothing", "limits::end_of_the_last_permit_of_a_closed_pool_is_noticed"),
    ("resize_outdates_no_reading", "resizing::check_out_during_a_resize_is_not_admitted_by_the_old_maximum"),
    ("growth_is_not_served", "resizing::check_out_that_queues_up_while_the_pool_grows_is_served"),
    ("maintenance_leaves_a_surplus", "resizing::connection_checked_in_while_the_pool_shrinks_is_no_surplus"),
    ("maintenance_leaves_a_surplus", "resizing::connection_opened_while_the_pool_shrinks_is_no_surplus"),
    ("detach_in_two_steps", "resizing::pool_that_is_closed_while_it_shrinks_closes_each_connection_once"),
    ("place_is_taken_and_stays_free", "sharing::pools_never_hold_more_connections_than_their_budget_has_places"),
    ("place_given_back_serves_no_pool", "sharing::place_given_back_while_another_pool_queues_up_loses_no_wake_up"),
    ("settling_ends_after_the_look", "sharing::place_given_back_while_another_pool_queues_up_loses_no_wake_up"),
    (
        "place_given_back_serves_no_pool",
        "sharing::place_given_back_while_a_pool_leaves_the_queue_goes_to_the_next_pool",
    ),
    ("settling_ends_after_the_look", "sharing::place_given_back_while_a_pool_leaves_the_queue_goes_to_the_next_pool"),
    ("pool_without_a_waiter_stays_in_the_queue", "sharing::pool_whose_waiters_leave_is_no_longer_in_the_queue"),
    (
        "pool_in_the_queue_does_not_look_again",
        "sharing::connection_returned_while_another_pool_queues_up_is_found_at_the_next_look",
    ),
    ("leaving_places_are_not_counted", "sharing::pool_in_the_queue_costs_others_one_connection"),
    (
        "flags_stay_raised_while_the_budget_is_settled",
        "sharing::connection_is_returned_while_a_check_out_that_may_not_wait_asks_for_a_place",
    ),
    ("look_precedes_the_flag", "waiting::check_in_while_a_check_out_queues_up_loses_no_wake_up"),
    ("push_ignores_waiters", "waiting::check_in_while_a_check_out_queues_up_loses_no_wake_up"),
    ("look_precedes_the_flag", "waiting::check_in_to_another_shard_while_a_check_out_queues_up_loses_no_wake_up"),
    ("push_ignores_waiters", "waiting::two_check_outs_are_both_served_by_one_connection"),
    ("permits_are_not_served", "waiting::permit_freed_while_a_check_out_queues_up_loses_no_wake_up"),
    ("admit_then_wait", "waiting::permit_freed_while_a_check_out_queues_up_loses_no_wake_up"),
    ("cancelled_check_out_keeps_its_grant", "waiting::cancelled_waiter_passes_its_connection_on"),
    ("cancelled_check_out_keeps_its_grant", "waiting::cancelled_waiter_passes_its_permit_on"),
    (
        "cancelled_check_out_keeps_its_grant",
        "waiting::connection_granted_to_a_cancelled_last_waiter_is_available_again",
    ),
    ("phase_is_not_read_again", "waiting::check_out_that_queues_up_during_a_clear_is_refused"),
    ("phase_is_not_read_again", "waiting::check_out_that_queues_up_during_a_close_is_refused"),
    ("generation_is_read_before_the_head", "waiting::hand_over_during_a_clear_answers_the_waiter_once"),
    ("stale_connection_is_handed_over", "waiting::stale_connection_is_never_handed_to_a_later_waiter"),
    ("newcomers_ignore_waiters", "waiting::newcomer_never_overtakes_a_waiter_for_a_permit"),
    ("background_task_ignores_waiters", "waiting::background_task_never_overtakes_a_waiter_for_a_permit"),
    ("second_waiter_is_claimed_first", "waiting::second_waiter_is_never_served_before_the_first"),
    ("waker_is_not_renewed", "waiting::waiter_polled_with_a_new_waker_is_woken_through_it"),
    ("granter_writes_the_waker", "waiting::waiter_polled_again_with_its_waker_is_woken_when_served"),
    ("look_precedes_the_flag", "openers::check_in_while_an_opener_queues_up_loses_no_wake_up"),
    ("push_ignores_waiters", "openers::check_in_while_an_opener_queues_up_loses_no_wake_up"),
    ("cancelled_check_out_keeps_its_grant", "openers::cancelled_opener_passes_its_connection_on"),
    ("flags_lowered_over_openers", "openers::waiter_that_leaves_keeps_the_flags_raised_for_an_opener"),
    ("permits_are_not_served", "openers::freed_permit_goes_to_a_waiter_and_not_to_an_opener"),
    ("generation_is_read_before_the_head", "clearing::connection_checked_in_during_a_clear_is_closed_once_as_stale"),
    ("empty_detach_keeps_the_head", "clearing::connection_checked_in_during_a_clear_is_closed_once_as_stale"),
    ("clear_detaches_first", "clearing::connection_checked_in_during_a_clear_is_closed_once_as_stale"),
    ("empty_detach_keeps_the_head", "clearing::connection_checked_in_during_a_close_is_closed_once_with_the_pool"),
    ("close_detaches_first", "clearing::connection_checked_in_during_a_close_is_closed_once_with_the_pool"),
    ("close_detaches_first", "clearing::connection_checked_in_during_a_clear_and_a_close_is_closed_once"),
    ("detach_in_two_steps", "clearing::check_out_during_a_clear_shares_no_connection_with_it"),
    ("permits_are_not_served", "clearing::check_out_after_a_clear_gets_a_permit_while_stale_connections_are_closed"),
    ("cleared_announced_early", "clearing::pool_cleared_follows_the_generation_change"),
    ("paused_clear_announced", "clearing::clear_of_a_paused_pool_emits_no_event"),
    (
        "interruption_reaches_the_new_generation",
        "clearing::interruption_reaches_exactly_the_generations_before_its_clear",
    ),
    ("mark_is_not_read_again", "clearing::interruption_wakes_the_user_that_waits_for_it"),
    ("watch_publishes_nothing", "clearing::interruption_wakes_the_user_that_waits_for_it"),
    ("interrupts_without_the_lock", "clearing::slot_is_watched_again_only_after_its_last_waker_was_taken"),
    ("interrupter_is_not_awaited", "clearing::slot_is_watched_again_only_after_its_last_waker_was_taken"),
    (
        "connection_that_fails_its_check_is_available",
        "checking::connection_that_fails_its_check_gives_a_permit_to_a_waiter",
    ),
    (
        "connection_that_fails_its_check_is_kept",
        "checking::check_out_whose_connection_fails_its_check_is_granted_its_capacity",
    ),
    ("connection_that_fails_its_check_is_kept", "checking::connection_whose_check_ends_during_a_clear_is_closed_once"),
    ("generation_is_read_before_the_head", "draining::connection_drained_during_a_clear_is_closed_once_as_stale"),
    ("drained_connection_is_not_made_available", "draining::connection_drained_during_a_clear_is_closed_once_as_stale"),
    ("close_detaches_first", "draining::connection_drained_during_a_close_is_closed_once_with_the_pool"),
    ("draining_connection_is_available", "draining::drain_that_fails_during_a_clear_closes_its_connection_once"),
    ("draining_connection_is_available", "draining::drained_connection_goes_to_a_waiter"),
    ("drained_connection_is_not_made_available", "draining::drained_connection_goes_to_a_waiter"),
    ("push_ignores_waiters", "draining::drained_connection_goes_to_a_waiter"),
    ("permits_are_not_served", "draining::failed_drain_gives_a_permit_to_a_waiter"),
    ("generation_is_read_before_the_head", "draining::clear_during_a_drain_answers_a_waiter_once"),
    ("stale_connection_is_handed_over", "draining::stale_drained_connection_is_never_handed_to_a_later_waiter"),
    ("drain_ignores_waiters", "drain_queue::drain_that_begins_while_a_check_out_queues_up_does_not_delay_it"),
    ("waiters_ignore_drains", "drain_queue::drain_that_begins_while_a_check_out_queues_up_does_not_delay_it"),
    ("displaced_drain_is_not_told", "drain_queue::drain_that_begins_while_a_check_out_queues_up_does_not_delay_it"),
    (
        "capacity_is_released_before_the_close",
        "drain_queue::drain_that_begins_while_a_check_out_queues_up_does_not_delay_it",
    ),
    ("displaced_connection_is_kept", "drain_queue::drain_that_ends_while_a_check_out_needs_its_capacity_ends_once"),
    ("displaced_connection_is_kept", "drain_queue::drain_that_fails_while_a_check_out_needs_its_capacity_ends_once"),
    ("waiters_ignore_drains", "drain_queue::permit_freed_while_a_check_out_queues_up_displaces_a_drain"),
    ("drains_are_not_displaced", "drain_queue::permit_freed_while_a_check_out_queues_up_displaces_a_drain"),
    ("drain_ignores_waiters", "drain_queue::second_drain_that_begins_delays_neither_of_two_check_outs"),
    ("displacing_never_ends", "drain_queue::second_drain_that_begins_delays_neither_of_two_check_outs"),
    ("flag_lowered_over_drains", "drain_queue::second_drain_outlives_the_first_and_delays_no_check_out"),
    ("drain_that_ends_stays_in_the_queue", "drain_queue::second_drain_outlives_the_first_and_delays_no_check_out"),
    ("generation_is_read_before_the_head", "drain_queue::drain_during_a_clear_and_a_check_out_ends_once"),
    ("displaced_connection_is_kept", "drain_queue::drain_during_a_close_and_a_check_out_ends_once"),
    ("generation_is_read_before_the_head", "renewal::connection_checked_in_during_a_renewal_is_closed_once_as_stale"),
    ("clear_detaches_first", "renewal::connection_checked_in_during_a_renewal_is_closed_once_as_stale"),
    ("permits_are_not_served", "renewal::check_out_that_queues_up_during_a_renewal_is_served"),
    ("permits_are_not_served", "renewal::waiter_is_served_despite_a_renewal"),
    ("connection_that_is_given_up_still_counts", "renewal::two_worn_connections_that_come_back_leave_one_open"),
    (
        "connection_that_is_given_up_still_counts",
        "renewal::worn_connection_that_comes_back_during_maintenance_leaves_one_open",
    ),
    (
        "generation_is_read_before_the_head",
        "services::connection_checked_in_during_a_clear_of_its_service_is_closed_once_as_stale",
    ),
    (
        "empty_detach_keeps_the_head",
        "services::connection_checked_in_during_a_clear_of_its_service_is_closed_once_as_stale",
    ),
    ("push_ignores_waiters", "services::check_out_during_maintenance_gets_the_connection_that_is_put_back"),
    ("tag_not_counted", "stack::old_head_is_never_mistaken_for_a_new_one"),
    ("head_publishes_nothing", "stack::check_in_publishes_the_users_writes"),
    ("grant_publishes_nothing", "stack::hand_over_publishes_the_users_writes"),
    ("hit_without_comparing", "hits::concurrent_hits_share_no_connection"),
    ("noted_slot_is_taken_without_comparing", "hits::concurrent_hits_share_no_connection"),
    ("empty_detach_keeps_the_head", "hits::connection_put_back_during_a_clear_is_not_left_to_hit"),
    ("slot_is_put_back_without_comparing", "hits::connection_put_back_during_a_clear_is_not_left_to_hit"),
    ("slot_from_another_shard_keeps_its_link", "hits::connection_put_back_after_another_shard_had_it_is_linked_anew"),
    ("note_keeps_the_heads_of_another_shard", "hits::hit_after_the_use_of_another_pool_takes_no_slot_of_that_pool"),
    (
        "note_keeps_the_head_that_a_hit_left_on_another_shard",
        "hits::connection_is_not_put_back_by_the_head_of_another_pool",
    ),
    (
        "another_slot_is_put_back_as_the_noted_one",
        "hits::hit_takes_the_connection_that_was_put_back_and_not_the_noted_one",
    ),
    ("push_without_comparing", "hits::concurrent_returns_lose_no_connection"),
    ("noted_slot_is_taken_without_comparing", "hits::hit_during_a_return_loses_no_connection"),
    ("push_without_comparing", "hits::hit_during_a_return_loses_no_connection"),
    ("head_publishes_nothing", "hits::hit_sees_the_last_users_writes"),
    ("head_acquires_nothing", "hits::hit_sees_the_last_users_writes"),
    ("tag_not_counted", "hits::hit_never_mistakes_an_old_head_for_a_new_one"),
    ("push_ignores_waiters", "hits::hit_and_return_while_a_check_out_queues_up_lose_no_wake_up"),
    ("look_precedes_the_flag", "hits::hit_and_return_while_a_check_out_queues_up_lose_no_wake_up"),
    ("return_that_fails_is_lost", "hits::hit_and_return_while_a_check_out_queues_up_lose_no_wake_up"),
    ("push_ignores_waiters", "hits::hit_never_overtakes_a_waiter"),
    ("detach_in_two_steps", "hits::hit_during_a_clear_shares_no_connection_with_it"),
    ("push_ignores_the_generation", "hits::return_during_a_clear_leaves_no_stale_connection_to_hit"),
    ("generation_is_read_before_the_head", "hits::return_during_a_clear_leaves_no_stale_connection_to_hit"),
    ("empty_detach_keeps_the_head", "hits::return_during_a_clear_leaves_no_stale_connection_to_hit"),
    ("clear_detaches_first", "hits::return_during_a_clear_leaves_no_stale_connection_to_hit"),
    ("detach_in_two_steps", "hits::hit_during_a_close_shares_no_connection_with_it"),
    ("push_ignores_the_generation", "hits::connection_returned_during_a_close_is_closed_once"),
    ("close_detaches_first", "hits::connection_returned_during_a_close_is_closed_once"),
    ("link_publishes_nothing", "hits::consistent_status_counts_a_held_connection_as_in_use"),
    ("link_acquires_nothing", "hits::consistent_status_counts_a_held_connection_as_in_use"),
    ("hit_ignores_the_subscribers", "hits::hit_takes_no_connection_if_the_environment_listens"),
    ("hit_is_counted_before_the_slot_is_owned", "hits::each_hit_is_counted_once_and_the_timed_one_is_measured"),
    ("timed_use_ends_after_the_return", "hits::each_hit_is_counted_once_and_the_timed_one_is_measured"),
    ("link_is_kept_at_another_height", "hits::concurrent_returns_lose_no_connection"),
    ("detach_leaves_a_shard", "shards::clear_during_returns_leaves_no_stale_connection_on_any_shard"),
    ("detach_leaves_a_shard", "shards::close_during_returns_empties_every_shard"),
    ("settle_leaves_a_shard", "shards::cancelled_waiter_leaves_no_shard_flagged"),
    ("settle_leaves_a_shard", "shards::opener_is_served_from_every_shard_and_leaves_none_flagged"),
    ("flags_leave_out_a_shard", "shards::opener_is_served_from_every_shard_and_leaves_none_flagged"),
    ("flag_is_raised_over_connections", "shards::opener_is_served_from_every_shard_and_leaves_none_flagged"),
    ("settle_leaves_a_shard", "shards::opener_cancelled_during_a_clear_leaves_no_shard_flagged"),
    ("settle_leaves_a_shard", "shards::check_out_that_queues_up_during_a_clear_leaves_no_shard_flagged"),
    ("capacity_acquires_nothing", "opening::pending_count_drops_after_the_connection_is_available"),
    ("search_leaves_out_a_shard", "opening::pending_count_drops_after_the_connection_is_available_on_another_shard"),
    ("pool_word_acquires_nothing", "opening::thread_that_sees_a_ready_pool_sees_the_pool_ready_event"),
    ("flags_leave_out_a_shard", "waiting::check_in_to_another_shard_while_a_check_out_queues_up_loses_no_wake_up"),
    (
        "flag_is_raised_over_connections",
        "waiting::check_in_to_another_shard_while_a_check_out_queues_up_loses_no_wake_up",
    ),
    ("watch_checks_before_it_listens", "primitives::watch_never_misses_a_clear"),
    ("stale_announced_early", "primitives::watch_never_misses_a_clear"),
    ("watch_checks_before_it_listens", "primitives::watch_never_misses_a_close"),
    ("brief_lock_without_comparing", "primitives::brief_lock_has_one_holder_that_sees_the_last_holders_writes"),
    ("brief_lock_acquires_nothing", "primitives::brief_lock_has_one_holder_that_sees_the_last_holders_writes"),
    ("brief_lock_releases_nothing", "primitives::brief_lock_has_one_holder_that_sees_the_last_holders_writes"),
    (
        "brief_lock_request_publishes_nothing",
        "primitives::brief_lock_runs_each_section_once_and_its_thread_sees_the_outcome",
    ),
    (
        "brief_lock_takes_unseen_requests",
        "primitives::brief_lock_runs_each_section_once_and_its_thread_sees_the_outcome",
    ),
    ("brief_lock_serves_unseen", "primitives::brief_lock_runs_each_section_once_and_its_thread_sees_the_outcome"),
    (
        "brief_lock_served_acquires_nothing",
        "primitives::brief_lock_runs_each_section_once_and_its_thread_sees_the_outcome",
    ),
    (
        "brief_lock_leaves_a_request_behind",
        "primitives::brief_lock_runs_each_section_once_and_its_thread_sees_the_outcome",
    ),
    (
        "brief_lock_reads_a_request_that_was_served",
        "primitives::brief_lock_runs_each_section_once_and_its_thread_sees_the_outcome",
    ),
    ("brief_lock_is_given_and_released", "primitives::brief_lock_that_is_given_to_a_thread_is_held"),
    ("brief_lock_is_given_without_the_later_requests", "primitives::brief_lock_is_given_with_the_later_request"),
    ("slot_stack_tag_not_counted", "primitives::slot_is_owned_by_one_thread_although_its_stack_looks_unchanged"),
    ("slot_stack_publishes_nothing", "primitives::taker_of_a_slot_sees_what_its_last_owner_stored"),
    ("slot_stack_acquires_nothing", "primitives::taker_of_a_slot_sees_what_its_last_owner_stored"),
    ("slots_are_detached_in_two_steps", "primitives::slots_pushed_while_others_are_detached_are_not_lost"),
    ("front_publishes_nothing", "primitives::front_gives_each_value_once_and_whole"),
    ("front_acquires_nothing", "primitives::front_gives_each_value_once_and_whole"),
    ("front_is_held_by_two", "primitives::front_gives_each_value_once_and_whole"),
    ("reap_leaves_a_shard", "services::clear_of_a_service_reaches_every_shard_in_one_of_two_runs"),
    ("service_cleared_publishes_nothing", "services::clear_of_a_service_reaches_every_shard_in_one_of_two_runs"),
    ("service_cleared_acquires_nothing", "services::clear_of_a_service_reaches_every_shard_in_one_of_two_runs"),
    ("stamp_acquires_nothing", "clearing::pending_connection_interrupted_by_a_close_is_closed_with_the_pool"),
    ("growth_publishes_nothing", "clearing::interruption_during_growth_of_the_slab_finds_every_slot"),
    ("growth_acquires_nothing", "clearing::interruption_during_growth_of_the_slab_finds_every_slot"),
    ("refused_before_announced", "clearing::waiters_fail_after_pool_cleared_is_emitted"),
    ("role_is_freed_for_the_successor", "delivery::events_arrive_one_at_a_time_in_the_order_of_emission"),
    (
        "queue_is_checked_before_the_role_is_freed",
        "delivery::all_events_of_three_callers_are_delivered_when_the_last_returns",
    ),
    ("tired_deliverers_are_not_relieved", "delivery::call_delivers_at_most_its_turn_and_the_events_left_behind"),
    ("callers_leave_any_number_behind", "delivery::callers_leave_no_more_events_behind_than_the_room_allows"),
    ("waiting_callers_are_forgotten", "delivery::waiting_callers_are_told_to_leave_or_to_deliver"),
    ("verdict_wakes_no_thread", "delivery::waiting_callers_are_told_to_leave_or_to_deliver"),
    ("subscribers_wait_too", "delivery::subscribers_that_publish_do_not_wait_for_themselves"),
    ("subscribers_wait_too", "delivery::subscribers_that_publish_to_each_other_do_not_wait_for_each_other"),
    ("panic_ends_the_delivery", "delivery::panicking_subscriber_keeps_no_role_and_loses_no_event"),
    ("ended_while_the_last_is_delivered", "delivery::closed_completes_after_the_last_event"),
    ("ended_before_the_queue_is_empty", "delivery::closed_completes_after_the_event_of_the_last_connection"),
    ("end_of_delivery_wakes_no_task", "delivery::closed_completes_after_the_event_of_the_last_connection"),
    ("look_again_wakes_no_task", "delivery::closed_completes_when_the_last_connection_is_gone"),
    ("hold_publishes_nothing", "holders::holder_is_read_from_one_use"),
    ("hold_acquires_nothing", "holders::holder_is_read_from_one_use"),
    ("hold_is_written_without_a_fence", "holders::holder_is_read_from_one_use"),
    ("hold_is_read_without_a_fence", "holders::holder_is_read_from_one_use"),
    ("hold_is_read_once", "holders::holder_is_read_from_one_use"),
    ("hold_ends_in_two_steps", "holders::use_that_was_reported_as_long_is_reported_as_ended"),
    (
        "earlier_hold_is_reported_without_a_second_look",
        "holders::earlier_use_that_was_reported_as_long_is_reported_as_ended",
    ),
    (
        "earlier_hold_that_ends_meanwhile_is_not_reported",
        "holders::earlier_use_that_was_reported_as_long_is_reported_as_ended",
    ),
    (
        "noted_check_out_ends_no_earlier_hold",
        "holders::check_out_that_was_reported_as_an_earlier_use_ends_it_when_it_is_noted",
    ),
    (
        "check_out_is_noted_after_the_earlier_hold_ends",
        "holders::check_out_that_was_reported_as_an_earlier_use_ends_it_when_it_is_noted",
    ),
    (
        "check_out_that_gives_up_ends_no_hold",
        "holders::check_out_that_was_reported_as_an_earlier_use_ends_it_when_it_gives_up",
    ),
    ("queued_event_raises_no_flag", "inline::inline_event_follows_the_queued_event_before_it"),
    ("idle_while_an_event_is_delivered", "inline::inline_event_follows_the_queued_event_before_it"),
    ("idle_publishes_nothing", "inline::inline_event_follows_the_queued_event_before_it"),
    ("idle_acquires_nothing", "inline::inline_event_follows_the_queued_event_before_it"),
    ("verdict_publishes_nothing", "inline::inline_event_follows_the_queued_event_before_it"),
    ("verdict_acquires_nothing", "inline::inline_event_follows_the_queued_event_before_it"),
    ("inline_event_is_left_behind", "inline::inline_event_is_delivered_before_its_caller_goes_on"),
    ("inline_callers_leave_events_behind", "inline::inline_event_waits_for_the_event_that_its_caller_left_behind"),
    ("subscribers_deliver_inline", "inline::event_emitted_inside_an_inline_delivery_follows_it"),
    ("embargo_is_ignored", "inline::event_emitted_inside_an_inline_delivery_follows_it"),
    ("reserved_role_is_not_taken", "inline::event_emitted_inside_an_inline_delivery_follows_it"),
    ("embargo_is_not_lifted", "inline::event_emitted_inside_an_inline_delivery_follows_it"),
    (
        "inline_delivery_delivers_the_queue",
        "inline::subscriber_of_an_inline_event_is_not_called_inside_of_its_own_call",
    ),
    ("panic_ends_the_inline_delivery", "inline::panicking_subscriber_ends_its_inline_delivery"),
    ("turns_do_not_end", "inline::caller_that_delivers_inline_is_held_for_a_bounded_number_of_events"),
    ("tickets_are_swapped_without_comparing", "waiting::newcomer_never_overtakes_a_waiter_for_a_connection"),
    ("last_waiter_is_claimed_without_the_lock", "waiting::two_check_outs_are_both_served_by_one_connection"),
    ("claim_ignores_the_generation", "waiting::stale_connection_is_never_handed_to_the_first_of_two_later_waiters"),
    ("stale_connection_is_handed_over", "waiting::stale_connection_is_never_handed_to_the_first_of_two_later_waiters"),
    ("tickets_publish_nothing", "waiting::stale_connection_is_never_handed_to_the_first_of_two_later_waiters"),
    ("tickets_acquire_nothing", "waiting::stale_connection_is_never_handed_to_the_first_of_two_later_waiters"),
    ("waiter_is_not_withheld", "waiting::cancelled_waiter_passes_its_connection_on"),
    ("gap_stays_in_the_word", "waiting::cancelled_waiter_passes_its_connection_on"),
    ("claim_ignores_openers_and_gaps", "waiting::cancelled_waiter_passes_its_connection_on"),
    ("cancelled_check_out_keeps_its_grant", "waiting::newcomer_that_leaves_takes_no_grant_of_one_before_it"),
    ("cancelled_check_out_keeps_its_grant", "waiting::third_waiter_is_never_served_before_the_first"),
    ("turned_away_waiter_stays_in_its_range", "waiting::waiter_cancelled_during_a_clear_is_counted_out_once"),
    ("turned_away_waiters_are_claimed", "waiting::refusal_never_reaches_a_waiter_that_came_after_the_clear"),
    ("turned_away_waiters_are_claimed", "waiting::claim_reaches_its_waiter_during_two_clears"),
    ("word_that_became_the_same_again_is_not_acquired", "waiting::newcomer_never_overtakes_a_waiter_for_a_connection"),
    ("second_waiter_is_claimed_first", "waiting::newcomer_never_overtakes_a_waiter_for_a_connection"),
    ("stale_connection_is_closed_first", "waiting::newcomer_never_overtakes_a_check_out_whose_connection_went_stale"),
    (
        "check_out_is_queued_again_behind_waiters",
        "waiting::newcomer_never_overtakes_a_check_out_whose_connection_went_stale",
    ),
    ("check_outs_queued_again_are_not_refused", "waiting::check_out_queued_again_during_a_clear_is_refused"),
    ("early_grant_is_not_seen", "waiting::newcomer_never_overtakes_a_waiter_for_a_connection"),
    ("granter_does_not_notify", "waiting::check_in_while_a_check_out_queues_up_loses_no_wake_up"),
    ("early_grant_is_left_for_a_waiter_that_came", "primitives::waiter_and_granter_meet_in_either_order"),
    ("early_grant_publishes_nothing", "primitives::waiter_and_granter_meet_in_either_order"),
    ("grant_publishes_nothing", "primitives::cell_is_used_again_only_when_its_granter_is_done"),
    ("grant_is_not_acquired", "primitives::cell_is_used_again_only_when_its_granter_is_done"),
    ("cell_publishes_no_waiter", "primitives::waiter_and_granter_meet_in_either_order"),
    ("cell_acquires_no_waiter", "primitives::waiter_and_granter_meet_in_either_order"),
    ("cell_is_over_before_its_grant_is_taken", "primitives::cell_is_used_again_only_when_its_ticket_is_over"),
    ("segment_is_removed_before_it_is_over", "primitives::cell_is_used_again_only_when_its_ticket_is_over"),
    ("cell_is_gone_unseen", "primitives::segment_is_freed_only_when_its_tickets_are_over"),
    ("taken_cell_is_over_early", "primitives::cell_is_used_again_only_when_its_ticket_is_over"),
    ("granter_takes_the_waker_after_the_grant", "primitives::cell_is_used_again_only_when_its_granter_is_done"),
    ("waiter_does_not_wait_for_its_listener", "primitives::cell_is_used_again_only_when_its_granter_is_done"),
    ("newcomer_takes_a_ticket_without_a_cell", "primitives::newcomers_find_the_cells_of_their_tickets"),
    ("limit_publishes_nothing", "primitives::newcomers_find_the_cells_of_their_tickets"),
    ("limit_acquires_nothing", "primitives::newcomers_find_the_cells_of_their_tickets"),
    (
        "tickets_are_swapped_without_comparing",
        "waiting::check_out_that_queues_up_behind_another_during_a_clear_is_refused",
    ),
];

/// Mutants of orderings in shared code that only one of the two ways to park needs. In the other case, the event's lock
/// guarantees the same order.
const ORDERINGS_OF_OWN: &[&str] = &[
    "cell_publishes_no_waiter",
    "cell_acquires_no_waiter",
    "grant_publishes_nothing",
    "grant_is_not_acquired",
    // With events, a waiter that changes its waker is not withheld, so the word does not change and change back.
    "word_that_became_the_same_again_is_not_acquired",
];

/// Returns whether the pool in this build contains the mutant.
fn is_present(mutant: &str) -> bool {
    let is_absent = cfg!(feature = "event-listener-queue") && ORDERINGS_OF_OWN.contains(&mutant);
    mutants::is_present(mutant) && !is_absent
}

const AT_A_TIME: usize = 2;
/// The time after which a model is considered to hang, and is killed. The slowest controls take 75 s on a quiet machine
/// with two cores, and much longer when the machine is busy, because the models run at the lowest priority in CI.
const TIME_LIMIT: Duration = Duration::from_secs(3600);

#[test]
fn every_mutant_is_caught() {
    if std::env::var_os(MUTANT).is_some() {
        return;
    }
    let binary = &instrumented::build("loom").unwrap_or_else(|why| panic!("the instrumented build failed: {why}"));
    // Only the models whose paths begin with one of these words are run. This saves time while working on a few
    // controls.
    let only = std::env::var("WHARF_LOOM_CONTROLS").unwrap_or_default();
    let selects = |word: &str, (mutant, model): &(&str, &str)| model.starts_with(word) && is_present(mutant);
    for word in only.split(',') {
        assert!(CONTROLS.iter().any(|control| selects(word, control)), "WHARF_LOOM_CONTROLS selects nothing: {word:?}");
    }
    let remaining = CONTROLS.iter().filter(|control| only.split(',').any(|word| selects(word, control)));
    let remaining = Mutex::new(remaining);
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

/// Runs a model with a mutant. Returns how the model failed, or an error that says why the mutant was not caught.
fn examine(binary: &Path, mutant: &str, model: &str) -> Result<String, String> {
    let mut child = Command::new(binary)
        .args(["--exact", &format!("models::{model}"), "--nocapture"])
        .env(MUTANT, mutant)
        // Printing the backtrace of a failing model takes longer than running the model.
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut stdout = child.stdout.take().expect("stdout is not piped");
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        // After a read error, the output is incomplete. Without the start message, the model is reported as not
        // started.
        let _ = stdout.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let ended = wait(&mut child);
    let output = reader.join().expect("the reader panicked");
    if !output.contains(STARTED) {
        return Err(format!("the model did not start: {output}"));
    }
    match ended {
        None => Err("the model did not end within the time limit".into()),
        Some(true) => Err("the model passed".into()),
        Some(false) => {
            let failure = output.lines().find_map(|line| line.split_once(FAILED)).map(|(_, failure)| failure.trim());
            let failure = failure.ok_or_else(|| format!("the process failed, but not the model: {output}"))?;
            Ok(failure.split_once(' ').map_or(failure, |(_, of)| of).chars().take(140).collect())
        }
    }
}

/// Waits for the child. Returns whether it succeeded, or `None` if it had to be killed at the time limit.
fn wait(child: &mut Child) -> Option<bool> {
    let deadline = Instant::now() + TIME_LIMIT;
    loop {
        if let Some(status) = child.try_wait().expect("cannot wait for the child") {
            return Some(status.success());
        }
        if Instant::now() > deadline {
            child.kill().expect("cannot kill the child");
            child.wait().expect("cannot wait for the child");
            return None;
        }
        thread::sleep(Duration::from_millis(10));
    }
}
