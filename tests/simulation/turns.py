# SPDX-License-Identifier: Apache-2.0
"""Threads of which one runs at a time, and chance says when another goes on: at each lock that is
taken, at each condition that is waited for, at each change of the disk. The same chance makes the
same run, so that a race that was met is met again.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import pytest

from consumer_groups import progress_table
from legacy_levels.engine import offset_persistence
from message_store.files import unsynced
from message_store.writing import store
from tests.simulation.simulated_disk import Killed

_MODULES = (store, unsynced, offset_persistence, progress_table)
"""Those that make locks."""
_PATIENCE_S = 120
"""So long a thread waits for its turn before a lock that is none of these must hold it up."""


class StandstillError(AssertionError):
    """Every thread waits for another."""


@attrs.define(eq=False)
class _Worker:
    work: Callable[[], object]
    gate: threading.Semaphore = attrs.field(factory=lambda: threading.Semaphore(0))
    may_go: Callable[[], bool] = lambda: True
    is_over: bool = False
    error: BaseException | None = None


class Turns:
    """Who runs now. Threads that were not started by ``run`` give way to nobody."""

    def __init__(self) -> None:
        self._workers: dict[int, _Worker] = {}
        self._all: list[_Worker] = []
        self._rng = random.Random(0)
        self._restless = 0.0
        self._is_dead = False

    def run(
        self, works: Sequence[Callable[[], object]], rng: random.Random
    ) -> list[BaseException | None]:
        """Do all of this at once; returns what each raised. After Killed in one of them the process
        is dead, and the others come to nothing more.
        """
        self._all, self._rng, self._is_dead = [_Worker(work) for work in works], rng, False
        self._restless = rng.choice([0.05, 0.3, 1.0])
        threads = [threading.Thread(target=self._live, args=(each,)) for each in self._all]
        for thread in threads:
            thread.start()
        self._pass_on()
        for thread in threads:
            thread.join()
        errors = [each.error for each in self._all]
        self._all = []
        return errors

    def _live(self, worker: _Worker) -> None:
        self._workers[threading.get_ident()] = worker
        worker.gate.acquire()
        try:
            worker.work()
        except BaseException as error:
            worker.error = error
            self._is_dead |= isinstance(error, Killed | StandstillError)
        finally:
            worker.is_over = True
            del self._workers[threading.get_ident()]  # another thread may get the same
            self._pass_on()

    def _able(self) -> list[_Worker]:
        left = [each for each in self._all if not each.is_over]
        return [each for each in left if self._is_dead or each.may_go()]

    def _pass_on(self) -> None:
        able = self._able()
        if not able and not all(each.is_over for each in self._all):
            self._is_dead = True  # whoever goes on says that all stand still
            able = self._able()
        if able:
            self._rng.choice(able).gate.release()

    def step(self) -> None:
        """Another thread may go on first."""
        worker = self._workers.get(threading.get_ident())
        if worker is not None and (self._is_dead or self._rng.random() < self._restless):
            self._switch(worker)

    def wait_until(self, may_go: Callable[[], bool]) -> None:
        """Let others go on until this holds."""
        worker = self._workers.get(threading.get_ident())
        if worker is None:
            raise StandstillError("a thread of nobody's waits for a lock")
        worker.may_go = may_go
        try:
            self._switch(worker)
        finally:
            worker.may_go = lambda: True

    def _switch(self, worker: _Worker) -> None:
        able = [] if self._is_dead else self._able()
        if not able:
            raise Killed if self._is_dead else StandstillError("every thread waits for another")
        chosen = self._rng.choice(able)
        if chosen is not worker:
            chosen.gate.release()
            if not worker.gate.acquire(timeout=_PATIENCE_S):
                raise StandstillError("a thread that has its turn does not go on")
        if self._is_dead:
            raise Killed


TURNS = Turns()


class TurnLock:
    """``threading.Lock``, or ``RLock``, for threads that take turns."""

    def __init__(self, *, is_reentrant: bool = False) -> None:
        self._is_reentrant = is_reentrant
        self._owner: int | None = None
        self._count = 0

    def _is_free(self) -> bool:
        is_mine = self._is_reentrant and self._owner == threading.get_ident()
        return self._owner is None or is_mine

    def acquire(self, blocking: bool = True) -> bool:
        """Take it, or wait for it."""
        TURNS.step()
        while not self._is_free():
            if not blocking:
                return False
            TURNS.wait_until(lambda: self._owner is None)
        self._owner = threading.get_ident()
        self._count += 1
        return True

    def release(self) -> None:
        """Give it back; whoever was killed while waiting for it has nothing to give."""
        if self._owner == threading.get_ident():
            self._count -= 1
            self._owner = self._owner if self._count else None

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_error: object) -> None:
        self.release()


class TurnCondition:
    """``threading.Condition`` for threads that take turns."""

    def __init__(self, lock: TurnLock | None = None) -> None:
        self._lock = lock or TurnLock()
        self._told = 0

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_error: object) -> None:
        self._lock.release()

    def wait(self) -> None:
        """Wait to be told."""
        told = self._told
        self._lock.release()
        TURNS.wait_until(lambda: self._told != told)
        self._lock.acquire()

    def notify_all(self) -> None:
        """Tell all that wait."""
        self._told += 1


class _Threading:
    """The module, with these locks in it."""

    Condition = TurnCondition
    Lock = TurnLock

    @staticmethod
    def RLock() -> TurnLock:
        return TurnLock(is_reentrant=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


@contextmanager
def taking_turns() -> Iterator[None]:
    """Stores that are opened meanwhile have locks at which threads take turns."""
    with pytest.MonkeyPatch.context() as patch:
        for module in _MODULES:
            patch.setattr(module, "threading", _Threading())
        yield
