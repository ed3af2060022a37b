"""Every interleaving of brokers, servers and faults that hypothesis finds; see :mod:`support.engine_machine`."""

from hypothesis import HealthCheck, settings

from support.engine_machine import EngineMachine

TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(
    max_examples=200, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
