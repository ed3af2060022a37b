"""Queues, sends, receives, leases, delays, retention and time; the same with rewinding.

See :mod:`model.machine` and :mod:`model.rewinding`.
"""

from model.judge import profile
from model.machine import BrokerMachine
from model.rewinding import RewindMachine

TestBroker = BrokerMachine.TestCase
TestBroker.settings = profile(300)
TestRewind = RewindMachine.TestCase
TestRewind.settings = profile(400)
