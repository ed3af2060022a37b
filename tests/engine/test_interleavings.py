"""Interleavings of brokers, servers and faults that hypothesis finds; see :mod:`support.engine_machine`."""

from model.judge import profile

from support.engine_machine import EngineMachine

TestEngine = EngineMachine.TestCase
TestEngine.settings = profile(400)
