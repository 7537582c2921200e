# SPDX-License-Identifier: Apache-2.0
"""One source of a conversion: whether it may be converted, what waits in it, and which part of that
is asked for.
"""

from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from legacy_levels.backlog.backlog import LevelBacklog, read_backlog
from message_store.base.errors import TargetError, UncleanStoreError
from message_store.base.printable import counted
from message_store.files.store_root import StoreRoot
from message_store.writing.cut_log import require_whole_log
from migrate.look.choices import require_queues
from migrate.plan.run_request import request_of
from migrate.report.finished_target import refuse_unfinished
from migrate.report.report import ConversionReport
from migrate.settings import ConvertOptions
from migrate.source.retired_source import retired_warnings
from migrate.source.source_warnings import source_warnings
from migrate.source.source_wheel import require_empty_wheel, waiting_in_wheel
from migrate.source.topic_choice import choose_topics


class ConversionSource:
    """What one source brings, stage by stage.

    ``backlog`` and ``chosen`` are there after ``read``.
    """

    backlog: LevelBacklog
    chosen: NDArray[np.bool_]

    def __init__(self, options: ConvertOptions) -> None:
        self.options = options
        self.root = StoreRoot(options.source)
        self.warnings: list[str] = []
        self.left_out_topics: dict[str, int] = {}

    def check_places(self, target: Path) -> None:
        """Refuse what is no store, and one of source and target within the other."""
        self.root.require_readable()
        self.root.require_log()
        require_whole_log(self.root)
        source, target_end = self.root.path.resolve(), target.resolve()
        if source.is_relative_to(target_end) or target_end.is_relative_to(source):
            raise TargetError(f"{target}: must not lie in the source, or around it")

    def check(self) -> None:
        """Refuse a store that was not stopped, or whose own wheel is not empty, unless told
        otherwise; and one of which a change was stopped: what it began is still to be finished.
        """
        refuse_unfinished(self.root)
        if not self.root.was_stopped_cleanly and not self.options.after_crash:
            raise UncleanStoreError(
                f"{self.root.abort}: the broker is running or has crashed; stop it cleanly, or"
                " use --after-crash, which leaves out what was already delivered"
            )
        self.warnings = [
            *retired_warnings(self.root, self.options.only_levels),
            *source_warnings(self.root, whole_log=self.options.whole_log),
        ]
        if not self.options.levels_only:
            require_empty_wheel(self.root)
        elif waiting := waiting_in_wheel(self.root):
            told = counted(waiting, "message waits", "messages wait")
            self.warnings.append(f"left behind: {told} in the source's own timer wheel")

    def read(self) -> None:
        """Find what is pending, and what of it this run is about; the rest is `skipped`."""
        options = self.options
        self.backlog = read_backlog(
            self.root.path,
            offsets_choice=options.offsets,
            level_table=options.level_table,
            after_crash=options.after_crash,
            whole_log=options.whole_log,
        )
        self.chosen = np.ones(len(self.backlog), np.bool_)
        if options.only_levels:
            known = {counts.level for counts in self.backlog.counts}
            require_queues(self.root, options.only_levels, known)
            self.chosen &= np.isin(self.backlog.level, np.array(options.only_levels))
        if options.only_topics:
            wanted, self.left_out_topics = choose_topics(
                self.root, self.backlog, options.only_topics
            )
            self.chosen &= wanted

    def request(self, now_ms: int) -> dict[str, Any]:
        """What makes this run of this source this one and not another."""
        return request_of(self.options, now_ms, self.backlog.level_table)

    def with_warnings(self, report: ConversionReport) -> ConversionReport:
        """The source's report with what else is to be said of it."""
        return attrs.evolve(
            report,
            left_out_topics=self.left_out_topics,
            warnings=(*self.warnings, *report.warnings),
        )
