# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with one record: as verification kernels number it, and in words."""

import enum


class Complaint(enum.IntEnum):
    """The first thing that is wrong with a record; the lower numbers mean that it cannot be read.

    LEFT_OUT is no fault: the conversion was asked for other topics. A target record with any
    complaint is not the message that was converted, whatever its fields say: a broker would lose
    it, or deliver it wrongly.
    """

    NONE = 0
    LEFT_OUT = 1
    OUTSIDE = 2
    NO_RECORD = 3
    SIZE = 4
    LENGTHS = 5
    BODY_CRC = 6
    TOPIC = 7
    QUEUE_ID = 8
    QUEUE_OFFSET = 9
    COMMIT_LOG_OFFSET = 10
    STORE_TIME = 11
    PREPARED_OFFSET = 12
    DELAY = 13
    REAL_TOPIC = 14
    REAL_QUEUE_ID = 15
    OUT_TIME = 16
    FORBIDDEN_PROPERTY = 17
    RECORD_CRC = 18
    SLOT = 19
    FLAGS = 20
    TAGS_CODE = 21
    TOPIC_HASH = 22
    HALF_MESSAGE = 23
    MAGIC = 24


LAST_UNREADABLE = Complaint.LENGTHS
"""Up to this one a record has nothing to compare."""

SENTENCES = {
    Complaint.OUTSIDE: "the entry reaches outside the commit log's files",
    Complaint.NO_RECORD: "no record begins there",
    Complaint.SIZE: "the record has another size than the entry says",
    Complaint.LENGTHS: "the record's lengths do not add up",
    Complaint.BODY_CRC: "the body is not what its CRC says",
    Complaint.TOPIC: "the record is not of the topic of this queue",
    Complaint.QUEUE_ID: "the record's queue id is not this queue's",
    Complaint.QUEUE_OFFSET: "the record's queue offset is not its place in the queue",
    Complaint.COMMIT_LOG_OFFSET: "the record says that it begins elsewhere in the log",
    Complaint.STORE_TIME: "the store timestamp is not that of the conversion",
    Complaint.PREPARED_OFFSET: "the prepared transaction offset is not 0",
    Complaint.DELAY: "the property DELAY is missing, no number, or of another level",
    Complaint.REAL_TOPIC: "the property REAL_TOPIC is missing",
    Complaint.REAL_QUEUE_ID: "the property REAL_QID is missing or no number",
    Complaint.OUT_TIME: "the property TIMER_OUT_MS is missing, there twice, or no number",
    Complaint.FORBIDDEN_PROPERTY: "a property is there that would delay, delete or misplace it",
    Complaint.RECORD_CRC: "the property __CRC32# is not the record's checksum",
    Complaint.SLOT: "it is placed in a slot that is not its time",
    Complaint.FLAGS: "its timer log unit has flags that are not right for its time",
    Complaint.TAGS_CODE: "its queue entry does not have the hash of its tag",
    Complaint.TOPIC_HASH: "its timer log unit does not have the hash of its topic",
    Complaint.HALF_MESSAGE: "it is half of a transaction, which no queue lists",
    Complaint.MAGIC: "the record's magic is not that of V1, and brokers before 5.1 stop at it",
}
