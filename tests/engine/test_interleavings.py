"""Every interleaving of brokers, servers and faults that hypothesis finds; see :mod:`support.engine_machine`."""

from hypothesis import HealthCheck, settings

from support.engine_machine import EngineMachine

TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
