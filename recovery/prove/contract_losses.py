"""What is lost where a contract test fails: `ROWS` is the table. A test without a row is taken for one that loses data.

    cost_of, is_limit     the loss that follows from a failure; whether it is none

A row is a limit if a store on such a service only does less, or counts wrongly. A test may fail in more than one way.
So a limit may say what its failure must look like; a failure of another look is that of a test without a row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from recovery.prove.probes.blobs import (
    AUDIT,
    COMES_BACK,
    GARBAGE,
    NOT_FOUND,
    OTHER_GENERATION,
    PARTS_LOST,
    RARE_NAMES,
    WRONG_BYTES,
    WRONG_DEADLINE,
    WRONG_METADATA,
)
from recovery.prove.probes.entries import CLOCKS, FEED, LEFT, NOTES, TWICE
from recovery.prove.probes.rows import BOTH, CONDITION, DAMAGED, EXPIRES, REPLACED, UNLISTED

AROUND = ("setup: ", "teardown: ")
"""How it begins why a test failed that was not run, or was over: that tells nothing of what it tries."""

REFUSED = r"^(InvalidRequest|Unavailable|Configuration)Error: "
"""The service did not do it, and said so."""


@dataclass(frozen=True, slots=True)
class ContractLoss:
    """`cost`: as in `Line`. `tests`: their names. `is_limit`: as in `Line`. `looks`: a regular
    expression of what a limit's failure has in it.
    """

    cost: str
    tests: tuple[str, ...]
    is_limit: bool = False
    looks: str = ""


ROWS: Sequence[ContractLoss] = (
    # --- only limits ---
    ContractLoss("what was deleted is counted more than once", (
        "test_of_deletions_of_one_generation_at_once_one_tells_that_it_deleted",
    ), is_limit=True, looks=r"^assert \['(ABSENT|DELETED)|, 'DELETED'"),
    ContractLoss("what deletions free is counted wrongly", (
        "test_a_deletion_tells_its_bytes_or_that_it_does_not_know_them",
    ), is_limit=True, looks="^assert "),
    ContractLoss(RARE_NAMES, (
        "test_any_name_is_stored_listed_and_deleted_as_it_is", "test_a_blob_and_one_whose_name_continues_it_coexist",
        "test_a_listing_is_in_byte_order_whatever_the_page_and_the_range",
    ), is_limit=True),
    ContractLoss(CLOCKS, (
        "test_the_clock_of_a_service_is_not_far_from_this_machines",
        "test_a_blob_was_created_when_the_caller_says_and_else_by_the_services_clock",
    ), is_limit=True, looks="^assert "),
    ContractLoss("objects cannot be copied", (
        "test_a_new_blob_gets_its_bytes_from_another_and_other_metadata",
    ), is_limit=True, looks=REFUSED),
    ContractLoss("the audit keeps no copy of what it deletes", (
        "test_a_copy_has_the_bytes_and_the_metadata_and_the_blob_stays", "test_copying_is_repeatable_and_the_copy_outlives_the_blob",
        "test_a_copy_is_not_brought_back_after_its_deadline_or_over_another_blob",
    ), is_limit=True, looks=REFUSED),
    ContractLoss("what somebody else deleted is not restored, though the service keeps it", (
        "test_a_deleted_generation_is_restored_whole_under_a_new_generation",
        "test_a_restoration_overwrites_nothing_and_needs_a_generation_that_is_kept",
    ), is_limit=True, looks=REFUSED),
    ContractLoss("the daemon does not end uploads whose writer died before it had recorded them", (
        "test_uploads_that_have_not_ended_are_listed_page_by_page",
    ), is_limit=True),
    ContractLoss("the parts of an audit that work at once are of unequal size", (
        "test_boundaries_split_the_table_in_order_into_about_so_many_parts",
    ), is_limit=True, looks=r"== \[\]$"),
    # --- losses: rows ---
    ContractLoss(REPLACED, (
        "test_settle_refuses_a_token_that_the_row_does_not_show", "test_settle_finds_a_token_live_that_the_row_shows_and_writes_nothing",
        "test_a_repeated_swap_has_no_effect_and_says_conflict", "test_a_swap_sent_before_its_token_was_refused_has_no_effect_when_it_lands",
        "test_a_retried_swap_after_a_delete_has_no_effect", "test_a_retried_overwrite_does_not_bring_back_what_was_replaced",
        "test_won_and_refused_are_both_kept_and_neither_hides_the_other", "test_marks_survive_every_change_of_the_state",
        "test_a_swap_past_its_deadline_is_never_sent", "test_of_many_repeats_of_one_swap_exactly_one_takes_effect",
        "test_a_swap_and_the_settling_of_its_token_agree", "test_a_repeated_swap_has_no_effect_when_its_won_mark_was_collected",
        "test_a_swap_in_flight_stays_refused_when_the_clock_jumps_and_its_mark_is_collected", "test_the_horizon_never_goes_back",
        "test_the_horizon_passes_the_time_at_which_a_collected_mark_was_written",
    )),
    ContractLoss(BOTH, (
        "test_swap_conflicts_iff_a_mark_exists_or_another_tombstone_is_present",
        "test_inline_writes_conflict_iff_a_tombstone_is_present_or_a_mark_exists",
        "test_of_many_swaps_that_expect_the_same_exactly_one_wins", "test_many_puts_of_one_object_leave_one_of_them_whole",
    )),
    ContractLoss(CONDITION, (
        "test_a_swap_that_wants_nothing_conflicts_iff_it_would_anyway_or_something_lives",
        "test_what_is_reserved_can_be_swapped_once_and_only_by_a_token_without_a_mark",
        "test_a_reservation_ends_with_the_next_change", "test_inline_writes_end_a_reservation",
        "test_of_two_that_reserved_the_same_one_wins", "test_a_reservation_survives_a_touch_and_ends_with_a_settle",
        "test_what_has_no_token_of_its_own_cannot_be_reserved", "test_a_tombstone_says_that_it_was_made_under_a_condition",
    )),
    ContractLoss(DAMAGED, (
        "test_an_inline_object_is_read_as_it_was_put", "test_payloads_of_any_inline_size_come_back_whole",
        "test_a_tombstone_is_read_as_it_was_swapped_in", "test_many_puts_of_different_objects_are_all_there",
    )),
    ContractLoss(EXPIRES, (
        "test_touch_extends_the_deadline_and_changes_nothing_else", "test_touch_never_shortens",
        "test_touch_gives_no_deadline_to_what_has_none", "test_touch_of_what_was_replaced_has_no_effect",
        "test_an_expired_object_is_still_read_and_its_reader_judges",
    )),
    ContractLoss(UNLISTED, (
        "test_scan_lists_paths_in_byte_order_page_by_page", "test_scan_lists_what_begins_with_the_prefix_and_nothing_else",
        "test_scan_ends_before_its_end", "test_scan_tells_deadlines_and_leaves_expired_rows_to_its_reader",
        "test_scans_while_rows_change_find_what_was_there_all_the_time_once_and_in_order",
        "test_redirects_are_the_tombstones_with_their_deadlines_expired_or_not_and_nothing_else",
        "test_a_range_of_redirects_begins_with_its_start_and_ends_before_its_end",
        "test_pages_of_any_size_and_ranges_of_any_cut_are_together_the_whole", "test_redirects_at_keys_leave_out_what_is_no_tombstone",
    )),
    # --- losses: blobs ---
    ContractLoss(COMES_BACK, (
        "test_a_blob_is_created_only_and_never_overwritten", "test_an_upload_of_a_revision_that_exists_changes_nothing",
        "test_of_uploads_finalised_at_once_under_one_name_exactly_one_wins",
        "test_only_the_generation_that_is_named_is_copied_and_no_blob_is_overwritten",
        "test_a_new_blob_gets_no_bytes_from_what_is_gone_and_overwrites_nothing",
        "test_after_the_blob_was_deleted_its_session_makes_no_other",
    )),
    ContractLoss(GARBAGE, (
        "test_a_session_that_was_cancelled_can_never_be_finalised",
        "test_a_session_cancelled_while_it_is_written_fails_at_the_end_at_the_latest",
        "test_finalise_raced_by_cancel_succeeds_exactly_if_the_blob_is_there",
        "test_an_aborted_upload_leaves_nothing_however_often_it_is_aborted",
        "test_a_session_that_was_cancelled_can_never_be_completed",
        "test_completion_raced_by_cancel_succeeds_exactly_if_the_blob_is_there", "test_a_part_raced_by_cancel_leaves_nothing",
    )),
    ContractLoss(NOT_FOUND, (
        "test_cancelling_after_finalise_keeps_the_blob", "test_an_abort_after_finalise_keeps_the_blob",
        "test_deleting_one_blob_leaves_its_neighbours", "test_names_that_differ_only_in_case_are_different_blobs",
    )),
    ContractLoss(AUDIT, (
        "test_a_listing_of_paths_is_in_byte_order_whatever_the_page_and_the_range",
        "test_names_beyond_the_first_plane_come_after_all_others",
        "test_listings_while_blobs_come_and_go_find_what_was_there_all_the_time_once_and_in_order",
    )),
    ContractLoss(WRONG_BYTES, (
        "test_an_empty_payload_is_a_blob_of_no_bytes", "test_a_payload_of_three_mebibytes_streams_through_whole",
        "test_chunks_of_any_size_arrive_in_order", "test_a_range_is_a_slice_or_refused",
        "test_a_range_of_a_large_blob_crosses_chunks_and_keeps_the_size_of_the_whole",
        "test_ranges_of_an_open_blob_are_slices_of_its_generation_and_verified_as_a_whole",
        "test_a_blob_deleted_while_it_is_read_yields_its_own_bytes_or_fails",
        "test_a_payload_of_another_size_than_declared_is_refused_and_leaves_nothing",
    )),
    ContractLoss(OTHER_GENERATION, (
        "test_a_generation_is_deleted_and_then_absent", "test_a_generation_that_has_the_name_now_stays_when_another_is_to_be_deleted",
        "test_a_touched_blob_keeps_its_generation", "test_many_deletions_in_one_request_are_each_by_itself",
        "test_of_deletions_of_one_generation_at_once_none_fails_and_the_neighbours_stay",
        "test_a_second_look_at_listed_blobs_tells_which_generations_are_there",
        "test_a_blob_made_again_under_its_name_is_another_generation",
    )),
    ContractLoss(WRONG_METADATA, (
        "test_metadata_are_read_as_they_were_written_with_the_size_filled_in",
        "test_metadata_that_are_amended_before_the_end_are_all_that_anybody_sees", "test_the_metadata_are_those_of_the_beginning",
    )),
    ContractLoss(WRONG_DEADLINE, (
        "test_an_expired_blob_is_still_there_because_readers_judge_expiry", "test_touch_extends_the_deadline_and_never_shortens_it",
        "test_touching_a_blob_that_never_expires_gives_it_no_deadline", "test_a_head_shows_an_extended_deadline",
    )),
    ContractLoss(PARTS_LOST, (
        "test_a_blob_is_there_when_its_parts_are_completed_and_not_before",
        "test_parts_come_in_any_order_and_at_once_and_numbers_may_be_left_out", "test_what_a_listing_tells_is_enough_to_complete",
        "test_of_a_number_the_last_upload_counts_and_equal_bytes_have_equal_checksums",
        "test_a_large_part_of_many_chunks_and_an_empty_one_are_parts", "test_one_empty_part_is_an_empty_blob",
        "test_completing_is_repeatable_and_ends_the_session", "test_a_session_is_of_one_blob",
        "test_parts_are_named_in_order_and_once_and_are_there", "test_a_list_that_lies_about_a_part_changes_nothing",
        "test_a_blob_made_of_parts_is_a_blob_like_any_other",
    )),
    # --- losses: the changelog ---
    ContractLoss(LEFT, (
        "test_a_recorded_entry_is_read_as_it_was_recorded", "test_recording_twice_is_recording_once",
        "test_many_entries_recorded_at_once_are_all_there", "test_a_released_entry_is_stale_at_once_though_it_beat_just_now",
        "test_an_entry_is_stale_when_nobody_renewed_it_for_longer_than_the_expiry",
        "test_stale_entries_come_in_key_order_page_by_page", "test_a_page_of_stale_entries_is_not_filled_by_others",
        "test_an_entry_is_claimed_from_its_claimer_when_that_one_died", "test_entries_are_listed_in_key_order_page_by_page",
        "test_listings_while_entries_come_and_go_find_what_was_there_all_the_time_once_and_in_order",
        "test_an_unreadable_entry_does_not_block_the_others",
    )),
    ContractLoss(TWICE, (
        "test_of_many_that_claim_an_entry_exactly_one_gets_it", "test_claiming_what_was_claimed_or_forgotten_is_a_lost_race",
        "test_renewing_never_recreates_a_forgotten_entry", "test_retrying_what_is_gone_recreates_nothing",
        "test_releasing_what_is_not_ours_changes_nothing", "test_parking_what_changed_meanwhile_marks_nothing",
        "test_retrying_what_is_not_stuck_does_not_take_it_from_its_owner",
    )),
    ContractLoss(NOTES, (
        "test_a_note_is_written_only_over_what_was_read", "test_writing_a_note_is_safe_to_repeat",
        "test_of_many_that_write_a_note_over_the_same_value_exactly_one_does", "test_a_note_holds_any_bytes",
    )),
    ContractLoss(FEED, (
        "test_of_each_key_the_value_of_the_highest_version_counts_whatever_comes_last",
        "test_what_was_removed_stays_removed_when_an_older_write_arrives",
        "test_values_are_scanned_in_byte_order_of_their_keys_page_by_page", "test_a_page_of_values_is_not_filled_by_removed_ones",
        "test_many_values_are_written_read_and_erased_by_one_call", "test_a_value_holds_any_bytes_under_the_longest_key",
        "test_a_kept_entry_is_no_work_and_stays_for_the_feed_until_it_is_forgotten",
    )),
)  # fmt: skip

_BY_TEST = {test: row for row in ROWS for test in row.tests}


def cost_of(test: str, why: str) -> str:
    """The loss that follows from a failure. `why`: what the test said. Empty: nobody knows which one."""
    row = _row(test, why)
    return "" if row is None else row.cost


def is_limit(test: str, why: str) -> bool:
    """Whether nothing is lost by a failure."""
    row = _row(test, why)
    return row is not None and row.is_limit


def _row(test: str, why: str) -> ContractLoss | None:
    row = _BY_TEST.get(test)
    return row if row is not None and not why.startswith(AROUND) and re.search(row.looks, why) else None
