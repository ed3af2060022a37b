"""The table of operations: the only declaration of methods, paths and errors; the types are those of the functions.

``routes`` serves the rows, ``openapi`` describes the rows, and the tests run every row against a broker.
"""

from typing import Any

from cmqd_gateway.rest.functions import (
    audit,
    inspection,
    keys,
    messages,
    queues,
    schedules,
    segments,
    topics,
    transactions,
)
from cmqd_gateway.rest.operation import Operation

BASE = "/api/v1"

_QUEUE = "/queues/{queue}"
_TOPIC = "/topics/{topic}"
_SUBSCRIPTION = "/topics/{topic}/subscriptions/{subscription}"
_STORED = ("message_too_large", "backlog_full", "disk_nearly_full")
"""Errors of an operation that stores messages."""

OPERATIONS: tuple[Operation[Any, Any, Any], ...] = (
    Operation("GET /queues", "queues", "List queues", queues.list_queues),
    Operation(
        "GET /queue-summaries", "queues", "List queues with their figures, in any order", queues.list_queue_summaries
    ),
    Operation(
        f"POST {_QUEUE}",
        "queues",
        "Create a queue",
        queues.create_queue,
        problems=("queue_exists", "too_many_queues"),
        statuses=(201,),
    ),
    Operation(
        f"PUT {_QUEUE}",
        "queues",
        "Create a queue, or accept an equal queue",
        queues.ensure_queue,
        problems=("queue_differs", "too_many_queues"),
        statuses=(200, 201),
    ),
    Operation(f"GET {_QUEUE}", "queues", "Attributes and counts of a queue", queues.get_queue),
    Operation(f"PATCH {_QUEUE}", "queues", "Change attributes of a queue", queues.set_queue),
    Operation(
        f"DELETE {_QUEUE}", "queues", "Delete a queue", queues.delete_queue, problems=("dead_letter_queue_in_use",)
    ),
    Operation(f"POST {_QUEUE}/clear", "queues", "Drop all messages of a queue", queues.clear_queue),
    Operation(
        f"POST {_QUEUE}/rewind",
        "queues",
        "Bring deleted messages back",
        queues.rewind_queue,
        problems=("time_not_rewindable",),
    ),
    Operation(
        f"GET {_QUEUE}/rewind",
        "queues",
        "Count the messages that a rewind would bring back",
        queues.preview_rewind,
        problems=("time_not_rewindable",),
    ),
    Operation(
        f"POST {_QUEUE}/messages",
        "messages",
        "Send a message",
        messages.send_message,
        problems=_STORED,
        statuses=(201,),
        idempotency=True,
    ),
    Operation(
        f"POST {_QUEUE}/messages/batch",
        "messages",
        "Send messages in one step",
        messages.send_messages,
        problems=(*_STORED, "batch_too_large", "out_of_order"),
        statuses=(201,),
        idempotency=True,
    ),
    Operation(f"GET {_QUEUE}/messages", "messages", "Look at messages", messages.peek_messages),
    Operation(
        "GET /messages",
        "messages",
        "Find messages by dedup id or header",
        messages.find_messages,
        problems=("queue_not_found",),
    ),
    Operation(
        "GET /messages/{message}/history",
        "messages",
        "The life of a message",
        messages.get_message_history,
        problems=("message_not_found",),
    ),
    Operation(
        f"POST {_QUEUE}/receive",
        "messages",
        "Receive messages",
        messages.receive_messages,
        problems=("queue_deleted", "too_many_in_flight"),
        waits=messages.may_wait,
    ),
    Operation(
        f"POST {_QUEUE}/delete",
        "messages",
        "Delete a received message",
        messages.delete_message,
        problems=("receipt_handle_invalid",),
    ),
    Operation(f"POST {_QUEUE}/delete/batch", "messages", "Delete received messages", messages.delete_messages),
    Operation(
        f"POST {_QUEUE}/visibility",
        "messages",
        "Hide a received message longer, or shorter",
        messages.change_visibility,
        problems=("receipt_handle_invalid",),
    ),
    Operation(
        f"POST {_QUEUE}/visibility/batch",
        "messages",
        "Hide received messages longer, or shorter",
        messages.change_visibilities,
    ),
    Operation(
        f"POST {_QUEUE}/release",
        "messages",
        "Return a received message at once",
        messages.release_message,
        problems=("receipt_handle_invalid",),
    ),
    Operation(
        f"POST {_QUEUE}/release/batch", "messages", "Return received messages at once", messages.release_messages
    ),
    Operation(
        f"POST {_QUEUE}/reject",
        "dead letters",
        "Reject a received message",
        messages.reject_message,
        old_path=f"{_QUEUE}/dead-letter",
        problems=(
            "receipt_handle_invalid",
            "no_dead_letter_queue",
            "dead_letters_not_taken",
            "backlog_full",
            "message_too_large",
        ),
    ),
    Operation(
        f"POST {_QUEUE}/reject/batch",
        "dead letters",
        "Reject received messages",
        messages.reject_messages,
        old_path=f"{_QUEUE}/dead-letter/batch",
        problems=("no_dead_letter_queue",),
    ),
    Operation(
        f"GET {_QUEUE}/dead-letter-sources",
        "dead letters",
        "Queues that send their dead letters here",
        queues.list_dead_letter_sources,
    ),
    Operation(
        f"POST {_QUEUE}/redrive",
        "dead letters",
        "Move dead letters back",
        queues.start_redrive,
        problems=("redrive_running",),
        statuses=(202,),
    ),
    Operation(
        f"GET {_QUEUE}/redrive",
        "dead letters",
        "Progress of a redrive",
        queues.get_redrive,
        problems=("redrive_not_found",),
    ),
    Operation(
        f"DELETE {_QUEUE}/redrive",
        "dead letters",
        "End a redrive",
        queues.cancel_redrive,
        problems=("redrive_not_found",),
    ),
    Operation(
        f"POST {_QUEUE}/half-messages",
        "transactions",
        "Send a half message",
        transactions.send_half_message,
        problems=("not_transactional", *_STORED),
        statuses=(201,),
        idempotency=True,
    ),
    Operation(
        f"POST {_QUEUE}/half-messages/batch",
        "transactions",
        "Send half messages in one step",
        transactions.send_half_messages,
        problems=("not_transactional", *_STORED, "batch_too_large"),
        statuses=(201,),
        idempotency=True,
    ),
    Operation(
        f"GET {_QUEUE}/half-messages",
        "transactions",
        "List undecided half messages",
        transactions.list_half_messages,
        problems=("not_transactional",),
    ),
    Operation(
        f"POST {_QUEUE}/half-messages/decide",
        "transactions",
        "Commit a half message, or roll it back",
        transactions.decide_half_message,
        problems=("not_transactional", "transaction_not_found", "already_committed", "already_rolled_back"),
    ),
    Operation(
        f"POST {_QUEUE}/half-messages/decide/batch",
        "transactions",
        "Commit half messages, or roll them back",
        transactions.decide_half_messages,
        problems=("not_transactional",),
    ),
    Operation("GET /topics", "topics", "List topics", topics.list_topics),
    Operation(
        f"POST {_TOPIC}",
        "topics",
        "Create a topic",
        topics.create_topic,
        problems=("topic_exists", "too_many_topics"),
        statuses=(201,),
    ),
    Operation(
        f"PUT {_TOPIC}",
        "topics",
        "Create a topic, or accept an equal topic",
        topics.ensure_topic,
        problems=("topic_differs", "too_many_topics"),
        statuses=(200, 201),
    ),
    Operation(f"GET {_TOPIC}", "topics", "Attributes and counts of a topic", topics.get_topic),
    Operation(f"PATCH {_TOPIC}", "topics", "Change a topic", topics.set_topic),
    Operation(f"DELETE {_TOPIC}", "topics", "Delete a topic", topics.delete_topic, problems=("topic_in_use",)),
    Operation(
        f"POST {_TOPIC}/messages",
        "topics",
        "Publish a message",
        topics.publish_message,
        problems=("message_too_large", "disk_nearly_full"),
        statuses=(201,),
        idempotency=True,
    ),
    Operation(
        f"POST {_TOPIC}/messages/batch",
        "topics",
        "Publish messages in one step",
        topics.publish_messages,
        problems=("message_too_large", "disk_nearly_full", "batch_too_large", "out_of_order"),
        statuses=(201,),
        idempotency=True,
    ),
    Operation(f"GET {_TOPIC}/subscriptions", "subscriptions", "List subscriptions", topics.list_subscriptions),
    Operation(
        f"GET {_QUEUE}/subscriptions",
        "subscriptions",
        "List the subscriptions that deliver to a queue",
        topics.list_queue_subscriptions,
    ),
    Operation(
        f"POST {_SUBSCRIPTION}",
        "subscriptions",
        "Subscribe a queue or a URL",
        topics.create_subscription,
        problems=("queue_not_found", "subscription_exists", "too_many_subscriptions", "push_unavailable"),
        statuses=(201,),
    ),
    Operation(
        f"PUT {_SUBSCRIPTION}",
        "subscriptions",
        "Subscribe, or accept an equal subscription",
        topics.ensure_subscription,
        problems=("queue_not_found", "subscription_differs", "too_many_subscriptions", "push_unavailable"),
        statuses=(200, 201),
    ),
    Operation(
        f"GET {_SUBSCRIPTION}", "subscriptions", "Attributes and counts of a subscription", topics.get_subscription
    ),
    Operation(
        f"PATCH {_SUBSCRIPTION}", "subscriptions", "Change, pause or resume a subscription", topics.set_subscription
    ),
    Operation(f"DELETE {_SUBSCRIPTION}", "subscriptions", "End a subscription", topics.delete_subscription),
    Operation(f"POST {_SUBSCRIPTION}/retry", "subscriptions", "Retry failed deliveries", topics.retry_deliveries),
    Operation(f"POST {_SUBSCRIPTION}/drop", "subscriptions", "Drop waiting deliveries", topics.drop_deliveries),
    Operation(
        f"GET {_SUBSCRIPTION}/messages",
        "subscriptions",
        "Look at the messages that wait for a subscription",
        topics.peek_deliveries,
    ),
    Operation(
        f"POST {_SUBSCRIPTION}/messages/{{message}}/retry",
        "subscriptions",
        "Retry a message of a subscription",
        topics.retry_delivery,
        problems=("message_not_waiting",),
    ),
    Operation(
        f"POST {_SUBSCRIPTION}/messages/{{message}}/drop",
        "subscriptions",
        "Drop a message of a subscription",
        topics.drop_delivery,
        problems=("message_not_waiting",),
    ),
    Operation(
        f"GET {_TOPIC}/messages/{{message}}/deliveries",
        "topics",
        "The subscriptions that have had a message",
        topics.get_message_deliveries,
        problems=("message_not_published",),
    ),
    Operation(
        f"GET {_TOPIC}/match", "topics", "The subscriptions that would get a message", topics.match_subscriptions
    ),
    Operation(
        f"POST {_SUBSCRIPTION}/rotate-secret", "subscriptions", "Make a new secret for signatures", topics.rotate_secret
    ),
    Operation("GET /schedules", "schedules", "List schedules", schedules.list_schedules),
    Operation(
        "POST /schedules/{schedule}",
        "schedules",
        "Create a schedule",
        schedules.create_schedule,
        problems=("queue_not_found", "schedule_exists", "too_many_schedules", "message_too_large"),
        statuses=(201,),
    ),
    Operation(
        "PUT /schedules/{schedule}",
        "schedules",
        "Create a schedule, or accept an equal schedule",
        schedules.ensure_schedule,
        problems=("queue_not_found", "schedule_differs", "too_many_schedules", "message_too_large"),
        statuses=(200, 201),
    ),
    Operation(
        "GET /schedules/{schedule}", "schedules", "A schedule with its message and counts", schedules.get_schedule
    ),
    Operation(
        "PATCH /schedules/{schedule}",
        "schedules",
        "Change, pause or resume a schedule",
        schedules.set_schedule,
        problems=("queue_not_found", "message_too_large"),
    ),
    Operation("DELETE /schedules/{schedule}", "schedules", "Delete a schedule", schedules.delete_schedule),
    Operation("GET /key", "keys", "Your own key, with its permissions", keys.get_own_key),
    Operation("GET /keys", "keys", "List keys", keys.list_keys, problems=("account_not_found",)),
    Operation("POST /keys", "keys", "Create a key", keys.create_key, problems=("account_not_found",), statuses=(201,)),
    Operation(
        "PUT /keys/{secret_id}", "keys", "Import a key", keys.import_key, problems=("account_not_found", "key_exists")
    ),
    Operation(
        "PUT /keys/{secret_id}/roles",
        "keys",
        "Change the permissions of a key",
        keys.set_key_roles,
        problems=("account_not_found", "last_key"),
    ),
    Operation(
        "PATCH /keys/{secret_id}",
        "keys",
        "Enable or disable a key",
        keys.set_key,
        problems=("account_not_found", "last_key"),
    ),
    Operation(
        "DELETE /keys/{secret_id}", "keys", "Delete a key", keys.delete_key, problems=("account_not_found", "last_key")
    ),
    Operation("GET /accounts", "accounts", "List accounts", keys.list_accounts),
    Operation(
        "POST /accounts/{account}",
        "accounts",
        "Create an account",
        keys.create_account,
        problems=("account_exists",),
        statuses=(201,),
    ),
    Operation(
        "DELETE /accounts/{account}",
        "accounts",
        "Delete an account",
        keys.delete_account,
        problems=("account_not_empty",),
    ),
    Operation("GET /all-queues", "accounts", "List the queues of all accounts", keys.list_all_queues),
    Operation("GET /audit", "server", "Administrative operations", audit.list_audit_entries),
    Operation("GET /segments", "server", "Segments of the log, and what keeps each", segments.list_segments),
    Operation("GET /connections", "server", "List connections", inspection.list_connections),
    Operation(
        "GET /waiting-receives", "server", "List the receives that wait for messages", inspection.list_waiting_receives
    ),
    Operation("GET /consumers", "server", "List the clients that receive from queues", inspection.list_consumers),
    Operation(
        "GET /cmq-tcp-clients", "server", "List the clients of CMQ's TCP protocol", inspection.list_cmq_tcp_clients
    ),
    Operation("GET /settings", "server", "The settings of the broker that are in force", inspection.get_settings),
)
"""Every operation, in the order of the documentation."""
