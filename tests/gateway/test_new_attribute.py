"""A new attribute is one declaration: the wire, the faces and the tables of documents have the attribute.

The test runs in a process of its own, where the declarations have a further line for each kind of object.
"""

import subprocess
import sys
from pathlib import Path

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
line = '    colour_ms: Annotated[int, milliseconds(0, 60_000, label="Colour", help="Time of a colour")] = 5_000\\n'
text = path.read_text()
for after in ("class TopicAttributes(", "class SubscriptionAttributes(", "class ScheduleAttributes(", "QUEUE:"):
    end = text.index(f"\\n\\n{after}")
    text = text[:end] + line + text[end:]
texts[str(path)] = text

from cmqd_bench.documents.client_attributes import declared_attributes

texts[str(Path(find_spec("cmqd_client").origin).parent / "declared_attributes.py")] = declared_attributes()

from cmq_cli.app import run
from cmq_cli.commands.queues import queue
from cmq_cli.commands.topics import subscription, topic
from cmqd_bench.documents.attribute_tables import docs_table, segments_table, spec_table
from cmqd_client import declared_attributes as keywords
from cmqd_client.sync import connect
from cmqd_gateway.rest import openapi, replies, types
from cmqd_gateway.rest.attributes import filled, set_fields
from cmqd.testing import LocalBroker
from msgspec import json
from msgspec.structs import asdict

for name in ("QueueAttributes", "TopicAttributes", "TopicChanges", "SubscriptionAttributes", "ScheduleOptions"):
    assert "colour" in getattr(keywords, name).__annotations__
with LocalBroker() as broker, connect(broker.url) as client:
    info = client.create_queue_info("painted", colour=7)
    assert info.details["colour_ms"] == 7_000, "wire"
    assert info.colour == 7.0, "client"
    assert client.create_queue_info("plain").colour == 5.0, "default"
    assert filled(types.QueueAttributes, info.attributes()).colour == 7.0, "JSON"
    info = client.create_topic_info("painted", colour=7)
    assert (info.details["colour_ms"], info.colour) == (7_000, 7.0), "wire, client"
    assert filled(types.TopicAttributes, asdict(info)).colour == 7.0, "JSON"
    handle = client.topic("painted")
    assert handle.set_attributes(colour=8).colour == 8.0
    info = handle.subscribe_info("painted", queue="plain", colour=7)
    assert (info.details["colour_ms"], info.colour) == (7_000, 7.0), "wire, client"
    assert replies.SubscriptionInfo.of(info).colour == 7.0, "JSON"
    assert handle.subscription("painted").set(colour=8).colour == 8.0

for options in (queue.Attributes, topic.Attributes, topic.Changes, subscription.Attributes):
    assert options(colour=7.0).given() == {"colour": 7.0}, "cmq"
for fields in (queue._FIELDS, topic._FIELDS, subscription._FIELDS):
    assert "colour" in fields, "cmq"
for kind in (types.QueueAttributes, types.TopicAttributes, types.TopicChanges, types.SubscriptionChanges):
    assert set_fields(json.decode(b'{"colour": 7}', type=kind))["colour"] == 7.0, "JSON"
schemas = openapi.build()["components"]["schemas"]
for name in ("QueueAttributes", "TopicAttributes", "TopicChanges", "NewSubscription", "SubscriptionChanges"):
    field = schemas[name]["properties"]["colour"]
    # The form of the console is made from these; tests/console/test_queues.py draws a field of an unknown attribute.
    assert (field["title"], field["x-hint"], field["x-default"]) == ("Colour", "Time of a colour.", 5), name
assert schemas["SubscriptionInfo"]["properties"]["colour"]["description"].startswith("Time of a colour")
for noun in ("queue", "topic", "subscription"):
    assert "| `colour_ms` | 0-60,000 | 5,000 | Time of a colour |" in spec_table(noun)
    assert "| `colour_ms` | 5,000 |" in segments_table(noun)
    assert "| `colour` | 0 s to 1 min, default 5 s | Time of a colour. |" in docs_table(noun)
for command in ("queue create", "topic create", "topic set", "sub create"):
    run([*command.split(), "--help"])
"""


def test_a_declared_attribute_is_in_the_wire_and_in_every_face(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("--colour DURATION") == 4
