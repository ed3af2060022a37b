"""Operations by number. The number is the first element in the array of a message.

Numbers are grouped by theme, with unused numbers in every group. A number never changes its meaning. ``messages`` has
the Structs of the operations, tagged with the number; a test compares the two modules.
"""

from enum import IntEnum
from typing import Final


class Opcode(IntEnum):
    """Operation of a message. Handlers, client methods and logs use the name of the member."""

    SERVER_HELLO = 1
    CLIENT_HELLO = 2
    WELCOME = 3
    CANCEL = 4

    SEND_MESSAGES = 16
    RECEIVE_MESSAGES = 17
    DELETE_MESSAGES = 18
    CHANGE_VISIBILITY = 19
    RELEASE_MESSAGES = 20
    PEEK_MESSAGES = 21

    CREATE_QUEUE = 48
    ENSURE_QUEUE = 49
    LIST_QUEUES = 50
    GET_QUEUE_ATTRIBUTES = 51
    SET_QUEUE_ATTRIBUTES = 52
    DELETE_QUEUE = 53
    CLEAR_QUEUE = 54
    REWIND_QUEUE = 55
    LIST_DEAD_LETTER_SOURCES = 56
    START_REDRIVE = 57
    CANCEL_REDRIVE = 58
    GET_REDRIVE = 59

    CREATE_TOPIC = 80
    ENSURE_TOPIC = 81
    LIST_TOPICS = 82
    GET_TOPIC_ATTRIBUTES = 83
    SET_TOPIC_ATTRIBUTES = 84
    DELETE_TOPIC = 85
    PUBLISH_MESSAGES = 86
    SUBSCRIBE = 88
    ENSURE_SUBSCRIPTION = 89
    LIST_SUBSCRIPTIONS = 90
    GET_SUBSCRIPTION = 91
    SET_SUBSCRIPTION_ATTRIBUTES = 92
    UNSUBSCRIBE = 93
    RETRY_DELIVERIES = 94
    DROP_DELIVERIES = 95
    ROTATE_SECRET = 96

    SEND_HALF_MESSAGES = 112
    END_TRANSACTIONS = 113
    LIST_HALF_MESSAGES = 114
    REGISTER_CHECKER = 115
    UNREGISTER_CHECKER = 116

    CREATE_ACCOUNT = 128
    LIST_ACCOUNTS = 129
    CREATE_KEY = 130
    LIST_KEYS = 131
    SET_KEY_ENABLED = 132
    DELETE_KEY = 133
    DELETE_ACCOUNT = 134
    LIST_ALL_QUEUES = 135

    GET_SERVER_STATUS = 144
    SEAL_SEGMENTS = 145

    DONE = 192
    MESSAGES_SENT = 193
    MESSAGES_RECEIVED = 194
    HANDLES_DONE = 195
    MESSAGES_PEEKED = 196
    QUEUE_INFO = 197
    QUEUE_LIST = 198
    ACCOUNT_LIST = 199
    KEY_LIST = 200
    SERVER_STATUS = 201
    REWOUND = 202
    REDRIVE_STATUS = 203
    TRANSACTIONS_ENDED = 204
    HALF_MESSAGES = 205
    MESSAGES_PUBLISHED = 206
    TOPIC_INFO = 207
    TOPIC_LIST = 208
    SUBSCRIPTION_INFO = 209
    SUBSCRIPTION_LIST = 210
    DELIVERIES_DONE = 211
    SUBSCRIPTION_SECRET = 212
    SEGMENTS_SEALED = 213
    ALL_QUEUES = 215

    TRANSACTION_CHECK = 224

    ERROR = 255


THEMES: Final = {
    "connection": range(16),
    "messages": range(16, 32),
    "consumer streams": range(32, 48),
    "queues": range(48, 80),
    "topics": range(80, 112),
    "transactions": range(112, 128),
    "accounts": range(128, 144),
    "server": range(144, 160),
    "unassigned": range(160, 192),
    "replies and pushes": range(192, 255),
    "error": range(255, 256),
}
"""Numbers of the themes, used and unused. Rewind and dead letters belong to the queues."""
