"""Queues, sends, receives, leases, delays, retention and time; see :mod:`model.machine`."""

from model.machine import BrokerMachine, profile

TestBroker = BrokerMachine.TestCase
TestBroker.settings = profile(400)
