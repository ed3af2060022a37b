"""Topics, subscriptions and deliveries, among all other events of queues; see :mod:`model.topics`."""

from model.judge import profile
from model.topics import TopicsMachine

TestTopics = TopicsMachine.TestCase
TestTopics.settings = profile(250)
