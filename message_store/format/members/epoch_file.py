# SPDX-License-Identifier: Apache-2.0
"""The text of `epochFileCheckpoint`, which a broker of a group with a controller keeps.

RocketMQ: EpochFileCache, CheckpointFile (5.5.1).
"""

import attrs

from message_store.base.errors import BadFieldError
from message_store.format.message_codec import body_crc


@attrs.frozen
class Epoch:
    """An epoch of the group, and the log offset at which it begins."""

    epoch: int
    start_offset: int


def decode_epochs(content: bytes) -> tuple[Epoch, ...]:
    """The epochs in the order of the file. Raises BadFieldError.

    >>> decode_epochs(b"2\\n812872448\\n1-0\\n2-2688079\\n")[-1]
    Epoch(epoch=2, start_offset=2688079)
    """
    try:
        count, crc, *lines = content.decode("ascii").splitlines()
        pairs = [line.split("-") for line in lines]
        epochs = tuple(Epoch(int(epoch), int(start)) for epoch, start in pairs)
        is_whole = (int(count), int(crc)) == (len(lines), body_crc(_body(lines)))
    except ValueError as error:
        raise BadFieldError("not a list of epochs") from error
    if not is_whole:
        raise BadFieldError("the epochs do not fit their number or checksum")
    return epochs


def _body(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
