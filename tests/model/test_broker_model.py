"""Queues, sends, receives, leases, delays, retention and time; see :mod:`model.machine`."""

from model.judge import profile
from model.machine import BrokerMachine

TestBroker = BrokerMachine.TestCase
TestBroker.settings = profile(300)
