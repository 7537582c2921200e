# SPDX-License-Identifier: Apache-2.0
"""Records of differing buckets are read once more and paired in groups, in bounded memory."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from message_store.base.errors import SourceError, TargetError
from message_store.files.segments import SegmentReader
from message_store.files.small_files import replace_file
from migrate.verify import found as verify_found
from migrate.verify import jobs as verify_jobs
from migrate.verify.compare import PairTask, pair_group
from migrate.verify.digests.entries import DIGEST_A, DIGEST_B, DIGEST_CONTENT, DIGEST_IDENTITY
from migrate.verify.found import (
    BlockWriter,
    Found,
    Grouping,
    Piece,
    count_groups,
    found_records,
    read_pieces,
)
from migrate.verify.report import VerifyReport
from migrate.verify.verify import VerifyOptions, verify
from tests.independent.level_store_builder import T0, LevelMessage, build_level_store
from tests.migrate.verify_targets import Stores, convert, pending_of, write_target

Rows = list[tuple[int, int, int, int]]


@contextmanager
def small(**limits: int) -> Iterator[None]:
    """Limits of the blocks, small enough that a few records exceed them."""
    with pytest.MonkeyPatch.context() as patch:
        for name, limit in limits.items():
            patch.setattr(verify_found, f"_{name.upper()}_RECORDS", limit)
        yield


def found(rows: Rows) -> Found:
    digests = np.array(rows, np.uint64).reshape(-1, 4)
    return found_records(np.arange(len(rows)), digests, np.zeros(len(rows), np.uint8))


def pieces_of(rows: Found, cuts: Sequence[int]) -> tuple[Piece, ...]:
    parts = np.split(rows, sorted(min(cut, len(rows)) for cut in cuts))
    return tuple(Piece(part.tobytes(), 0, len(part)) for part in parts if len(part))


few = st.integers(0, 2)
sides = st.lists(st.tuples(few, few, few, few), max_size=12)
cuts = st.lists(st.integers(0, 12), max_size=4)
columns_of_pairs = st.sampled_from(
    [(DIGEST_A, DIGEST_B), (DIGEST_IDENTITY,), (DIGEST_CONTENT,), (DIGEST_A,)]
)


@given(sides, sides, cuts, cuts, columns_of_pairs, st.integers(0, 5), st.integers(1, 14))
def test_pairs_are_those_of_multisets_however_the_records_are_cut(
    ours: Rows,
    theirs: Rows,
    our_cuts: list[int],
    their_cuts: list[int],
    columns: tuple[int, ...],
    kept: int,
    chunk: int,
) -> None:
    source, target = found(ours), found(theirs)
    pieces = pieces_of(source, our_cuts), pieces_of(target, their_cuts)
    with small(chunk=chunk):
        pairs = pair_group(PairTask(*pieces, columns, kept, Grouping(DIGEST_CONTENT, 3, None)))
        named = pair_group(PairTask(*pieces, columns, kept, None))
    keys = [Counter(map(tuple, side["digests"][:, columns].tolist())) for side in (source, target)]
    shared = keys[0] & keys[1]
    assert pairs.count == named.count == shared.total()
    for side, rest, mine in ((source, pairs.source, keys[0]), (target, pairs.target, keys[1])):
        left = verify_found.joined(
            [
                rows
                for group in range(3)
                for block in rest.blocks
                if (piece := block.piece(group))
                for rows in read_pieces([piece])
            ]
        )
        assert Counter(map(tuple, left["digests"][:, columns].tolist())) == mine - shared
        assert rest.count == len(left) == len(side) - shared.total()
        assert (side[left["number"]] == left).all()
    every = pair_group(PairTask(*pieces, columns, 100, None)).first["source"].tolist()
    without = sorted(set(range(len(source))) - {*every})
    assert named.source.numbers.tolist() == without[:kept]
    first = named.first
    assert first["source"].tolist() == sorted(every)[:kept]
    assert len(set(first["target"].tolist())) == len(first)
    one = source["digests"][first["source"]][:, columns]
    assert (one == target["digests"][first["target"]][:, columns]).all()


@given(st.lists(st.integers(0, 2**64 - 1), max_size=40), st.integers(1, 9), st.integers(1, 7))
def test_groups_hold_every_record_once_and_equal_digests_together(
    digests: list[int], groups: int, block: int
) -> None:
    rows = found([(number, 0, digest, 0) for number, digest in enumerate(digests)])
    with small(block=block), tempfile.TemporaryDirectory() as directory:
        for where in (None, Path(directory)):
            writer = BlockWriter(Grouping(DIGEST_IDENTITY, groups, where))
            writer.add(rows[:5])
            writer.add(rows[5:])
            blocks = writer.finish()
            held = [
                [piece for block in blocks if (piece := block.piece(group))]
                for group in range(groups)
            ]
            parts = [verify_found.joined([*read_pieces(pieces)]) for pieces in held]
            together = verify_found.joined(parts)
            assert (together[np.argsort(together["number"])] == rows).all()
            of_group = [set(part["digests"][:, DIGEST_IDENTITY].tolist()) for part in parts]
            assert sum(map(len, of_group)) == len(set().union(*of_group))


def test_records_of_one_bucket_are_spread_over_the_groups() -> None:
    """Identities of one bucket have their high bits in common."""
    identities = np.random.default_rng(1).integers(0, 1 << 52, 10_000, np.uint64)
    rows = np.zeros(len(identities), verify_found.FOUND)
    rows["digests"][:, DIGEST_IDENTITY] = identities
    counts = np.bincount(Grouping(DIGEST_IDENTITY, 10, None).of(rows), minlength=10)
    assert counts.min() > 800


def test_a_group_has_at_most_a_chunk_of_evenly_spread_records() -> None:
    assert count_groups(0) == 1
    for records in (1, 1 << 20, 1 << 27, 1 << 30):
        assert records / count_groups(records) <= verify_found._CHUNK_RECORDS / 2


def test_a_block_whose_file_is_gone_or_cut_short_is_refused(tmp_path: Path) -> None:
    writer = BlockWriter(Grouping(DIGEST_A, 1, tmp_path))
    writer.add(found([(1, 2, 3, 4)] * 3))
    [block] = writer.finish()
    piece = block.piece(0)
    [path] = tmp_path.iterdir()
    assert piece is not None
    assert len(piece.read()) == 3
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SourceError, match="every worker must see the scratch"):
        piece.read()
    path.unlink()
    with pytest.raises(SourceError, match="every worker must see the scratch"):
        piece.read()


# --- whole stores ---------------------------------------------------------------------------------

SAME, CHANGED, RENAMED, LOST, ADDED = 150, 90, 40, 120, 70


def messages_of(kind: str, count: int, key: str | None, body: str) -> list[LevelMessage]:
    return [
        LevelMessage(
            level=16,
            body=f"{body} {number}".encode(),
            unique_key=None if key is None else f"{key}-{number}",
            store_timestamp_ms=T0 + 20,
            topic=f"Topic-{kind}",
        )
        for number in range(count)
    ]


def much_differs(path: Path, *, has_keys: bool = True) -> Stores:
    """More messages of every kind of difference than a small chunk holds."""

    def key(name: str) -> str | None:
        return name if has_keys else None

    ours = [
        *messages_of("same", SAME, key("same"), "the same"),
        *messages_of("changed", CHANGED, key("changed"), "before"),
        *messages_of("renamed", RENAMED, key("old"), "renamed"),
        *messages_of("lost", LOST, key("lost"), "lost"),
    ]
    theirs = [
        *messages_of("same", SAME, key("same"), "the same"),
        *messages_of("changed", CHANGED, key("changed"), "after"),
        *messages_of("renamed", RENAMED, key("new"), "renamed"),
        *messages_of("added", ADDED, key("added"), "added"),
    ]
    built = build_level_store(path / "source", ours)
    other = build_level_store(path / "other", theirs)
    write_target(path / "target", convert(other.placed))
    return Stores(built, path / "target", pending_of(built.placed))


def counts(report: VerifyReport) -> tuple[int, int, int, int]:
    return report.converted, report.missing, report.unexpected, report.different


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return much_differs(tmp_path_factory.mktemp("stores"))


SMALL = {"chunk": 20, "block": 8, "inline": 5}


def test_the_counts_and_the_list_do_not_depend_on_how_much_fits(stores: Stores) -> None:
    whole = stores.verify(listed=30)
    assert counts(whole) == (SAME, LOST, ADDED, CHANGED + RENAMED)
    assert Counter(each.kind for each in whole.differences) == {
        "different": 30, "missing": 30, "unexpected": 30,
    }  # fmt: skip
    with small(**SMALL):
        assert stores.verify(listed=30) == whole


def test_each_kind_is_listed_in_the_order_of_its_log(stores: Stores) -> None:
    with small(**SMALL):
        report = stores.verify(listed=1_000)
    for kind, place in (("different", "source"), ("missing", "source"), ("unexpected", "target")):
        offsets = [
            getattr(each, f"{place}_offset") for each in report.differences if each.kind == kind
        ]
        assert offsets == sorted(offsets)
        assert len(offsets) == len(set(offsets)) > 1
    different = [each for each in report.differences if each.kind == "different"]
    assert len(different) == CHANGED + RENAMED
    assert all(each.fields for each in different)


def test_both_logs_are_read_twice_however_much_differs(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: Counter[Path] = Counter()
    read_into = SegmentReader.read_into

    def counting(reader: SegmentReader, offset: int, buffer: memoryview) -> int:
        segment = reader.segment_at(offset)
        assert segment is not None
        read[segment.path] += buffer.nbytes
        return read_into(reader, offset, buffer)

    monkeypatch.setattr(SegmentReader, "read_into", counting)
    with small(**SMALL):
        report = stores.verify(listed=0, sample=0)
    assert counts(report) == (SAME, LOST, ADDED, CHANGED + RENAMED)
    for root in (stores.source.root, stores.target):
        files = list((root / "commitlog").iterdir())
        size = sum(file.stat().st_size for file in files)
        examples = 5 * 1_000  # one record of each topic, for its name
        assert 0 < sum(read[file] for file in files) <= 2 * size + examples


def test_messages_of_one_identity_are_paired_in_bounded_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without keys, born at one time: one bucket holds them all, and one group of identities."""
    ours = [
        LevelMessage(level=16, body=b"%d" % n, unique_key=None, store_timestamp_ms=T0 + 20)
        for n in range(200)
    ]
    theirs = [attrs.evolve(each, body=b"-" + each.body) for each in ours[:150]]
    built = build_level_store(tmp_path / "source", ours)
    other = build_level_store(tmp_path / "other", theirs)
    write_target(tmp_path / "target", convert([*built.placed[:30], *other.placed[30:]]))
    stores = Stores(built, tmp_path / "target", pending_of(built.placed))
    seen: list[int] = []
    ordered = verify_found._ordered

    def watched(parts: Sequence[Found]) -> Found:
        seen.append(sum(map(len, parts)))
        return ordered(parts)

    monkeypatch.setattr(verify_found, "_ordered", watched)
    with small(chunk=16, block=8, inline=0):
        report = stores.verify(listed=1_000)
    assert counts(report) == (30, 50, 0, 120)
    assert max(seen) <= 16
    assert len([each for each in report.differences if each.kind == "different"]) == 120


