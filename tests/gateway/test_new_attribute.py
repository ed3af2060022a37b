"""A new attribute of a queue is one declaration: the wire, the faces and the tables of documents have the attribute.

The test runs in a process of its own, where the module of declarations has a further line.
"""

import subprocess
import sys
from pathlib import Path

from cmqd_client.subscription import SubscriptionAttributes
from cmqd_client.topic import TopicAttributes
from cmqd_types.attributes import SUBSCRIPTION, TOPIC

PROGRAM = """
import linecache
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path

texts = {}
# Docstrings of fields are read from the source, which Python 3.13 finds by line.
getlines = linecache.getlines
linecache.getlines = lambda name, lines=None: (
    texts[name].splitlines(keepends=True) if name in texts else getlines(name, lines)
)
get_code = SourceFileLoader.get_code
SourceFileLoader.get_code = lambda loader, name: (
    compile(texts[loader.path], loader.path, "exec") if loader.path in texts else get_code(loader, name)
)

path = Path(find_spec("cmqd_types").origin).parent / "attributes.py"
text = path.read_text()
end = text.index("\\n\\nclass TopicAttributes(")
line = '    colour_ms: Annotated[int, milliseconds(0, 60_000, label="Colour", help="Time of a colour")] = 5_000\\n'
texts[str(path)] = text[:end] + line + text[end:]

from cmqd_bench.documents.client_attributes import queue_attributes

texts[str(Path(find_spec("cmqd_client").origin).parent / "queue_attributes.py")] = queue_attributes()

from cmq_cli.commands.queue import Attributes
from cmqd_bench.documents.attribute_tables import docs_table, segments_table, spec_table
from cmqd_client.attributes import QueueAttributes
from cmqd_client.sync import connect
from cmqd_gateway.rest import openapi
from cmqd_gateway.rest.attributes import filled
from cmqd_gateway.rest.types import QueueAttributes as InJson
from cmqd.testing import LocalBroker

assert "colour" in QueueAttributes.__annotations__
with LocalBroker() as broker, connect(broker.url) as client:
    info = client.create_queue_info("painted", colour=7)
    assert info.details["colour_ms"] == 7_000, "wire"
    assert info.colour == 7.0, "client"
    assert client.create_queue_info("plain").colour == 5.0, "default"
    assert filled(InJson, info.attributes()).colour == 7.0, "JSON"
assert Attributes(colour=7.0).given() == {"colour": 7.0}, "cmq"
field = openapi.build()["components"]["schemas"]["QueueAttributes"]["properties"]["colour"]
# The form of the console is made from these; tests/console/test_queues.py draws a field of an unknown attribute.
assert (field["title"], field["x-hint"], field["x-default"]) == ("Colour", "Time of a colour.", 5), "OpenAPI, console"
assert "| `colour_ms` | 0-60,000 | 5,000 | Time of a colour |" in spec_table("queue")
assert "| `colour_ms` | 5,000 |" in segments_table("queue")
assert "| `colour` | 0 s to 1 min, default 5 s | Time of a colour. |" in docs_table("queue")
from cmq_cli.app import run
run(["queue", "create", "--help"])
"""


def test_a_declared_attribute_is_in_the_wire_and_in_every_face(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 0, done.stderr
    assert "--colour DURATION" in done.stdout


def test_keywords_of_topics_and_subscriptions_are_the_declared_attributes() -> None:
    changeable = {name for name, each in SUBSCRIPTION.items() if not each.is_fixed and name != "paused"}

    assert set(TopicAttributes.__annotations__) == set(TOPIC)
    assert set(SubscriptionAttributes.__annotations__) == changeable
