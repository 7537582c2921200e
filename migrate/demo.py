# SPDX-License-Identifier: Apache-2.0
"""The main job on the small real store that the project ships: unpack, convert, verify.

The reference time is the moment at which the store's broker was stopped, so every run gives the
same result. Such a target is only for looking: its wheel expired long ago.
"""

import json
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from message_store.base.errors import SourceError, TargetError
from message_store.files.small_files import read_small_file
from migrate.convert import convert
from migrate.progress import Progress
from migrate.report.report import ConversionReport
from migrate.settings import ConvertOptions
from migrate.spark.cluster import require_scratch
from migrate.verify.report import VerifyReport
from migrate.verify.verify import VerifyOptions, verify
from migrate.write.staging import target_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHIPPED = Path(__file__).resolve().parent
ARCHIVE = _SHIPPED / "sample_store.tar.xz"
ABOUT = _SHIPPED / "sample_store.about.json"


@attrs.frozen
class DemoResult:
    """What the demo did, and where the two stores lie."""

    broker: str
    stopped_ms: int
    source: str
    target: str
    report: ConversionReport
    verification: VerifyReport

    def as_json(self) -> dict[str, Any]:
        """The JSON object that ``demo --json`` prints."""
        plain = attrs.asdict(self, recurse=False)
        parts = {"report": self.report.as_json(), "verification": self.verification.as_json()}
        return {**plain, **parts}


def unpack_sample(directory: Path) -> Path:
    """Put the sample store into ``directory``/source, its holes as holes; returns that place.

    Raises TargetError when the disk refuses, or has one there already.
    """
    source = directory / "source"
    if source.exists():
        raise TargetError(
            f"{source}: is there already, perhaps of an earlier demo; remove it, or give another"
            " directory"
        )
    with target_errors(source):
        source.mkdir(parents=True)
        # Python 3.11.0 to 3.11.3, which Debian 12 has, knows no filters; the archive is our own.
        caution: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        shutil.unpack_archive(ARCHIVE.resolve(), source, "xztar", **caution)
    return source


def run_demo(
    directory: Path | None,
    *,
    spark: "SparkSession | None",
    progress: Progress,
    spark_start_s: float = 0.0,
) -> DemoResult:
    """Convert and verify the sample below ``directory``, which has no ``source`` or ``target`` yet.

    Without a directory a new one is made where temporary files go, and stays there to be looked at;
    on a cluster it must be given, and be seen by all workers. Raises what ``convert`` and
    ``verify`` raise.
    """
    about = _about()
    if spark is not None:
        require_scratch(spark, directory, "--directory")
    if directory is None:
        directory = Path(tempfile.mkdtemp(prefix="delaywheel-demo-"))
    progress("unpack", 0, 1)
    source, target = unpack_sample(directory), directory / "target"
    progress("unpack", 1, 1)
    stopped_ms = int(about["stoppedMs"])
    options = ConvertOptions(source=source, target=target, now_ms=stopped_ms)
    report = convert(options, spark=spark, spark_start_s=spark_start_s, progress=progress)
    beside = VerifyOptions(scratch=directory)
    verification = verify(source, target, spark=spark, options=beside, progress=progress)
    return DemoResult(
        broker=str(about["version"]),
        stopped_ms=stopped_ms,
        source=str(source),
        target=str(target),
        report=report,
        verification=verification,
    )


def _about() -> dict[str, Any]:
    content = read_small_file(ABOUT.resolve())
    if content is None:
        raise SourceError(f"{ABOUT}: is missing; this installation is incomplete")
    about: dict[str, Any] = json.loads(content)
    return about
