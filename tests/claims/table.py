"""The table of claims: what the product says of a store, what that rests on, and which fault makes it false.

`faults.py` or `faults_on_servers.py` plants a fault in a real store, or a test elsewhere does. After each fault, all
surfaces are asked, and none may be greener than the truth: `status`, `feed status`, `check`, `audit show`, the page,
`/readyz`, `/metrics`. The rules of the alerts are evaluated over what was scraped, and those of the fault must fire.

`test_claims.py` compares the table with the source (`sayings.py`), with the faults, and with the tests that it names.
Who adds a sentence, a level, an exit code or an alert adds it here, with a fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from recovery.audit.finding_classes import FindingClass

WORDS, FEED, LINES, KNOWN = (f"recovery/{name}.py" for name in ("status/judgement", "status/feed", "cli/status_lines", "status/known"))
VIEW, NOTE, STATES, NO_FEED = (
    f"recovery/{name}.py" for name in ("http/server_view", "last_audit", "states", "cli/feed/status")
)
AUDIT, KINDS, DOUBTS, DELETE = (
    f"recovery/{name}.py" for name in ("audit/reporting/run_verdict", "audit/finding_classes", "audit/files/conclusion", "cli/audit/delete")
)
STATUS, COMMANDS, FEEDS, CHECK_FEED = (f"recovery/cli/{name}.py" for name in ("status", "exit_codes", "feed/commands", "feed/check"))
DEPLOYMENT = "recovery/cli/deployment.py"
BUCKET, DIRECTORY, TABLES, FINDINGS, OWNER, POSTGRES, S3 = (
    f"tiered/provision/{name}.py" for name in ("bucket", "embedded_store", "tables", "findings", "owner", "postgres", "s3")
)
KEYS = ("keys_refused:ExpiredToken", "keys_refused:InvalidAccessKeyId")
SHOW, ALERTS = "recovery/audit/reporting/one_name.py", "alert"
BACKUP, EXPORT = "recovery/cli/backup.py", "recovery/cli/export.py"

Says = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Claim:
    """`claim`, `rests_on`: for people. `faults`: names in `FAULTS`. `tests`: tests elsewhere that plant a fault of it.

    `says`: by where it is said, how each saying begins.
    """

    claim: str
    rests_on: str
    says: Says
    faults: tuple[str, ...] = ()
    tests: tuple[str, ...] = field(default=())


CLI, LOOK, PAGE = "tests/recovery/cli/test_", "tests/recovery/status/test_look.py::test_", "tests/recovery/http/test_app.py::test_"
SHOWN = "tests/recovery/http/test_page.py::test_"
OF_AUDIT, OF_FEED = "tests/recovery/audit/", "tests/recovery/cli/test_feed_status.py::test_"
OF_EXPORTS = "tests/tiered/exports/test_"
PROVISION, OF_S3 = "tests/tiered/provision/test_", "tests/tiered/s3/test_owned.py"

CLAIMS = (
    # --- the status, the page, /readyz -------------------------------------------------------------
    Claim(
        "recovery keeps up; nothing waits; level ok",
        "every entry counted, and two reports of a daemon that lives",
        {
            "state": ("level ok", "pace healthy", "pace catching up"),
            STATES: ("Recovery keeps up", "Recovery is catching up"),
            WORDS: ("Nothing waits for recovery",),
            STATUS: ("exit code 0",),
        },
        (
            "nothing", "well", "no_daemon", "daemons_do_nothing", "second_looks_are_left", "backlog_grows", "clock_ahead",
            "deletes_denied", *KEYS,
        ),
    ),
    Claim(
        "level behind",
        "entries that are due, living daemons, their verdict, the state of the feed",
        {
            "state": ("level behind", "pace falling behind", "pace stalled"),
            STATUS: ("exit code 1",),
            STATES: ("Recovery falls behind", "Recovery stands still"),
            WORDS: (
                "Nobody works on",
                "No daemon lives",
                "Recovery is too slow",
                "The daemon deals with no entry",
            ),
        },
        (
            "no_daemon", "daemons_do_nothing", "second_looks_are_left", "backlog_grows", "entry_damaged", "daemon_killed",
            "daemon_stands_still",
        ),
    ),
    Claim(
        "DATA IS LOST; level lost",
        "the audits' note, and that of readers: a loss stays until a look at it, or an audit that looked there, finds it mended",
        {
            "state": ("level lost",),
            WORDS: (
                "DATA IS LOST",
                "An audit found live objects",
                "Readers found live objects",
                "an audit found {}{} whose blob",
                "readers found {} whose blob",
                "tiered audit show --from",
            ),
            LINES: ("readers found", "first found", "and others, for which", "more in 'tiered status"),
            STATUS: ("exit code 6",),
        },
        (
            "lost_and_read",
            "blobs_emptied_and_recovered",
            "lost_and_audited",
            "lost_beside_a_narrow_clean_audit",
            "restored_from_a_backup_and_audited",
            "wrong_bucket",
        ),
        (
            f"{LOOK}a_loss_stays_until_an_audit_that_looked_there_finds_it_mended",
            f"{CLI}audit_show.py::test_without_a_name_a_run_names_what_it_found_lost_and_nothing_else",
        ),
    ),
    Claim(
        "an audit found lost data, its evidence is not complete",
        "the same note",
        {WORDS: ("An audit found lost data",)},
        ("lost_and_audited_in_part",),
        (f"{OF_FEED}an_incomplete_audit_that_found_lost_data_ended_status_with_0",),
    ),
    Claim(
        "the last audit: clean, narrow, old, none",
        "the same note, which holds scope, payloads read and time",
        {
            LINES: ("none has ended yet", "earlier ones of other"),
            NOTE: (
                "; only names",
                "; {} blobs that nothing names",
                "clean:",
                "incomplete:",
                "{} of {} ranges",
                "live tombstone names",
                "live tombstones name",
                "{} payloads",
                "references of",
            ),
        },
        (
            "lost_unseen",
            "lost_since_a_clean_audit",
            "audited_narrowly",
            "audited_with_a_mistyped_scope",
            "audited_long_ago",
            "payload_rotten",
            "row_damaged_and_audited",
            "restored_from_a_backup",
        ),
        (f"{LOOK}the_worst_result_of_an_audit_is_said_first",),
    ),
    Claim(
        "entries are stuck; level stuck",
        "a count of its own, also where the others are too many",
        {"state": ("level stuck",), WORDS: (
            "1 entry is stuck", "{}{} entries are stuck", "Entries are stuck", "It is not known whether an entry",
        )},
        ("stuck",),
        (f"{LOOK}beyond_the_bound_the_count_is_flagged_and_what_is_stuck_is_counted_all_the_same",),
    ),
    Claim(
        "what to do about a stuck entry",
        "its error",
        {
            WORDS: (
                "A stored record",
                "Daemons died",
                "Mend what the error",
                "Newer software",
                "Only the mark",
                "The daemon's account",
                "The entry itself",
                "^the entry at",
                "^its state",
                "breaks the format",
            ),
            KNOWN: ("the entry cannot be read",),
            LINES: ("it has no error text", "a time that is not known"),
        },
        ("stuck",),
        (f"{LOOK}each_reason_that_recovery_parks_for_has_its_advice",),
    ),
    Claim(
        "the disk is full",
        "what the file system says is free",
        {WORDS: ("The disk is full",), VIEW: ("the disk of the store",), LINES: ("{} free of",)},
        ("disk_full_in_use", "disk_full_at_rest"),
    ),
    Claim("the disk is read-only; exit code 4", "how the file system is mounted", {WORDS: ("The disk is read-only",)}, ("disk_read_only",)),
    Claim(
        "level unknown: something does not answer",
        "one question to each service at every look",
        {
            "state": ("level unknown", "pace unknown"),
            STATUS: ("exit code 4",),
            STATES: ("It is not known whether recovery",),
            WORDS: (
                "It is not known whether recovery",
                "The changelog cannot be read",
                "The {} refuses",
                "The {} {} not",
                "See the problems",
            ),
        },
        (
            "blobs_away", "note_damaged:audit/last", "note_damaged:statistics/recovery", "rows_away", "rows_silent", *KEYS,
            "reads_denied", "rows_right_missing", "log_right_missing",
        ),
        (
            f"{CLI}status.py::test_a_store_that_does_not_answer_ends_with_4_and_a_status_all_the_same",
            f"{LOOK}one_thing_that_cannot_be_read_hides_nothing_else",
            f"{LOOK}recovery_keeps_up_only_once_it_has_reported_twice",
        ),
    ),
    Claim(
        "no changelog is kept",
        "the settings",
        {WORDS: ("No changelog is kept",), LINES: ("none: no changelog",)},
        tests=(f"{CLI}status.py::test_without_a_changelog_it_says_so",),
    ),
    Claim(
        "daemons that live",
        "a presence row of the last minute that says nothing of an end",
        {LINES: ("more that were seen", "probably killed", "{} seen within", "{}, seen {}")},
        ("clock_ahead",),
        (
            f"{LOOK}a_daemon_that_ended_is_not_alive_and_one_that_was_killed_is_told_from_it",
            f"{LOOK}a_presence_from_before_the_clock_was_set_back_is_no_life",
        ),
    ),
    Claim(
        "pace, backlog, lag, ages",
        "reports of the last minute; an estimate is called one",
        {
            LINES: (
                "unknown: no daemon",
                "unknown: that takes",
                "unknown; it was",
                "{} come in",
                "about {} %",
                "too many entries",
                "at least {} read",
                "{} %, at least",
                " or more: not all",
                ", of those",
                "the age of",
                ", caught up in",
                "{} old{}",
                "{}: {} {} dealt",
            ),
            "recovery/display.py": ("{} ahead of the clock",),
        },
        ("daemons_do_nothing", "backlog_grows"),
        (
            f"{CLI}status_lines.py::test_a_lag_of_the_past_is_not_shown_as_todays",
            f"{LOOK}a_clock_that_is_wrong_is_told_and_ages_are_by_the_services",
        ),
    ),
    Claim(
        "the page: figures and their age",
        "the last look that succeeded, and a clock that nobody sets",
        {VIEW: ("The changelog could not", "There are no figures", "These figures are old", "the last look failed")},
        tests=(
            f"{PAGE}when_the_changelog_goes_away_the_last_figures_stay_with_their_age_and_the_level_is_unknown",
            f"{PAGE}before_the_first_look_it_says_that_nothing_is_known",
        ),
    ),
    Claim(
        "the page: a service does not answer, or refuses",
        "its questions, and what recovery met lately",
        {VIEW: ("See what is missing", "refuses what recovery")},
        ("blobs_away",),
        (f"{PAGE}a_tier_that_is_down_is_told_first", f"{PAGE}a_daemon_that_may_not_delete_says_why_and_names_no_object"),
    ),
    Claim(
        "the page: this daemon does nothing",
        "passes that read the changelog",
        {WORDS: ("This daemon does nothing", "This daemon makes no pass")},
        tests=(f"{PAGE}a_daemon_that_does_nothing_is_not_green",),
    ),
    Claim(
        "what the store held, and when",
        "the note of the last complete audit of the whole store",
        {LINES: ("{} with a blob", "{}{} in all{}, by the audit")},
        tests=(f"{OF_AUDIT}running/test_noted.py::test_what_an_audit_found_is_noted",),
    ),
    Claim(
        "the page: its word for the level; nothing to do",
        "the level and the orders of the status",
        {"page.js": ("ok", "lost", "behind", "stuck", "unknown")},
        ("lost_and_audited", "stuck", "no_daemon"),
        (
            f"{SHOWN}it_shows_what_the_status_says_in_both_schemes_and_on_a_narrow_screen",
            f"{SHOWN}all_is_well_and_what_changes_is_shown_without_a_reload_and_spoken",
        ),
    ),
    Claim(
        "/readyz: ready",
        "the same, the disk, and passes that read the changelog",
        {VIEW: ("no pass has read", "the {} was not asked", "refuses what it is")},
        ("disk_full_in_use", "disk_read_only", "blobs_away", "rows_away", "deletes_denied"),
        (f"{PAGE}not_ready_while_a_service_is_down_while_passes_stand_still_and_while_it_stops",),
    ),
    Claim(
        "an alert's silence",
        "the metrics in its rule: each alert fires after a fault, and no other one does",
        {ALERTS: ("Tiered",)},
        (
            "lost_and_audited", "audited_long_ago", "stuck", "puts_denied", "too_many_operations", "database_locked",
            "callers_payload_fails", "callers_fault", "audit_job_failed",
        ),
        (
            "tests/deploy/test_files.py::test_every_alert_is_tested",
            "tests/claims/test_faults.py::test_every_alert_is_fired_by_its_real_cause",
        ),
    ),
    # --- the change feed ---------------------------------------------------------------------------
    Claim(
        "the feed is live, in its first pass, ended, or off",
        "its checkpoint, the positions of its sinks, a sign of life of its writer",
        {
            "state": ("feed live", "feed first pass", "feed ended", "feed off",),
            STATES: ("The writer of the change feed has ended",),
            FEED: (
                "It publishes no progress",
                "Its writer has ended in",
                "feed.enabled is not set",
                "{}. A sink does not",
            ),

            LINES: ("complete up to", "generation {}", "a pass over all rows", "has all up to", "{}{}; at most"),
            NO_FEED: ("There is no change feed", "exit code 0"),
        },
        (
            "feed_off_and_on",
            "sink_with_a_hole",
            "sink_restored_from_a_backup",
            "feed_of_the_store_restored",
            "feed_of_the_store_restored_and_run",
            "sink_of_two_stores",
        ),
    ),
    Claim(
        "the feed stands still",
        "the same",
        {
            "state": ("feed stalled",),
            STATES: ("The change feed stands still",),
            FEED: (
                "It is the feed of the store",
                "Its writer gives no",
                "Its writer has ended, and",
                "No sink takes",
                "No writer gives",
                "Updates wait",
                "Every sink has all updates, and entries wait",
                "{}, although",
            ),
            WORDS: ("The sink {} takes nothing", "{} See the log", "the writer goes on"),
            NO_FEED: ("exit code 1",),
        },
        ("sink_fails",),
        (f"{OF_FEED}each_state_has_its_reason",),
    ),
    Claim(
        "the feed is behind, or nobody takes it up",
        "the same",
        {
            "state": ("feed behind", "feed no writer yet",),
            STATES: ("The change feed is behind", "Nobody takes up",),
            FEED: (
                "Its frontier is old",
                "It is {}",
                "No writer has ever",
                "Changes were cleaned up",
                "Changes were made with the feed off",
                "A process works with the feed off",
                "{}. It publishes",
            ),
            WORDS: (
                "The change feed is configured",
                "Deletions have waited",
            ),
            LINES: ("yes: no progress", "none yet: no progress", "has acknowledged nothing"),
        },
        ("no_writer", "feed_off_and_on", "process_with_the_feed_off"),
        (f"{OF_FEED}each_state_has_its_reason", f"{OF_FEED}a_failing_sink_and_a_near_bound_are_told"),
    ),
    Claim(
        "the state of the feed is unknown",
        "what could not be read of it, and a frontier ahead of the clock",
        {
            "state": ("feed unknown",),
            STATES: ("It is not known whether the change feed",),
            FEED: (
                "How far a sink",
                "Its checkpoint could not",
                "Its frontier lies",
                "{}, so nobody knows",
                "the entries that wait",
                "the position of",
                "the checkpoint of",
                "who works with the feed off",
            ),
            KNOWN: ("{} whether another store delivers there",),
            LINES: ("unknown: its position",),
            NO_FEED: ("exit code 4",),
        },
        tests=(f"{OF_FEED}a_damaged_checkpoint_is_unknown_also_where_the_feed_is_off", f"{OF_FEED}each_state_has_its_reason"),
    ),
    Claim(
        "feed check: sound",
        "every message of the files that were given",
        {FEEDS: ("exit code",), CHECK_FEED: ("exit code",)},
        tests=(
            f"{CLI}feed.py::test_a_feed_that_is_not_sound_names_the_file_the_message_and_the_rule",
            f"{CLI}feed.py::test_what_a_sound_feed_waits_for",
        ),
    ),
    # --- the audit ---------------------------------------------------------------------------------
    Claim(
        "audit: clean",
        "a listing of the blobs and a scan of the references; no payload without --verify",
        {
            "state": ("audit clean",),
            AUDIT: (
                "Clean:",
                "No orphan and no loss",
                "No loss was found",
                "The blob of every live",
                "If there should be",
                "{} No orphan was found",
                "; {} that nothing names",
            )
        },
        ("payload_rotten", "audited_narrowly", "audited_with_a_mistyped_scope", "row_damaged_and_audited"),
        (f"{OF_AUDIT}reporting/test_run_verdict.py::test_nothing_is_claimed_of_payloads_that_nobody_read_and_of_names_nobody_looked_at",),
    ),
    Claim(
        "audit: DATA LOSS",
        "a second look at the blob, and at its row after it",
        {
            "state": ("audit loss",),
            AUDIT: (
                "DATA LOSS",
                "Its object cannot",
                "Their objects cannot",
                "live blob that cannot",
                "live blobs that cannot",
                "dangling tombstone names",
                "dangling tombstones name",
                "blob that a live",
                "blobs that live",
            )
        },
        ("lost_and_audited",),
        (
            f"{OF_AUDIT}sweeping/test_destroyed.py::test_row_that_moved_on_meanwhile_makes_no_loss",
            "tests/recovery/audit/deleting/test_losses.py::test_a_lost_blob_is_restored_and_found_by_the_next_call",
        ),
    ),
    Claim(
        "audit: findings",
        "the same",
        {
            "state": ("audit findings",),
            AUDIT: (
                "Their deadline passed",
                " They are {}",
                "{} Somebody should",
                "{} cannot be read, so",
                "{} {} Nobody can read",
                "{} {} What was found",
                "{} that nothing removes",
            )
        },
        ("row_damaged_and_audited",),
        (f"{OF_AUDIT}sweeping/test_planted.py::test_everything_that_was_planted_is_found_and_nothing_else_however_it_is_cut",),
    ),
    Claim(
        "audit: incomplete",
        "every range audited, and no doubt",
        {
            "state": ("audit incomplete",),
            AUDIT: (
                " It found {}",
                " It has {}",
                "What was found may be wrong",
                "the evidence is marked",
                "the run has not ended",
                "{} of {} {} audited",
            ),
            DOUBTS: ("there are {}", "{} entries of the changelog", "{} of {} ranges", "{}; it did not count"),
        },
        tests=(
            f"{OF_AUDIT}files/test_conclusion.py::test_range_that_failed_is_a_doubt",
            f"{OF_AUDIT}files/test_conclusion.py::test_tombstones_that_name_none_of_the_blobs_are_of_the_wrong_table_or_bucket",
            f"{OF_AUDIT}reporting/test_report.py::test_incomplete_run_never_calls_itself_clean",
        ),
    ),
    Claim(
        "audit and check: other software writes beside this one",
        "some rows: one without a token, created and last renewed between writes of ours to its usecase, without a long pause",
        {
            AUDIT: ("Other software writes", "{} {} Its writers wipe", "Who wrote a row"),
            KINDS: ("FindingClass mixed_writers", "a row that other"),
            DOUBTS: ("whether other software",),
            DEPLOYMENT: ("{}; some are of other",),
        },
        tests=(
            "tests/recovery/test_mixed_writers.py::test_writers_of_both_kinds_at_once_are_seen",
            "tests/recovery/test_mixed_writers.py::test_a_move_over_and_back_and_over_again_is_no_mix",
            "tests/recovery/audit/running/test_on_emulators.py"
            "::test_audit_of_the_emulators_in_worker_processes_finds_what_was_planted",
            "tests/production/test_opening.py::test_check_says_that_other_software_writes_beside_this_one",
        ),
    ),
    Claim(
        "audit: what was looked at, and what not",
        "scope, share, grace and sources of the run",
        {
            AUDIT: (
                " Only names",
                ", a share of",
                "As of {}",
                "Blobs that were younger",
                "Names that do not",
                "No payload was read",
                "Payloads",
                "Rows: they were",
                "The references came",
                "Upload sessions",
                "Whether a tombstone",
                "was read and",
                "were read and",
                " {} {} open",
            ),
            DOUBTS: ("{} is not known", "how much the service", "there is no changelog", "{} blobs are dated", "{} blobs are named"),
        },
        ("audited_narrowly", "payload_rotten"),
        (
            f"{OF_AUDIT}sweeping/test_verify.py::test_flipped_byte_is_found_only_where_bytes_are_read",
            f"{OF_AUDIT}running/test_scope.py::test_run_of_a_subtree_says_so_everywhere",
            f"{OF_AUDIT}reporting/test_since.py::test_open_uploads_are_told_by_a_run_which_sees_none_of_their_parts",
        ),
    ),
    Claim(
        "audit show: no fault, or what is left of a lost blob",
        "the row, the entries, the payload up to 64 MiB, and what the bucket keeps",
        {
            SHOW: (
                "; a blob that nothing",
                "; there are more",
                "it went while",
                "no fault was found",
                "nobody can ask",
                "aws s3api delete-object",
                "the bucket keeps no",
                "there is nothing",
                "whether the bucket",
                "restore generation",
                "gcloud storage restore",
                "gcloud storage cp",
                "{}: it is lost",
                "deleted {}",
            )
        },
        ("lost_unseen", "lost_since_a_clean_audit", "audited_narrowly", "row_damaged", "restored_from_a_backup"),
        (
            f"{OF_AUDIT}reporting/test_one_name.py::test_nothing_to_restore_is_told_and_so_is_not_knowing",
            f"{OF_AUDIT}reporting/test_one_name.py::test_live_blob_behind_more_blobs_than_are_shown_is_read_and_the_others_are_not_called_good",
            f"{CLI}audit_show.py::test_dangling_tombstone_is_a_finding_without_a_copy_to_restore",
        ),
    ),
    Claim(
        "the class of a blob or a tombstone",
        "listing, row, entries and age together",
        {
            KINDS: (
                *(
                    f"FindingClass {kind}"
                    for kind in FindingClass if kind is not FindingClass.MIXED_WRITERS  # which has a line of its own
                ),
                "a blob",
                "a copy",
                "a live tombstone",
                "a row that cannot",
                "a tombstone",
                "an entry",
                "belongs to",
                "its bytes are damaged",
                "its deadline",
                "its name",
                "no live tombstone",
                "nothing names it",
                "this software did not",
            )
        },
        ("lost_and_audited", "payload_rotten_and_read", "row_damaged_and_audited"),
        (
            f"{OF_AUDIT}sweeping/test_planted.py::test_everything_that_was_planted_is_found_and_nothing_else_however_it_is_cut",
            f"{OF_AUDIT}test_finding_classes.py::test_a_blob_is_an_orphan_exactly_where_nothing_speaks_for_it",
            "tests/production/test_two_stores_in_one_bucket.py::test_blobs_of_another_store_in_the_bucket_were_called_orphans_and_deleted",
        ),
    ),
    Claim(
        "audit delete, restore: what is left, done, or lost",
        "the journal of the run, and a look at each name before it is touched",
        {
            DELETE: (
                "as long as",
                "copies ",
                "dangling ",
                "there ",
                "misfiled",
                "never ",
                "nothing ",
                "some blobs",
                "the Parquet files",
                "the run may not",
                "time ",
                "{} of {} are done",
                "{}: the same command",
                "--json shows",
            )
        },
        tests=(
            f"{CLI}audit_delete.py::test_orphans_are_deleted_set_aside_and_restored",
            f"{CLI}audit_delete.py::test_what_became_of_lost_blobs_is_told_blob_by_blob",
            "tests/recovery/audit/deleting/test_losses.py::test_the_newest_generation_is_taken",
        ),
    ),
    # --- copies ------------------------------------------------------------------------------------
    Claim(
        "backup: complete",
        "all blobs linked and all rows copied as of one moment, without writers; synced; SQLite finds the copy whole; no blob is read",
        {BACKUP: ("{} is complete",)},
        tests=(
            "tests/recovery/test_backup.py::test_without_the_lock_both_orders_lose_a_blob",
            "tests/recovery/test_backup.py::test_a_backup_was_called_complete_although_a_blob_was_behind_a_link",
            "tests/recovery/test_backup.py::test_a_backup_of_a_store_whose_blobs_are_gone_was_called_complete",
            "tests/recovery/test_backup.py::test_a_backup_of_a_damaged_database_was_called_complete",
        ),
    ),
    Claim(
        "export objects, export verify: complete, or what is not in it",
        "each row of a listing, and its payload as it was written; or all files, read again",
        {
            EXPORT: (
                "{} was not exported", "no object is below {}", "not in it", "; {} were replaced", "; {} vanished", "{}: {} objects with",
                "{}: {} files with",
            ),
        },
        tests=(
            f"{CLI}export.py::test_an_export_of_nothing_says_that_the_prefix_has_none",
            f"{CLI}export.py::test_what_is_wrong_is_named_and_the_exit_code_is_6",
            f"{CLI}export.py::test_rows_that_are_no_objects_are_told_and_the_exit_code_is_6",
            f"{OF_EXPORTS}exporting.py::test_what_vanished_and_what_failed_is_named",
            f"{OF_EXPORTS}exporting.py::test_an_export_whose_part_somebody_else_wrote_is_not_called_complete",
            f"{OF_EXPORTS}importing.py::test_of_an_export_with_a_damaged_part_the_rest_is_verified_and_is_taken_if_that_is_asked_for",
        ),
    ),
    Claim(
        "export table: its counts, and what is damaged",
        "each row, and unless --no-blobs a question for its blob; no payload is read",
        {EXPORT: ("{} of them are damaged", "{} objects", "; the size of")},
        tests=("tests/recovery/sources/test_parquet.py::test_the_command_tells_damage_by_its_exit_code_and_the_table_is_whole",),
    ),
    # --- check, provision, exit codes --------------------------------------------------------------
    Claim(
        "check: the database is whole, its rows match",
        "SQLite's integrity check, and every row's checksum; no blob is read",
        {DIRECTORY: ("all {} rows", "{} can be written", "{} runs, which does not"),
        FINDINGS: ("NoticeKind ok", "NoticeKind note", "NoticeKind problem")},
        ("lost_unseen", "row_damaged", "disk_full_at_rest", "disk_read_only", "stuck"),
        (f"{CLI}check.py::test_an_index_without_a_row_was_whole", f"{CLI}check.py::test_a_damaged_database_is_a_problem"),
    ),
    Claim(
        "check: the directory can hold blobs",
        "a file written and removed; blobs are there if rows name some",
        {DIRECTORY: ("{} can hold",)},
        ("blobs_away",),
    ),
    Claim(
        "hand-back: no store of ours can write there",
        "the table's families, as the service tells them",
        {TABLES: ("table {} has no family", "family {}, all marks, from table")},
        tests=("tests/production/test_moving.py::test_what_was_handed_back_has_no_row_for_what_is_gone_and_all_that_lives_unchanged",),
    ),
    Claim(
        "check: tables, app profile and bucket are right",
        "their settings and this identity's rights, as the services tell them",
        {TABLES: ("app profile", "rows of table"), BUCKET: ("blobs of bucket", "bucket {}")},
        tests=(
            f"{PROVISION}on_emulators.py::test_a_check_of_nothing_names_each_thing_and_what_to_run",
            f"{PROVISION}on_emulators.py::test_a_bucket_that_keeps_garbage_or_loses_blobs_is_a_problem",
            f"{PROVISION}scripted_answers.py::test_permissions_on_a_table_are_told",
            f"{PROVISION}scripted_answers.py::test_an_app_profile_that_cannot_swap_stops_the_opening_with_the_command_that_mends_it",
        ),
    ),
    Claim(
        "check: the bucket of S3 is this store's, and its service does what the store rests on",
        "the marker in it; each thing that a store rests on is tried",
        {OWNER: ("{} belongs to this store",)},
        tests=(
            "tests/tiered/provision/test_s3_probes.py::test_a_fault_turns_its_probe_red",
            f"{OF_S3}::test_a_bucket_is_made_given_to_its_store_and_found_as_it_must_be",
            f"{OF_S3}::test_a_service_that_ignores_the_condition_is_refused",
        ),
    ),
    Claim(
        "check: PostgreSQL keeps what is committed, also if a standby is promoted",
        "its settings, as it tells them",
        {POSTGRES: ("PostgreSQL {} answers", "what is committed survives", "commits wait for standbys")},
        tests=(
            f"{PROVISION}postgres.py::test_a_server_that_does_not_answer_is_a_problem_and_no_error_shows_the_password",
            f"{PROVISION}postgres.py::test_what_a_crash_or_a_failover_would_lose_is_said",
            "tests/changelog/postgres/test_pool.py"
            "::test_a_session_commits_durably_and_at_read_committed_whatever_the_role_says",
            "tests/tiered/postgres/test_outages.py"
            "::test_a_failover_to_an_asynchronous_standby_goes_on_there_and_check_says_what_it_may_lose",
            "tests/production/test_standby.py::test_where_only_the_standby_answers_nothing_is_concluded",
        ),
    ),
    Claim(
        "check: the schema in PostgreSQL is the right one, and this role has its rights",
        "what an opening looks at: the version, tables, functions, and what was added to them; what the server says of rights",
        {POSTGRES: ("schema {} has version", "role {} may read and write", "role {} may {} the tables")},
        tests=(
            f"{PROVISION}postgres.py::test_a_schema_of_another_version_is_refused_with_what_to_do",
            f"{PROVISION}postgres.py::test_a_schema_that_somebody_has_changed_is_a_problem_that_names_it",
            f"{PROVISION}postgres.py::test_a_function_that_is_missing_or_was_changed_is_made_anew",
            "tests/tiered/postgres/test_session.py"
            "::test_what_an_owner_does_so_that_a_write_or_a_read_means_something_else_is_refused",
            "tests/tiered/postgres/test_session.py::test_what_a_role_sets_changes_no_answer_or_is_refused",
            f"{PROVISION}postgres.py::test_where_functions_are_not_for_everybody_they_are_granted_and_looked_at",
            f"{PROVISION}postgres.py::test_a_right_that_whoever_provisions_may_not_give_is_told_and_not_called_granted",
            f"{PROVISION}postgres.py::test_a_role_whose_transactions_are_read_only_is_a_problem",
            f"{PROVISION}postgres.py::test_roles_get_the_least_rights_with_which_they_can_work",
            f"{PROVISION}postgres.py::test_a_role_without_any_right_is_told_what_to_grant",
        ),
    ),
    Claim(
        "provision: done, planned, nothing is needed",
        "the look of check, and the answer to each change",
        {
            FINDINGS: ("NoticeKind done", "NoticeKind planned"), "tiered/kinds/directory.py": ("nothing is needed",),
            TABLES: ("family {} to table", "{} to {}, because"), POSTGRES: ("schema {} in version", "role {} the rights"),
            S3: ("a lifecycle rule to bucket",), OWNER: ("{} to this store",),
        },
        tests=(
            f"{OF_S3}::test_a_rule_that_may_not_be_added_is_a_problem_and_is_not_said_to_be_there",
            f"{PROVISION}on_emulators.py::test_a_dry_run_says_what_provisioning_then_does_and_changes_nothing",
            f"{PROVISION}scripted_answers.py::test_a_mend_that_is_refused_is_a_problem_and_the_next_one_is_still_made",
        ),
    ),
    Claim(
        "exit codes",
        "the error that ended the command, or what it found",
        {COMMANDS: ("exit code",)},
        ("lost_and_read", "stuck", "row_damaged"),
        (f"{CLI}commands.py::test_error_is_one_sentence_with_its_exit_code",),
    ),
)
