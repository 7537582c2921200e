# SPDX-License-Identifier: Apache-2.0
"""Random runs that failed once: tests run them, and whoever looks for a fault runs them first."""

from __future__ import annotations

from typing import Final

FAILED_ONCE: Final = {
    "a-listing-beside-an-advance-has-what-was-cancelled": 600_809,
    "a-store-that-was-closed-repeats-after-a-flipped-offset": 802_118,
    "a-handover-after-a-kill-takes-old-markers-for-damaged": 902_738,
    "a-cancel-is-answered-about-a-message-of-another-slot": 920_132,
    "a-last-unit-without-its-time-hides-its-message": 920_668,
    "a-marker-before-the-hand-is-forgotten": 923_322,
    "a-cancel-is-in-memory-alone-after-a-flush": 923_904,
    "a-unit-without-its-record-counts-for-the-first-message": 947_966,
    "small-files-of-a-killed-process-are-in-memory-alone-when-another-engine-closes": 6_008_409,
    "a-repeating-wheel-loses-what-only-its-hand-tells-of-after-a-loss-of-power": 6_014_158,
    "a-close-of-a-store-in-doubt-counts-as-a-flush": 6_010_908,
    "a-wheel-is-taken-over-by-another-width-after-levels-had-the-store": 5_005_394,
    "a-rebuild-that-is-refused-has-placed-what-waited": 5_005_594,
    "a-copy-outlives-the-marker-that-cancelled-it": 5_011_457,
    "placed-half-a-round-behind-before-a-kill": 5_012_656,
    "units-are-put-behind-a-hand-that-is-not-on-the-disk": 5_018_242,
    "a-repeated-delivery-was-cancelled-beside-others": 5_020_369,
    "an-entry-leads-to-the-record-of-another": 5_022_093,
    "a-level-went-on-behind-a-cancel-that-the-power-took": 7_000_756,
    "an-opening-is-stopped-after-the-power-was-lost": 7_005_468,
    "another-message-of-the-name-lies-where-one-was-lost": 7_007_809,
    "nobody-advanced-a-wheel-for-longer-than-a-broker-reads-back": 7_000_962,
    "what-is-new-is-placed-where-an-old-hand-stands": 8_100_406,
    "offsets-of-a-repeating-store-are-ahead-of-a-log-that-lost-power": 9_008_984,
    "a-listing-after-a-crash-trusts-a-checkpoint-from-before-a-clock-was-set-back": 9_011_456,
    "a-handle-takes-a-neighbour-of-a-whole-second": 9_301_122,
    "units-behind-a-hand-that-the-power-took-lead-nowhere": 9_507_876,
    "a-level-that-lost-its-queue-shows-what-was-cancelled": 9_950_018,
    "a-listing-follows-offsets-that-are-older-than-the-mark": 9_990_606,
    "a-listing-of-a-killed-wheel-takes-no-marker-behind-its-hand": 10_016_873,
}
"""What was wrong, and the seed that met it."""

FAILED_ONCE_IN_MOVES: Final = {
    "a-listing-tells-of-what-a-broker-would-lose-beside-the-pending": 9_001_139,
    "a-move-that-the-power-took-may-have-left-a-marker": 9_009_991,
    "what-replaced-a-message-has-rolled-and-its-first-record-is-gone": 9_015_691,
    "what-was-due-at-once-is-behind-its-narrower-slot": 8_203_347,
    "what-stops-a-broker-is-looked-for-in-a-queue-that-lost-it": 5_001_023,
    "a-message-that-was-being-moved-may-have-the-handle-of-another": 5_001_863,
    "a-message-that-a-repeating-store-moves-was-delivered-before": 5_004_587,
    "what-is-put-rounds-behind-the-hand-is-parked-where-no-broker-reads": 5_003_367,
    "a-handle-names-what-another-width-gave-the-same-time": 5_012_531,
    "a-wheel-tells-its-width-by-files-that-are-made-for-it": 7_007_067,
    "a-refused-takeover-has-noted-what-the-broker-delivered": 9_408_847,
    "a-listing-of-a-killed-wheel-counts-a-unit-that-the-power-tore": 10_017_407,
    "a-listing-tells-too-early-a-time-of-what-the-log-alone-has": 12_000_087,
}
"""The same of runs in which messages move."""

FAILED_ONCE_IN_KILLS: Final = {
    "units-off-their-chain-come-back-when-those-above-are-put-away": 12_301_039,
}
"""The same of runs with the focus on kills."""

FAILED_ONCE_IN_A_TIME_INDEX: Final = {
    "a-listing-tells-of-what-lies-behind-a-hole-in-the-log": 13_004_347,
}
"""The same of runs with the focus on the time index."""

FAILED_ONCE_IN_GROUPS: Final = {
    "an-acknowledgement-of-a-killed-process-is-in-memory-alone-after-a-flush": 178,
}
"""The same of runs with the focus on groups."""

FAILED_ONCE_IN_REFERENCES: Final = {
    "what-was-due-when-it-was-stored-comes-again-after-a-close": 9,
    "a-marker-waits-behind-what-is-due": 13,
    "an-opening-puts-again-what-a-flush-had-put": 17,
    "a-cancelled-message-is-delivered": 29,
    "a-late-roll-is-told-with-a-later-time": 22,
    "a-refused-put-of-levels-is-told-to-nobody": 23,
    "units-of-a-killed-process-are-in-memory-alone-after-a-flush": 25,
    "what-was-cancelled-before-a-flush-comes-after-a-kill": 101,
    "a-log-in-doubt-is-told-to-nobody": 228,
    "a-refused-put-of-a-wheel-is-told-to-nobody": 352,
    "a-directory-that-cannot-be-made-is-no-error-of-a-store": 9_200_536,
    "a-flush-whose-sync-failed-is-believed-the-next-time": 13_004_383,
    "an-overdue-message-is-cancelled-and-comes": 9_975_403,
    "what-a-cancel-delivered-was-never-told-of-after-a-kill": 9_991_168,
    "retention-takes-a-marker-whose-message-stays": 10_001_983,
}
"""The same of runs with the focus on the reference engines."""
