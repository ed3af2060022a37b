"""Metrics of a standby, in the text format of Prometheus. The names that a leader has too mean the same."""

from typing import NamedTuple

import cmqd
from cmqd.log.values import EngineStatus


class StandbyFigures(NamedTuple):
    """Figures of a standby at a moment."""

    status: EngineStatus
    now_s: float
    """By the clock of proofs."""
    uptime_s: float
    last_lsn: int
    """Last row that is applied."""
    connections_refused: int
    loop_rss_bytes: int
    storage_rss_bytes: int


def standby_metrics(figures: StandbyFigures) -> str:
    """Return the figures as text."""
    status = figures.status
    lines = [
        *_family("cmqd_broker_info", "gauge", "Version of the broker.", ((f'version="{cmqd.__version__}"', 1),)),
        *_family("cmqd_leads", "gauge", "1 of the broker that leads its log, 0 of a standby.", (("", 0),)),
        *_family("cmqd_uptime_seconds", "gauge", "Time since the start of the broker.", (("", figures.uptime_s),)),
        *_family("cmqd_standby_last_row", "gauge", "Last row that this standby has.", (("", figures.last_lsn),)),
        *_family(
            *("cmqd_engine_waiting_seconds", "gauge", "Time for which the engine is waited for; 0 = it is not."),
            (("", status.waiting_ms / 1000),),
        ),
        *_family(
            *("cmqd_engine_waits_seconds_total", "counter", "Time in which the engine was waited for."),
            (("", status.waiting_ms_total / 1000),),
        ),
        *_family(
            *("cmqd_standby_connections_refused_total", "counter", "Connections that were sent to the leader."),
            (("", figures.connections_refused),),
        ),
        *_family(
            *("cmqd_process_resident_memory_bytes", "gauge", "Memory of the broker's processes."),
            (('process="loop"', figures.loop_rss_bytes), ('process="storage"', figures.storage_rss_bytes)),
        ),
    ]
    if status.copied_s:
        lines += _family(
            *(
                "cmqd_standby_look_age_seconds",
                "gauge",
                "Age of the last look whose rows are all copied.",
            ),
            (("", max(0.0, figures.now_s - status.copied_s)),),
        )
    return "\n".join(lines)


def _family(name: str, kind: str, text: str, samples: tuple[tuple[str, float], ...]) -> list[str]:
    values = [f"{name}{f'{{{labels}}}' if labels else ''} {float(value)!r}" for labels, value in samples]
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *values]
