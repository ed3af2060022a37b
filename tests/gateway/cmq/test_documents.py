"""The actions of CMQ's API 2.0 are complete, and every action has a test."""

from cmqd_bench.documents import cmq_tables
from cmqd_gateway.cmq.api2.actions import ACTIONS, TABLE
from support.cases import each_case

OF_CMQ = (
    *("CreateQueue", "ListQueue", "GetQueueAttributes", "SetQueueAttributes", "DeleteQueue", "RewindQueue"),
    *("SendMessage", "BatchSendMessage", "ReceiveMessage", "BatchReceiveMessage", "DeleteMessage"),
    *("BatchDeleteMessage", "CreateTopic", "SetTopicAttributes", "GetTopicAttributes", "ListTopic", "DeleteTopic"),
    *("Subscribe", "Unsubscribe", "SetSubscriptionAttributes", "GetSubscriptionAttributes"),
    *("ListSubscriptionByTopic", "ClearSubscriptionFilterTags", "PublishMessage", "BatchPublishMessage"),
    *("QueryQueueRoute", "QueryTopicRoute"),
)
"""The actions of API 2.0 in CMQ's documents and SDKs."""


@each_case("name", OF_CMQ)
def test_each_action_of_cmq_is_served(name: str) -> None:
    assert TABLE[name.lower()].name == name


@each_case("name", [action.name for action in ACTIONS])
def test_each_action_has_tests_of_its_success_and_of_its_errors(name: str) -> None:
    tests = cmq_tables.tests_of(name, cmq_tables.strings_of_tests())

    assert "`every_error`" in tests
    assert len(tests) > 1 or name.startswith("Query")  # the two that always fail


def test_no_two_actions_have_a_name() -> None:
    names = {action.name for action in ACTIONS}

    assert len(TABLE) == len(ACTIONS) == len(names)
