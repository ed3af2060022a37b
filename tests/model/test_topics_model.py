"""Topics, subscriptions and deliveries, among everything that happens to queues; see :mod:`model.topics`."""

from model.judge import profile
from model.topics import TopicsMachine

TestTopics = TopicsMachine.TestCase
TestTopics.settings = profile(250)
