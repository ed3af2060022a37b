"""The logger of brokers, with the queue in each line."""

from functools import partial
from typing import Any

from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger

MESSAGE_ID_LENGTH = 20


class CmqLoggerStorage(DefaultLoggerStorage):
    """Makes the logger at the first use, when the longest name of a queue is known."""

    __slots__ = ("_queue_length",)

    def __init__(self) -> None:
        super().__init__()
        self._queue_length = 4

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Note the name of a queue."""
        self._queue_length = max(self._queue_length, len(params.get("queue", "")))

    def get_logger(self, *, context: Any) -> Any:
        """Return the logger."""
        logger = self._get_logger_ref()
        if logger is None:
            logger = get_broker_logger(
                name="cmq",
                default_context={"queue": ""},
                message_id_ln=MESSAGE_ID_LENGTH,
                fmt=(
                    f"%(asctime)s %(levelname)-8s - %(queue)-{self._queue_length}s | "
                    f"%(message_id)-{MESSAGE_ID_LENGTH}s - %(message)s"
                ),
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger


make_cmq_logger_state = partial(make_logger_state, default_storage_cls=CmqLoggerStorage)
