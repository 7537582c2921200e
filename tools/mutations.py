# SPDX-License-Identifier: Apache-2.0
"""Takes guards out of the product, one at a time, and asks whether a test notices.

`python -m tools.mutations` applies every mutation of the list to a copy of the project, runs the
test that the mutation names, and prints a line for each; with names, only those. A mutation that
its test does not notice is a hole in the tests, and the exit code is 1. The copy is thrown away:
the working tree is never changed. `make nightly` runs all of them (tests/test_mutations.py).
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs

ROOT: Final = Path(__file__).resolve().parent.parent
COPY: Final = ROOT / "build" / "mutated"
"""Always the same place: compiled kernels are found again by the path of their sources."""

TIMEOUT_S: Final = 600
PASSED, FAILED = 0, 1
"""What pytest answers when all tests passed, and when a test failed."""


@attrs.frozen
class Mutation:
    """One guard taken out: ``old`` stands once in the file and becomes ``new``; ``test`` is the
    pytest name of the test that notices.
    """

    name: str
    path: str
    old: str
    new: str
    test: str

    def apply(self, root: Path) -> None:
        """Change the file below ``root``. Raises ValueError unless ``old`` stands there once."""
        file = root / self.path
        text = file.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: stands {text.count(self.old)} times in {self.path}")
        file.write_text(text.replace(self.old, self.new), encoding="utf-8")


MUTATIONS: Final[tuple[Mutation, ...]] = (
    Mutation(
        "a-table-of-ours-is-believed-over-the-mark",
        "legacy_levels/engine/recovery.py",
        "    is_old_text = is_lost or table in mark.tables",
        "    is_old_text = is_lost",
        "tests/legacy_levels/engine/test_broker_tables.py::test_a_put_that_failed_is_delivered_by_the_safe_rules",
    ),
    Mutation(
        "unit-of-another-size-leads-to-a-record",
        "legacy_levels/copies/kernels.py",
        "    if load_i64(unit + _UNIT_OFFSET) != offset or load_i32(unit + _UNIT_SIZE) != size:",
        "    if load_i64(unit + _UNIT_OFFSET) != offset:",
        "tests/legacy_levels/backlog/test_log_notes.py::test_what_queues_lead_to_is_only_counted",
    ),
    Mutation(
        "records-before-a-queue-are-not-missed",
        "legacy_levels/backlog/log_tail.py",
        '    return not len(units) or bool((others < units["commit_log_offset"][0]).all())',
        "    return True",
        "tests/legacy_levels/backlog/test_log_notes.py::test_what_queues_lead_to_is_only_counted",
    ),
    Mutation(
        "numbers-of-an-attempt-unchecked",
        "migrate/write/log_file.py",
        "        if numbers_crc(plan.staging.attempt(note.attempt)) != note.numbers_crc:",
        "        if numbers_crc(plan.staging.attempt(note.attempt)) < 0:",
        "tests/migrate/test_convert_stops.py::test_what_lies_beside_records_is_believed_with_its_checksum_alone",
    ),
    Mutation(
        "places-of-bad-records-stay-empty",
        "migrate/plan/target_rows.py",
        "        taken = len(spare) if file == plan.cut.file_count - 1 else missing",
        "        taken = len(spare) if file == plan.cut.file_count - 1 else 0",
        "tests/migrate/plan/test_cut.py::test_bad_records_are_made_up_for_by_the_reserve_until_it_is_spent",
    ),
    Mutation(
        "a-last-property-is-cut-with-what-is-behind-it",
        "migrate/source/level_record.py",
        "            return closed == 1 and _cut(facts, start, end + 1)",
        "            return _cut(facts, start, end + closed)",
        "tests/migrate/write/test_rewrite_kernel.py::test_a_last_property_that_must_go_and_is_not_closed_takes_the_separator_before_it_along",
    ),
    Mutation(
        "messages-of-tasks-uncounted",
        "migrate/write/reserve.py",
        "    if counted + len(bad) != len(plan):",
        "    if counted + len(bad) > len(plan):",
        "tests/migrate/spark/test_write_job.py::test_a_task_that_counts_too_few_is_refused",
    ),
    Mutation(
        "record-head-not-last",
        "message_store/files/segments.py",
        "    if position % _PAGE_BYTES + size_bytes > _PAGE_BYTES:",
        "    if size_bytes < 0:",
        "tests/message_store/writing/test_log.py::test_a_record_that_the_disk_refuses_leaves_nothing_behind",
    ),
    Mutation(
        "roll-at-the-window",
        "timer_wheel/format/wheel_math.py",
        "    return out_ms - write_time_ms >= window_slots * precision_ms",
        "    return out_ms - write_time_ms > window_slots * precision_ms",
        "tests/timer_wheel/wheel/test_rules.py::test_what_is_beyond_the_window_is_parked_half_a_window_ahead_or_a_whole_one",
    ),
    Mutation(
        "parked-a-window-ahead-too-late",
        "timer_wheel/format/wheel_math.py",
        "is_far = beyond_ms >= window_slots // 3",
        "is_far = beyond_ms > window_slots // 3",
        "tests/timer_wheel/reference/test_oracle.py::test_many_lives",
    ),
    Mutation(
        "slot-backwards",
        "timer_wheel/wheel/turn.py",
        "        return chosen\n    return chosen[delivery_order",
        "        return chosen[::-1]\n    return chosen[delivery_order",
        "tests/timer_wheel/reference/test_oracle.py::test_without_rolls_every_byte_is_the_same",
    ),
    Mutation(
        "ring-read-one-slot-late",
        "timer_wheel/format/wheel_math.py",
        "- (SLOTS_TOTAL - MARGIN_SLOTS) * precision_ms",
        "- (SLOTS_TOTAL - MARGIN_SLOTS - 1) * precision_ms",
        "tests/timer_wheel/reading/test_wheel_reader.py::test_slots_before_the_hand_are_never_read",
    ),
    Mutation(
        "placing-not-announced",
        "timer_wheel/wheel/live_timers.py",
        "        self.files.announce(found.end)\n        rows = found.rows",
        "        rows = found.rows",
        "tests/timer_wheel/wheel/test_recovery.py::test_what_is_placed_while_a_flush_waits_for_the_disk_leaves_no_slot_that_leads_astray",
    ),
    Mutation(
        "units-noted-before-they-are-on-the-disk",
        "timer_wheel/wheel/files.py",
        "last_queue_offset=min(known.last_queue_offset, placed_end),",
        "last_queue_offset=placed_end,",
        "tests/timer_wheel/wheel/test_recovery.py::test_power_that_takes_the_units_and_keeps_the_checkpoint_loses_a_broker_nothing",
    ),
    Mutation(
        "taken-back-goes-to-the-new-wheel",
        "timer_wheel/wheel/opening.py",
        "        rows = rows.rows(~marks.take_away(rows.commit_log_offset, facts))\n",
        "",
        "tests/timer_wheel/wheel/test_changed_precision_of_twins.py::test_what_was_taken_back_stays_so_and_nothing_beside_it",
    ),
    Mutation(
        "older-markers-in-slots-of-today",
        "timer_wheel/wheel/recall_search.py",
        "        counts &= ~are_older(timers, rows.commit_log_offset, facts)",
        "        counts &= facts.is_fine",
        "tests/timer_wheel/wheel/test_changed_precision_of_twins.py::test_what_was_taken_back_stays_so_and_nothing_beside_it",
    ),
    Mutation(
        "index-made-anew-from-the-queue-alone",
        "timer_wheel/hierarchy/opening.py",
        "    known = read_taken_over(store)\n",
        "    known = None\n",
        "tests/timer_wheel/wheel/test_changed_precision_of_twins.py::test_what_a_wheel_took_back_stays_so_however_often_the_index_is_lost",
    ),
    Mutation(
        "given-back-without-the-slots-of-the-wheel",
        "timer_wheel/handover/to_wheel.py",
        "    older = index.older\n",
        "    older = index.older.first(0)\n",
        "tests/timer_wheel/wheel/test_changed_precision_of_twins.py::test_what_a_wheel_took_back_stays_so_however_often_the_index_is_lost",
    ),
    Mutation(
        "made-anew-by-flags-alone",
        "timer_wheel/wheel/opening.py",
        "    mended = with_right_flags(rows, timers.facts(rows))\n",
        "    mended = TimerRows.empty()\n",
        "tests/timer_wheel/wheel/test_changed_precision_of_twins.py::test_a_marker_that_lost_its_flag_takes_back_what_is_made_anew",
    ),
    Mutation(
        "marker-known-by-its-flag-alone",
        "timer_wheel/timers/record_kernel.py",
        "load_i32(addresses[row] + AT_BODY_CRC) == _MARKER_CRC",
        "False",
        "tests/timer_wheel/wheel/test_flipped_units.py::test_a_delete_marker_without_its_flag_is_known_where_nothing_else_is_to_be_read",
    ),
    Mutation(
        "torn-offsets-become-the-backup",
        "legacy_levels/delay_offsets.py",
        "        if self.text not in (None, text) and not self._is_torn:",
        "        if self.text not in (None, text):",
        "tests/legacy_levels/engine/test_offsets_writer.py::test_a_torn_table_does_not_take_the_place_of_the_whole_one",
    ),
    Mutation(
        "wheel-delivery-names-nothing",
        "timer_wheel/wheel/turn.py",
        "            prepared_offsets=~facts.lineages(rows.commit_log_offset),\n",
        "",
        "tests/timer_wheel/wheel/test_lineage.py::test_which_of_equal_messages_was_delivered_is_known_after_a_kill",
    ),
    Mutation(
        "a-record-that-names-itself-is-done",
        "message_store/redelivery/lineage.py",
        "(places[at] > offsets)",
        "(places[at] >= offsets)",
        "tests/message_store/redelivery/test_lineage.py::test_a_record_was_dealt_with_if_a_later_one_names_its_first",
    ),
    Mutation(
        "what-a-broker-did-is-not-written-down",
        "timer_wheel/wheel/recovery.py",
        "    if copies_from < timers.foreign_until and len(timers.done):",
        "    if copies_from < 0:",
        "tests/timer_wheel/wheel/test_lineage.py::test_what_a_broker_delivered_is_matched_once_and_written_down",
    ),
    Mutation(
        "the-hand-moves-back",
        "timer_wheel/wheel/slots.py",
        "        self.hand_ms = max(self.hand_ms, to_ms)",
        "        self.hand_ms = to_ms",
        "tests/timer_wheel/wheel/test_log.py::test_the_hand_never_moves_back",
    ),
    Mutation(
        "delivery-names-nothing",
        "legacy_levels/engine/delivery.py",
        "                prepared_offsets=~offsets,\n",
        "",
        "tests/legacy_levels/engine/test_lineage.py::test_which_of_equal_messages_was_delivered_is_known_before_any_offset_is_saved",
    ),
    Mutation(
        "named-copy-counts-for-an-equal-message",
        "legacy_levels/copies/kernels.py",
        "        is_named = named < base + place\n",
        "        is_named = False\n",
        "tests/legacy_levels/engine/test_lineage.py::test_a_named_copy_is_of_the_record_that_it_names_and_of_no_other",
    ),
    Mutation(
        "names-only-behind-the-mark",
        "legacy_levels/engine/state.py",
        "names_since=state.first_waiting_log_offset() if state.has_new_entries else log.end,",
        "names_since=log.end,",
        "tests/legacy_levels/engine/test_lineage.py::test_a_queue_that_is_made_anew_repeats_nothing_that_was_delivered_out_of_turn",
    ),
    Mutation(
        "neutral-before-a-mark-says-so",
        "legacy_levels/engine/offset_persistence.py",
        "        if self._flushed is None and now.done:",
        "        if False and now.done:",
        "tests/legacy_levels/engine/test_lineage.py::test_an_opening_that_is_killed_gives_no_copy_to_an_equal_message",
    ),
    Mutation(
        "hierarchy-delivery-names-nothing",
        "timer_wheel/hierarchy/turn.py",
        "            prepared_offsets=~lineages,\n",
        "",
        "tests/timer_wheel/hierarchy/test_lineage.py::test_equal_messages_that_are_killed_at_each_write_come_once_each",
    ),
    Mutation(
        "hierarchy-roll-names-the-record-it-replaces",
        "timer_wheel/hierarchy/turn.py",
        "prepared_offsets=~facts.lineages(places[0]),",
        "prepared_offsets=~places[0],",
        "tests/timer_wheel/hierarchy/test_lineage.py::test_the_name_outlives_the_first_record",
    ),
    Mutation(
        "rolled-record-taken-for-done",
        "message_store/redelivery/lineage.py",
        "(places[at] > offsets)",
        "(places[at] >= offsets)",
        "tests/timer_wheel/hierarchy/test_lineage.py::test_the_name_outlives_the_first_record",
    ),
    Mutation(
        "entries-taken-in-though-named",
        "timer_wheel/hierarchy/timer_index.py",
        "                waits &= ~names.are_done(offsets, facts.lineages(offsets))\n",
        "                pass\n",
        "tests/timer_wheel/hierarchy/test_precision.py::test_where_nothing_waits_any_precision_is_taken_and_nothing_comes_again",
    ),
    Mutation(
        "rolled-looked-for-among-the-near-alone",
        "timer_wheel/hierarchy/opening.py",
        '    if np.isin(in_memory["commit_log_offset"], names.places).any():',
        "    if False:",
        "tests/timer_wheel/hierarchy/test_lineage.py::test_equal_messages_that_are_killed_at_each_write_come_once_each",
    ),
    Mutation(
        "earlier-version-matched-again",
        "timer_wheel/hierarchy/opening.py",
        "            keep_taken_over(store, TakenOver.of(store, index.pending_offsets(), index.older))\n",
        "            pass\n",
        "tests/timer_wheel/hierarchy/test_lineage.py::test_a_store_of_an_earlier_version_delivers_nothing_twice",
    ),
    Mutation(
        "cancel-answers-of-an-equal-message",
        "timer_wheel/timers/fates.py",
        "            is_taken[row] = not (~is_rolled & (names.firsts == lineages[row])).any()\n",
        "",
        "tests/timer_wheel/hierarchy/test_cancel_has_a_place.py::test_a_marker_says_nothing_of_what_was_delivered_before_it",
    ),
    Mutation(
        "end-of-the-synced-log-not-noted",
        "message_store/writing/store.py",
        "                        self._log_end_note.put(end)\n",
        "                        pass\n",
        "tests/message_store/writing/test_losses.py::test_a_killed_log_that_ends_before_what_a_flush_synced_is_refused",
    ),
    Mutation(
        "entries-behind-the-end-of-the-log-believed",
        "message_store/writing/recovery.py",
        "        record if record.end <= end else _newest_record(log, record.queue, end)\n",
        "        record\n",
        "tests/message_store/writing/test_recovery.py::test_holes_in_log_and_queue_at_once_cost_no_record_before_the_log_s_end",
    ),
    Mutation(
        "flush-after-a-cancel-of-the-levels-syncs-the-log-alone",
        "legacy_levels/engine/store.py",
        "                self.live.flush_all_next()\n",
        "                pass\n",
        "tests/simulation/test_synced_names.py::test_a_flush_behind_a_cancel_of_the_levels_syncs_the_queue_that_tells_of_it",
    ),
    Mutation(
        "seal-without-sync",
        "migrate/write/seal.py",
        "    sync_tree(staging.path, exclude=staging.plan_arrays)\n",
        "",
        "tests/migrate/test_convert_durably.py::test_everything_is_on_the_disk_before_the_first_rename",
    ),
    Mutation(
        "hang-marker-as-message",
        "timer_wheel/timers/unit_kernels.py",
        "    weight = -1 if flags & FLAG_DELETE else 1",
        "    weight = 1",
        "tests/timer_wheel/wheel/test_rules.py::test_a_marker_is_a_unit_with_its_flag_and_counts_against_its_slot",
    ),
    Mutation(
        "unit-of-another-slot",
        "timer_wheel/timers/unit_kernels.py",
        "if unit < 0 or _slot_time(unit) // precision_ms != slots[chain]:",
        "if unit < 0:",
        "tests/timer_wheel/wheel/test_log.py::test_a_link_to_a_unit_of_another_slot_ends_its_chain",
    ),
    Mutation(
        "level-one-ms-early",
        "legacy_levels/engine/cursor.py",
        "not_due = np.flatnonzero(waits & (due_ms > now_ms) & (due_ms <= latest_due_ms))",
        "not_due = np.flatnonzero(waits & (due_ms > now_ms + 1) & (due_ms <= latest_due_ms))",
        "tests/contract/test_level_store.py::TestLevelsOf49::test_of_neighbours_in_time_only_those_come_whose_time_has_come",
    ),
    Mutation(
        "body-unchecked",
        "migrate/source/level_record.py",
        "    return bool(crc == np.uint64(load_i32(record + _CRC)))",
        "    return bool(crc == crc)",
        "tests/migrate/write/test_rewrite_kernel.py::test_a_bad_record_is_never_usual_and_has_a_reason",
    ),
    Mutation(
        "second-writer",
        "message_store/files/store_root.py",
        "            lock.take(fcntl.F_WRLCK)\n            os.pwrite",
        "            os.pwrite",
        "tests/message_store/writing/test_store.py::test_a_broker_cannot_start_while_the_store_is_open",
    ),
    Mutation(
        "queue-entry-beyond-the-log",
        "message_store/writing/queue.py",
        '            is_inside = is_filled(units) & (units["size_bytes"] <= rooms)\n',
        "            is_inside = is_filled(units)\n",
        "tests/message_store/writing/test_recovery.py::test_what_lies_behind_the_log_s_end_is_cut_and_made_zeros",
    ),
    Mutation(
        "record-length-believed",
        "message_store/writing/log.py",
        '        if length_bytes != size_bytes:\n            raise BadFieldError(\n                "a record of another length',
        '        if length_bytes < 0:\n            raise BadFieldError(\n                "a record of another length',
        "tests/message_store/writing/test_damaged_entries.py::test_a_record_of_another_length_than_its_entry_says_is_not_read",
    ),
    Mutation(
        "failed-sync-forgotten",
        "message_store/writing/store.py",
        "            except TargetError:\n                self.log.break_off()\n                raise\n            if self.log.is_broken:",
        "            except TargetError:\n                raise\n            if self.log.is_broken:",
        "tests/message_store/writing/test_store.py::test_a_failed_sync_is_the_end_of_writing",
    ),
    Mutation(
        "log-cut-before-its-synced-end",
        "message_store/writing/store.py",
        "            refuse_cut_log(self.root, extent.end)\n",
        "",
        "tests/faults/test_whole_files_lost.py::test_a_log_that_ends_before_its_synced_end_is_refused_and_told",
    ),
    Mutation(
        "names-of-small-files-not-synced",
        "message_store/writing/store.py",
        "        self.root.sync_names()\n",
        "",
        "tests/simulation/test_synced_names.py::test_an_opening_waits_for_the_names_of_small_files_that_it_finds",
    ),
    Mutation(
        "wheel-file-of-a-killed-process-believed",
        "timer_wheel/wheel/opening.py",
        "        files.doubt_wheel()\n",
        "",
        "tests/simulation/test_simulation.py::test_a_flush_waits_for_what_each_step_of_a_killed_one_left",
    ),
    Mutation(
        "any-engine-on-any-store",
        "delaywheel/terminal/options/engine.py",
        "    require_engine(root, chosen)\n",
        "",
        "tests/delaywheel/test_engines.py::test_a_message_for_an_engine_that_a_store_does_not_have_is_refused_before_anything_is_written",
    ),
    Mutation(
        "levels-without-offsets-ask-no-log",
        "legacy_levels/engine/state.py",
        "        is_known = live.was_clean and (is_chosen or not waits)",
        "        is_known = live.was_clean",
        "tests/legacy_levels/engine/test_real_stores_go_on.py::test_the_rest_of_a_broker_s_store_is_delivered",
    ),
    Mutation(
        "damaged-marker-not-told",
        "timer_wheel/hierarchy/opening.py",
        "    if damaged:\n        index.lost.cancels.add(damaged)\n",
        "",
        "tests/timer_wheel/wheel/test_flipped_markers.py::test_a_cancel_that_is_lost_is_told[closed-hierarchy-211]",
    ),
    Mutation(
        "log-that-grows-not-read-on",
        "message_store/files/segments.py",
        "        if offset >= self.end_offset:\n            self.grow()\n",
        "",
        "tests/message_store/files/test_segments.py::test_a_file_that_is_added_meanwhile_is_read_too",
    ),
    Mutation(
        "unit-without-size-counts",
        "timer_wheel/reading/outstanding.py",
        "    return np.isin(wanted, found)\n",
        "    return np.isin(wanted.f0, found.f0)\n",
        "tests/timer_wheel/reading/test_torn_units.py::test_each_message_is_found_once_however_much_is_left_of_the_last_unit",
    ),
    Mutation(
        "queue-read-twice",
        "timer_wheel/reading/outstanding.py",
        "        since = read_log_since(root, commit_log, since_ms, queue)\n",
        "        queue = read_queue(root.timer_queue())\n"
        "        since = read_log_since(root, commit_log, since_ms, queue)\n",
        "tests/faults/test_looking_beside.py::test_what_rolls_while_the_store_is_read_is_there_once",
    ),
    Mutation(
        "mark-read-after-the-queues",
        "legacy_levels/backlog/lost_queues.py",
        "open_level_queues(store.path, offsets), mark)",
        "open_level_queues(store.path, offsets), read_mark(store.path, FLUSHED_NAME))",
        "tests/faults/test_looking_beside.py::test_a_level_queue_that_grows_meanwhile_has_lost_nothing",
    ),
    Mutation(
        "look-beside-a-change",
        "message_store/reading/looking.py",
        "            if describe_unfinished_change(root):\n                raise\n",
        "",
        "tests/faults/test_looking_beside.py::test_nobody_looks_beside_a_change_in_place",
    ),
    Mutation(
        "handle-of-any-width",
        "timer_wheel/format/timer_due.py",
        "(widths_ms <= TO_THE_MILLISECOND) | (widths_ms % precision_ms == 0)",
        "widths_ms >= 0",
        "tests/contract/test_wheel_store.py::TestHalves"
        "::test_a_handle_takes_no_neighbour_of_its_key",
    ),
    Mutation(
        "hierarchy-handle-of-any-width",
        "timer_wheel/hierarchy/search.py",
        "            if each.is_named_by(handle, first_offset, _widths_ms(index, each))",
        "            if each.is_named_by(handle, first_offset, _ANY_MS)",
        "tests/timer_wheel/hierarchy/test_precision.py::test_a_handle_takes_no_neighbour_of_its_key",
    ),
    Mutation(
        "rebuilt-entry-by-its-time-alone",
        "legacy_levels/engine/cancel.py",
        "handle.due_ms not in (entry.due_ms, message.store_timestamp_ms)",
        "handle.due_ms != entry.due_ms",
        "tests/legacy_levels/engine/test_behaviour.py"
        "::test_what_was_due_at_once_is_cancelled_also_when_its_entry_was_rebuilt",
    ),
    Mutation(
        "due-at-once-renewed",
        "timer_wheel/timers/rows.py",
        "    times = np.where(overdue, facts.store_ms[chosen], stamp_ms)",
        "    times = np.full(len(overdue), stamp_ms)",
        "tests/timer_wheel/hierarchy/test_lineage.py"
        "::test_what_was_due_at_once_keeps_its_time_when_the_clock_is_set_back",
    ),
    Mutation(
        "look-without-snapshots",
        "timer_wheel/format/wheel_file.py",
        "    known = [] if snapshots_on is False else snapshots(root)",
        "    known = snapshots(root) if snapshots_on else []",
        "tests/migrate/look/test_inspect_store.py::test_a_wheel_that_is_in_snapshots_is_seen_whole",
    ),
    Mutation(
        "unit-of-another-record",
        "timer_wheel/wheel/recovery.py",
        "    position = _first_fall(log) if has_falls else None",
        "    position = None",
        "tests/timer_wheel/wheel/test_flipped_units.py"
        "::test_a_unit_that_leads_to_another_record_is_placed_again",
    ),
    Mutation(
        "order-within-a-file",
        "timer_wheel/wheel/recovery.py",
        "        before = joined.rows(slice(-1, None))",
        "        before = joined.rows(slice(-1, 0))",
        "tests/timer_wheel/wheel/test_flipped_units_of_other_wheels.py"
        "::test_the_unit_at_a_files_border_may_not_lead_to_another_record",
    ),
    Mutation(
        "neighbours-tell-no-slot",
        "timer_wheel/wheel/unit_repair.py",
        "        doubted |= np.isin(rows.position, told.doubted)",
        "        doubted |= rows.position < 0",
        "tests/timer_wheel/wheel/test_flipped_units_of_other_wheels.py"
        "::test_a_unit_that_lost_its_times_is_in_the_slot_that_others_tell",
    ),
    Mutation(
        "wheel-file-tells-no-slot",
        "timer_wheel/wheel/unit_repair.py",
        "        if file is not None:\n            positions",
        "        if file is None:\n            positions",
        "tests/timer_wheel/wheel/test_flipped_units_of_other_wheels.py"
        "::test_a_unit_that_lost_its_times_is_in_the_slot_that_others_tell",
    ),
    Mutation(
        "parked-forgotten",
        "timer_wheel/wheel/live_timers.py",
        "        self.parked_until_ms = max(self.parked_until_ms, until_ms)",
        "        self.parked_until_ms = min(self.parked_until_ms, until_ms)",
        "tests/timer_wheel/wheel/test_flipped_units_of_other_wheels.py"
        "::test_a_unit_that_lost_its_roll_flag_is_not_early_with_another_window",
    ),
    Mutation(
        "hash-to-the-bit",
        "timer_wheel/timers/unit_kernels.py",
        "    return other & (other - 1) == 0",
        "    return other == 0",
        "tests/timer_wheel/wheel/test_flipped_units_of_other_wheels.py"
        "::test_a_bit_of_a_topics_hash_hides_no_message_from_a_cancel",
    ),
    Mutation(
        "closed-stores-repeat",
        "message_store/writing/store.py",
        "settings.repeat_after_kill and not self.was_clean",
        "settings.repeat_after_kill",
        "tests/timer_wheel/wheel/test_flipped_units_of_other_wheels.py"
        "::test_a_store_that_was_closed_repeats_nothing_after_a_flipped_bit",
    ),
    Mutation(
        "markers-from-the-hand-on",
        "timer_wheel/wheel/recall_search.py",
        "    from_ms = int(promised_ms.min(initial=from_ms))",
        "    from_ms = int(promised_ms.max(initial=from_ms))",
        "tests/timer_wheel/wheel/test_flipped_units_of_other_wheels.py"
        "::test_a_marker_before_the_hand_takes_back_what_waits_in_the_hands_slot",
    ),
    Mutation(
        "any-width-is-named",
        "timer_wheel/wheel/recall_search.py",
        "        if not is_named.any():\n            # Of what",
        "        if len(is_named):\n            # Of what",
        "tests/timer_wheel/wheel/test_flipped_units_of_other_wheels.py"
        "::test_a_cancel_is_answered_about_the_message_of_the_slot_that_is_named",
    ),
    Mutation(
        "cancels-not-synced",
        "message_store/writing/recovery.py",
        "            if queue.topic == LEVEL_TOPIC:",
        '            if queue.topic == "":',
        "tests/simulation/test_synced_names.py::test_a_flush_after_a_kill_waits_for_the_cancels_of_the_killed_process",
    ),
    Mutation(
        "replaced-sources-cached",
        "message_store/kernels/cache.py",
        "        if path.stat().st_ctime_ns // 1_000_000 >= BEGAN_MS:",
        "        if path.stat().st_ctime_ns < 0:",
        "tests/message_store/kernels/test_cache.py::test_a_process_whose_sources_are_replaced_leaves_nothing_for_others",
    ),
    Mutation(
        "link-of-a-unit-believed",
        "timer_wheel/wheel/opening.py",
        "    if counts[LINKS]:",
        "    if counts[LINKS] < 0:",
        "tests/timer_wheel/wheel/test_flipped_units.py"
        "::test_a_bit_of_a_unit_is_not_believed_over_its_record",
    ),
    Mutation(
        "place-of-a-unit-believed",
        "timer_wheel/wheel/unit_repair.py",
        "        is_it = its_bytes != size_bytes and _fits(timers, unit, offset, its_bytes)",
        "        is_it = False",
        "tests/timer_wheel/wheel/test_flipped_units.py"
        "::test_a_bit_of_a_unit_is_not_believed_over_its_record",
    ),
    Mutation(
        "unit-of-before-the-log-given-a-place",
        "timer_wheel/wheel/unit_repair.py",
        "    if offset < log.min_offset:",
        "    if offset < 0:",
        "tests/timer_wheel/timers/test_retention_after_cancel.py"
        "::test_a_unit_whose_record_retention_took_is_given_no_other",
    ),
    Mutation(
        "unit-without-record-not-read",
        "timer_wheel/timers/record_kernel.py",
        "        if load_i32(addresses[row] + AT_SIZE) != sizes[row]:\n            return True",
        "        if load_i32(addresses[row] + AT_SIZE) != sizes[row]:\n            continue",
        "tests/timer_wheel/wheel/test_flipped_units.py"
        "::test_a_record_of_another_size_is_looked_for_where_nothing_else_is_to_be_read",
    ),
    Mutation(
        "markers-after-retention-judged",
        "timer_wheel/wheel/recall_search.py",
        "    if log.min_offset > 0 and not _has_all_flushed(timers):",
        "    if log.min_offset < 0:",
        "tests/timer_wheel/timers/test_retention_after_cancel.py"
        "::test_nothing_is_said_of_a_marker_whose_message_is_long_gone",
    ),
    Mutation(
        "last-unit-believed",
        "timer_wheel/wheel/recovery.py",
        "    if position is None and _leads_too_far(log, store, files, wheel):",
        "    if position is None and log.end < 0:",
        "tests/timer_wheel/wheel/test_flipped_units.py"
        "::test_a_last_unit_that_leads_to_what_has_none_hides_nothing",
    ),
    Mutation(
        "marker-of-two-keys",
        "timer_wheel/timers/record_kernel.py",
        "if facts[IS_MARKER, row] != ODD_MARKER:",
        "if True:",
        "tests/timer_wheel/wheel/test_flipped_markers.py"
        "::test_a_marker_that_says_something_else_is_told",
    ),
    Mutation(
        "lost-queue-of-a-killed-store",
        "legacy_levels/backlog/lost_queues.py",
        "is_at_rest = is_held or not store.is_in_use()",
        "is_at_rest = was_stopped_cleanly",
        "tests/migrate/table/test_gone_files.py"
        "::test_of_a_killed_store_a_directory_without_files_is_enough",
    ),
    Mutation(
        "entry-that-leads-to-another",
        "legacy_levels/engine/recovery.py",
        "_are_astray(candidates, log, np.flatnonzero(delivered))",
        "_are_astray(candidates, log, np.flatnonzero(delivered)[:0])",
        "tests/faults/test_damage_is_reported.py"
        "::test_an_entry_that_leads_to_what_was_delivered_is_not_taken_for_that",
    ),
    Mutation(
        "wheel-refused-behind-recovery",
        "timer_wheel/wheel/store.py",
        "            before_recovery=refuse_before_recovery,\n",
        "",
        "tests/faults/test_whole_files_lost.py"
        "::test_what_a_wheel_refuses_it_refuses_before_log_and_queues_are_recovered",
    ),
    Mutation(
        "retention-before-the-offsets",
        "legacy_levels/engine/store.py",
        "keep_from, self._persistence.make_known)",
        "keep_from, lambda: None)",
        "tests/simulation/test_synced_names.py"
        "::test_what_was_delivered_is_on_the_disk_before_retention_takes_a_record",
    ),
    Mutation(
        "listing-of-two-moments",
        "timer_wheel/hierarchy/hands.py",
        "self._db.blocks_in(view, wheel.name, hands.of(wheel)):",
        "self._db.blocks(wheel.name, hands.of(wheel)):",
        "tests/contract/test_hierarchical_store.py::TestMilliseconds"
        "::test_a_listing_beside_others_has_what_waits_all_the_while_once",
    ),
    Mutation(
        "listing-with-the-markers-of-later",
        "timer_wheel/hierarchy/search.py",
        "index.waiting.parts(), index.marks.as_of_now())",
        "index.waiting.parts(), index.marks)",
        "tests/contract/test_hierarchical_store.py::TestMilliseconds"
        "::test_a_listing_beside_others_has_nothing_that_went_before_and_nothing_twice",
    ),
    Mutation(
        "wheel-listing-with-the-markers-of-later",
        "timer_wheel/wheel/waiting.py",
        "            marks.as_of_now(),",
        "            marks,",
        "tests/contract/test_wheel_store.py::TestSeconds"
        "::test_a_listing_beside_others_has_nothing_that_went_before_and_nothing_twice",
    ),
    Mutation(
        "wheel-listing-of-two-moments",
        "timer_wheel/wheel/waiting.py",
        "        moment.last_positions[part], moment.slots[part],",
        "        timers.wheel.last_positions(moment.slots[part]), moment.slots[part],",
        "tests/contract/test_wheel_store.py::TestShortRounds"
        "::test_a_listing_beside_others_has_nothing_that_went_before_and_nothing_twice",
    ),
    Mutation(
        "connect-is-this-machine",
        "migrate/spark/cluster.py",
        "    return context_of(spark) is not None and is_one_machine(master_of(spark))",
        "    return is_one_machine(master_of(spark))",
        "tests/migrate/spark/test_write_job.py::test_behind_spark_connect_a_file_is_on_the_disk_too",
    ),
    Mutation(
        "disk-error-is-a-value",
        "migrate/spark/jobs.py",
        "        if isinstance(error, OSError):",
        "        if error is None:",
        "tests/migrate/spark/test_jobs.py::test_an_error_of_the_disk_is_raised_on_a_cluster_but_the_last_time",
    ),
    Mutation(
        "last-attempt-raises",
        "migrate/spark/jobs.py",
        "context.attemptNumber() + 1 < max_attempts",
        "context.attemptNumber() < max_attempts",
        "tests/migrate/spark/test_jobs.py::test_an_error_of_the_disk_is_raised_on_a_cluster_but_the_last_time",
    ),
    Mutation(
        "one-cancel-of-a-job",
        "migrate/spark/jobs.py",
        "                handle.cancel()  # the first came before the job",
        "                pass",
        "tests/migrate/spark/test_jobs.py::test_ctrl_c_before_the_job_has_begun_ends_it_too",
    ),
    Mutation(
        "batch-order-of-a-level",
        "legacy_levels/engine/delivery.py",
        "            order = np.lexsort((offset, due_ms))",
        "            order = np.lexsort((-offset, due_ms))",
        "tests/legacy_levels/test_against_reference.py::test_of_levels_that_are_due_together_each_keeps_its_order",
    ),
    Mutation(
        "delivery-offset-above-its-queue-not-corrected",
        "legacy_levels/engine/state.py",
        "    head = min(max(stored, queue.min_offset), queue.max_offset)",
        "    head = max(stored, queue.min_offset)",
        "tests/legacy_levels/test_against_reference.py::test_levels_by_a_broker_s_rules_do_what_the_reference_does[few-AgainstReference]",
    ),
    Mutation(
        "poison-passed-where-delivery-is-asynchronous",
        "legacy_levels/engine/delivery.py",
        '        if self._state.rules.poison == "block":',
        '        if self._state.rules.poison == "block" and not self._state.rules.async_delivery:',
        "tests/legacy_levels/test_against_reference.py::test_poison_stops_a_level_of_4_9_however_it_delivers[AsyncAgainst49]",
    ),
)


def copy_of_the_project(place: Path) -> Path:
    """All files that git knows, and those that it does not ignore, below ``place``."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name, follow_symlinks=False)
    return place