def test_only_the_scratch_is_written_and_it_is_emptied(stores: Stores, tmp_path: Path) -> None:
    seen: list[Path] = []

    def lay_down(path: Path, content: bytes, *, mode: int, is_durable: bool) -> None:
        seen.append(path)
        replace_file(path, content, mode=mode, is_durable=is_durable)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify_found, "replace_file", lay_down)
        scratch = tmp_path / "scratch"
        options = VerifyOptions(scratch=scratch)
        patch.setattr(verify_found, "_INLINE_RECORDS", 5)
        with pytest.raises(TargetError, match=r"scratch.*: cannot be written"):
            verify(stores.source.root, stores.target, spark=None, options=options)
        scratch.mkdir()
        report = verify(stores.source.root, stores.target, spark=None, options=options)
    assert counts(report) == (SAME, LOST, ADDED, CHANGED + RENAMED)
    assert {path.parent.parent for path in seen} == {scratch}
    assert not list(scratch.iterdir())


def test_few_differences_need_no_scratch(stores: Stores, tmp_path: Path) -> None:
    options = VerifyOptions(scratch=tmp_path / "nothing")
    report = verify(stores.source.root, stores.target, spark=None, options=options)
    assert counts(report) == (SAME, LOST, ADDED, CHANGED + RENAMED)


@pytest.mark.check
@pytest.mark.spark
def test_spark_pairs_as_this_process_does(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    whole = verify(stores.source.root, stores.target, spark=None)
    monkeypatch.setattr(verify_jobs, "_TASK_MIN_ENTRIES", 50)
    monkeypatch.setattr(verify_found, "_INLINE_RECORDS", 0)
    seen: list[str] = []
    report = verify(
        stores.source.root,
        stores.target,
        spark=spark,
        progress=lambda stage, _done, _total: seen.append(stage),
    )
    assert report == whole
    assert {"compare", "pair 1/3", "pair 2/3", "pair 3/3"} <= set(seen)
