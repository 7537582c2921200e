# SPDX-License-Identifier: Apache-2.0
"""Steps of a random run in which a message moves to another time, all of a key are cancelled, or
somebody asks what became of it.
"""

from __future__ import annotations

from typing import cast

from consumer_groups import GroupStore
from consumer_groups.life import message_state
from message_store import AtMs, Cancellation, Receipt
from message_store.base.errors import SharedKeyError, UnsupportedDelayError
from message_store.interface.message_life import MessageState
from message_store.life.by_key import KeyedStore, cancel_by_key, find_receipts
from tests.faults.store_reading import log_begin
from tests.simulation.account import ABSENT, CANCELLED, DELIVERED, PENDING, Life, message_of
from tests.simulation.bench import START_MS
from tests.simulation.world import World

LONGEST_LEVEL_MS = 7_200_000


def times_ms(world: World, due_ms: int) -> tuple[int, int]:
    """The first and last time for which a message may wait that is asked for now."""
    early_ms = max(due_ms, world.clock.now_ms())
    slots_ms = 2 * max(world.account.widest_ms, world.owner.slot_ms)
    return early_ms, early_ms + max(slots_ms, LONGEST_LEVEL_MS)


def reschedule(world: World, life: Life, due_ms: int, *, by_receipt: bool) -> None:
    """Let this one wait for another time, or the one that has its handle."""
    assert life.receipt is not None
    named = life.receipt if by_receipt else life.receipt.handle
    how = "receipt" if by_receipt else "handle"
    world.say(f"reschedule {life} by its {how} to {due_ms - START_MS:+,} ms")
    moving = world.account.reschedule(
        life, times_ms(world, due_ms), world.clock.now_ms(), by_receipt=by_receipt
    )
    answer: Receipt | Cancellation | None = None
    try:
        answer = world.store.reschedule(named, AtMs(due_ms))
    except SharedKeyError as error:
        world.say(f"  {error}")
    except UnsupportedDelayError:
        moving.did_nothing()
        world.require_too_long([due_ms])
        return
    world.say(f"  {answer}")
    world.require(world.account.rescheduled(moving, answer, forgets=world.forgets))
    if isinstance(answer, Receipt):
        _require_promise(world, answer, due_ms)


def _require_promise(world: World, moved: Receipt, due_ms: int) -> None:
    """What moves goes to the time that was asked for, or stays in the slot that has it."""
    early_ms, late_ms = times_ms(world, due_ms)
    if moved.due_ms != due_ms or not early_ms <= moved.promised_ms <= late_ms:
        overdue_ms = max(early_ms, moved.promised_ms)
        if not moved.due_ms <= moved.promised_ms <= overdue_ms:
            world.require([f"asked for {due_ms} at {world.clock.now_ms()}: {moved}"])


def cancel_all(world: World, name: str) -> None:
    """Take all back that have this name."""
    world.say(f"cancel all {name}")
    account = world.account
    asked = account.cancel_all(name)
    found = cancel_by_key(cast(KeyedStore, world.store), name, message_of(name).topic)
    answers = [answer for _, answer in found]
    world.say(f"  {[answer.value for answer in answers]}")
    world.require(account.cancelled_all(asked, answers))


def find(world: World, name: str) -> None:
    """Ask for the receipts of a name. Those of a message that was being moved were not known."""
    world.say(f"find {name}")
    account = world.account
    lives = [each for each in account.lives if account.is_own(each, name) and PENDING in each.may]
    found = find_receipts(cast(KeyedStore, world.store), name)
    least, most = sum(each.may == {PENDING} for each in lives), len(lives)
    if not least <= len(found) <= most and not account.is_repeating:
        world.require([f"found {found}, not {least} to {most}: {', '.join(map(str, lives))}"])
    if len(found) == len(lives) == 1 and lives[0].receipt is None:
        lives[0].receipt = found[0]


_STATES = {
    PENDING: {MessageState.PENDING},
    DELIVERED: {MessageState.DELIVERED},
    CANCELLED: {MessageState.CANCELLED, MessageState.UNKNOWN},  # a rebuilt entry does not tell
}


def ask(world: World, name: str) -> None:
    """Ask where in their lives the messages of a name are, and hold what is said to the account.
    The receipt of a message that moved tells of that message still, unless retention took a record
    between the two.
    """
    world.say(f"ask about {name}")
    begin = log_begin(world.root)
    for life in world.known:
        meant = life
        while meant.replaced_by is not None:
            meant = meant.replaced_by
        moves = [each.place for each in world.account.lives if each.replaced_by is meant]
        if any(life.place < place < begin for place in moves):
            continue
        if life.name != name or world.account.is_repeating or len(meant.may) > 1:
            continue
        if meant.may == {ABSENT}:  # another may lie where it was
            continue
        assert life.receipt is not None
        state = message_state(cast(GroupStore, world.store), life.receipt)
        [fate] = meant.may
        if state not in _STATES[fate] and not (world.forgets and state is MessageState.UNKNOWN):
            world.require([f"said to be {state.value} by {life.receipt}: {meant}"])
