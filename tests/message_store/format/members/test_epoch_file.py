# SPDX-License-Identifier: Apache-2.0
"""`epochFileCheckpoint`: the texts of two real members, and texts that are none."""

import pytest

from message_store.base.errors import BadFieldError
from message_store.format.members.epoch_file import Epoch, decode_epochs


@pytest.mark.parametrize(
    ("text", "epochs"),
    [
        (b"2\n812872448\n1-0\n2-2688079\n", [(1, 0), (2, 2_688_079)]),
        (
            b"3\n2111609729\n1-0\n2-2688079\n3-5735381\n",
            [(1, 0), (2, 2_688_079), (3, 5_735_381)],
        ),
    ],
)
def test_the_epochs_of_a_real_member_are_decoded(
    text: bytes, epochs: list[tuple[int, int]]
) -> None:
    assert decode_epochs(text) == tuple(Epoch(*each) for each in epochs)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"2\n",
        b"2\n812872448\n1-0\n",
        b"2\n812872448\n1-0\n2-2688078\n",
        b"2\n812872448\n1-0\n2\n",
        b"x\n812872448\n1-0\n2-2688079\n",
        b"\xff\xfe",
    ],
)
def test_a_text_that_is_cut_or_changed_is_refused(text: bytes) -> None:
    with pytest.raises(BadFieldError):
        decode_epochs(text)