@contextmanager
def mutated(mutation: Mutation) -> Iterator[Path]:
    """A copy of the project with this mutation, which is there as long as it is needed."""
    shutil.rmtree(COPY, ignore_errors=True)
    try:
        root = copy_of_the_project(COPY)
        mutation.apply(root)
        yield root
    finally:
        shutil.rmtree(COPY, ignore_errors=True)


def is_noticed(mutation: Mutation) -> bool:
    """Whether the mutation's test fails on the mutated product. Raises RuntimeError when the test
    could not be run at all.
    """
    with mutated(mutation) as root:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider"]
        run = subprocess.run(
            [*command, "--no-header", mutation.test],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    if run.returncode not in (PASSED, FAILED):
        raise RuntimeError(f"{mutation.name}: {mutation.test} did not run\n{run.stdout[-2000:]}")
    return run.returncode == FAILED


def chosen_of(names: list[str]) -> list[Mutation]:
    """The mutations of these names, or all. Raises SystemExit for a name that none has."""
    if unknown := set(names) - {mutation.name for mutation in MUTATIONS}:
        raise SystemExit(f"no such mutation: {', '.join(sorted(unknown))}")
    return [mutation for mutation in MUTATIONS if not names or mutation.name in names]


def main(names: list[str]) -> int:
    """Run the mutations of these names, or all; the exit code."""
    chosen, missed = chosen_of(names), 0
    for mutation in chosen:
        noticed = is_noticed(mutation)
        missed += not noticed
        word = "noticed" if noticed else "MISSED "
        print(f"{word}  {mutation.name}: {mutation.test}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} mutations noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
