"""Arguments of handlers that FastStream fills from its context."""

from typing import Annotated

from faststream._internal.context import Context
from faststream.annotations import ContextRepo, Logger
from faststream.params import NoCast

from cmqd_client import Client as _Client
from cmqd_faststream.broker import CmqBroker as _Broker
from cmqd_faststream.message import CmqBatchMessage as _BatchMessage
from cmqd_faststream.message import CmqMessage as _Message

__all__ = ["Client", "CmqBatchMessage", "CmqBroker", "CmqMessage", "ContextRepo", "Logger", "NoCast"]

CmqMessage = Annotated[_Message, Context("message")]
CmqBatchMessage = Annotated[_BatchMessage, Context("message")]
CmqBroker = Annotated[_Broker, Context("broker")]
Client = Annotated[_Client, Context("broker.client")]
