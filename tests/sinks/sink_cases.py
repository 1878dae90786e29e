"""Rules and sinks of a whole broker, with the servers that users have. Each case starts a broker with a configuration of its own.

A case that wants an outage stops at a `yield` for Kafka and MongoDB to be killed, and at a second one for them to be started again: all
of these share one outage. Prints `ok sinks: CASE` or `FAIL sinks: CASE: why` for each.
Usage: sink_cases.py --broker COMMAND --directory DIRECTORY [--kafka SCRIPT PORT | --mock-kafka PROGRAM] [--mongo SCRIPT PORT] [CASE-PART...]
"""

import argparse
import inspect
import json
import os.path
import re
import shutil
import subprocess
import sys
import time
import traceback
import uuid

from mqtt import PUBACK, PUBLISH, PUBREC, Client
from servers import Broker, MockKafka, RealKafka, Web, free_port, until

CASES = []


def case(sentence, *needs):
    """Marks a case: what it shows, and what it needs: kafka, real_kafka, mongo."""

    def mark(function):
        CASES.append((sentence, needs, function))
        return function

    return mark


def check(found, expected, what="found"):
    if found != expected:
        raise AssertionError(f"{what} {repr(found)[:300]}, expected {repr(expected)[:300]}")


class World:
    """What the cases are given."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.kafka = None
        self.has = set()
        if arguments.kafka:
            self.kafka = RealKafka(arguments.kafka[0], int(arguments.kafka[1]))
            self.has |= {"kafka", "real_kafka"}
        elif arguments.mock_kafka:
            self.kafka = MockKafka(arguments.mock_kafka)
            self.has |= {"kafka"}
        if arguments.mongo:
            self.mongo_script, self.mongo_port = arguments.mongo
            self.mongo_uri = f"mongodb://127.0.0.1:{self.mongo_port}"
            self.has |= {"mongo"}

    def broker(self, config, settings="", files=()):
        """A broker with these tables, with more settings of its own than the cases have in common, and with files in its directory."""
        directory = os.path.join(self.arguments.directory, uuid.uuid4().hex[:8])
        os.makedirs(directory)
        for name, text in dict(files).items():
            with open(os.path.join(directory, name), "w") as file:
                file.write(text)
        return Broker(self.arguments.broker, directory, settings, config)

    def kafka_sink(self, more=""):
        return f'[[kafka]]\nname = "kafka"\nbrokers = "{self.kafka.brokers}"\n{more}\n'

    def mongo_sink(self, database, more=""):
        return f'[[mongodb]]\nname = "mongodb"\nuri = "{self.mongo_uri}"\ndatabase = "{database}"\n{more}\n'

    def down(self):
        if self.kafka:
            self.kafka.down()
        if "mongo" in self.has:
            self.mongo("kill")

    def up(self):
        if self.kafka:
            self.kafka.up()
        if "mongo" in self.has:
            self.mongo("start")

    def mongo(self, command):
        subprocess.run([self.mongo_script, command, "--port", self.mongo_port], check=True, stdout=subprocess.DEVNULL)

    def database(self):
        import pymongo

        # Names of its own, so that what an interrupted run left does not matter.
        name = fresh("cases")
        return name, pymongo.MongoClient(self.mongo_uri, serverSelectionTimeoutMS=20000)[name]

    def records(self, topic, count, seconds=60):
        """The records of a topic, at least so many, in the order of their partitions."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self.kafka.brokers, "group.id": fresh("reader"), "enable.auto.commit": False})
        try:
            partitions = until(lambda: list(consumer.list_topics(topic, 10).topics[topic].partitions), 20, f"topic {topic}")
            consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
            found, deadline, quiet_since = [], time.monotonic() + seconds, None
            # A little longer than needed, so that one too many is seen.
            while time.monotonic() < deadline and (quiet_since is None or time.monotonic() - quiet_since < 0.5):
                message = consumer.poll(0.1)
                if message is not None and not message.error():
                    found.append(message)
                if len(found) >= count:
                    quiet_since = quiet_since or time.monotonic()
            return sorted(found, key=lambda message: (message.partition(), message.offset()))
        finally:
            consumer.close()

    def values(self, topic, count, seconds=60):
        return [message.value().decode() for message in self.records(topic, count, seconds)]

    def produce(self, topic, key, value, headers=()):
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.kafka.brokers})
        producer.produce(topic, key=key, value=value, headers=list(headers))
        check(producer.flush(20), 0, "records without an answer")


def fresh(name):
    return f"{name}-{uuid.uuid4().hex[:8]}"


def rule(sql, *actions, name="rule"):
    text = f"[[rule]]\nname = \"{name}\"\nsql = '''{sql}'''\n"
    for action in actions:
        text += "[[rule.action]]\n" + "".join(f"{key} = {toml(value)}\n" for key, value in action.items())
    return text


def toml(value):
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else f"'''{value}'''"


def distinct(values):
    return list(dict.fromkeys(values))


def first_in_order(values):
    """What a reader sees who skips what it has seen: in ascending order."""
    seen = distinct(values)
    return seen == sorted(seen)


def sys_value(broker, topic):
    with Client(broker.port, fresh("watch")) as client:
        client.subscribe(f"$SYS/broker/{topic}")
        return client.message(seconds=5)[1].decode()


# Kafka


@case("a rule's rows are records with a key, the user properties as headers, in order per client", "kafka")
def kafka_records(world):
    rows, raw = fresh("rows"), fresh("raw")
    broker = world.broker(
        world.kafka_sink()
        + rule(
            'SELECT payload.speed AS speed, clientid, topic FROM "vehicle/+/telemetry" WHERE payload.speed > 100',
            {"sink": "kafka", "topic": rows},
            name="rows",
        )
        + rule(
            'SELECT * FROM "raw/#"',
            {"sink": "kafka", "topic": raw, "key": "${topic}", "payload": "${payload}", "headers": "none"},
            name="raw",
        )
    )
    everything = bytes(range(256))
    with Client(broker.port, "car-1", version=5) as one, Client(broker.port, "car-2") as two:
        for speed in range(1, 201):
            one.publish("vehicle/1/telemetry", json.dumps({"speed": speed}), 0, [("vin", "A1"), ("vin", "A2"), ("lot", "ü")])
            two.publish("vehicle/2/telemetry", json.dumps({"speed": speed}), 0)
        one.deliver("raw/x", everything, 1, user_properties=[("vin", "A1")])
        two.deliver("raw/x", b"", 1)
    records = world.records(rows, 200)
    check(len(records), 200, "records")
    for car, headers in (("car-1", [("vin", b"A1"), ("vin", b"A2"), ("lot", "ü".encode())]), ("car-2", None)):
        own = [record for record in records if record.key() == car.encode()]
        expected = [{"speed": speed, "clientid": car, "topic": f"vehicle/{car[4:]}/telemetry"} for speed in range(101, 201)]
        check([json.loads(record.value()) for record in own], expected, f"rows of {car}")
        check({record.partition() for record in own}, {own[0].partition()}, "partitions")
        check(own[0].headers(), headers, "headers")
    records = world.records(raw, 2)
    check([(record.key(), record.value(), record.headers()) for record in records], [(b"raw/x", everything, None), (b"raw/x", b"", None)])


@case("topics and keys come from templates, and an empty key is none", "kafka")
def kafka_templates(world):
    topic = fresh("by")
    broker = world.broker(
        world.kafka_sink()
        + rule(
            'SELECT payload.kind AS kind, payload.key AS k FROM "t"',
            {"sink": "kafka", "topic": topic + "-${kind}", "key": "${k}", "payload": "<${payload.n}>", "ack": "delivered"},
        )
    )
    with Client(broker.port, "c") as client:
        for n, (kind, key) in enumerate([("a", "k1"), ("b", "k2"), ("a", None)]):
            client.deliver("t", json.dumps({"kind": kind, "key": key, "n": n}))
    found = {(record.key(), record.value()) for record in world.records(topic + "-a", 2)}
    check(found, {(b"k1", b"<0>"), (None, b"<2>")})
    check([(record.key(), record.value()) for record in world.records(topic + "-b", 1)], [(b"k2", b"<1>")])


@case("a vehicle to Kafka: mosquitto_pub publishes, kcat reads", "real_kafka")
def first_minute(world):
    for program in ("mosquitto_pub", "kcat"):
        check(bool(shutil.which(program)), True, f"{program} is installed:")
    topic = fresh("telemetry")
    broker = world.broker(
        world.kafka_sink() + rule('SELECT payload.speed AS speed, clientid FROM "vehicle/+/telemetry"', {"sink": "kafka", "topic": topic})
    )
    publish = ["mosquitto_pub", "-p", str(broker.port), "-i", "car-7", "-t", "vehicle/7/telemetry", "-m", '{"speed": 131}', "-q", "1"]
    subprocess.run(publish, check=True, timeout=20)
    read = ["kcat", "-q", "-C", "-b", world.kafka.brokers, "-t", topic, "-c", "1", "-o", "beginning", "-f", "%k %s\n"]

    def kcat():
        return subprocess.run(read, capture_output=True, text=True, timeout=20).stdout

    check(until(kcat, 20, "the record"), 'car-7 {"speed":131,"clientid":"car-7"}\n')


@case("a message too large for Kafka goes to the dead-letter file, is acknowledged, and blocks nothing", "kafka")
def dead_letter(world):
    topic = fresh("large")
    broker = world.broker(
        world.kafka_sink('dead_letter_path = "dead.jsonl"')
        + rule('SELECT * FROM "t"', {"sink": "kafka", "topic": topic, "payload": "${payload}", "ack": "delivered"})
    )
    with Client(broker.port, "c") as client:
        ids = [client.publish("t", payload, 1) for payload in (b"before", b"x" * 1_040_000, b"after")]
        for packet_id in ids:
            client.acknowledged(packet_id, seconds=30)
    check(world.values(topic, 2), ["before", "after"])
    dead = until(lambda: broker.lines("dead.jsonl"), 5, "the dead letter")
    check(len(dead), 1, "dead letters")
    check("rule/1" in json.dumps({**dead[0], "payload": ""})[:2000], True, f"its action is named in {str(dead[0])[:300]}:")
    check(until(lambda: sys_value(broker, "sinks/kafka/dead_letters") != "0", 15, "the count"), True)


@case("a message that the topic refuses goes to the dead-letter file and blocks nothing", "real_kafka")
def dead_letter_of_the_server(world):
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = fresh("small")
    admin = AdminClient({"bootstrap.servers": world.kafka.brokers})
    for future in admin.create_topics([NewTopic(topic, 1, 1, config={"max.message.bytes": "5000"})]).values():
        future.result(20)
    broker = world.broker(
        world.kafka_sink('dead_letter_path = "dead.jsonl"\ncompression = "none"')
        + rule('SELECT * FROM "t"', {"sink": "kafka", "topic": topic, "payload": "${payload}", "ack": "delivered"})
    )
    with Client(broker.port, "c") as client:
        for payload in (b"before", b"x" * 20_000, b"after"):
            client.deliver("t", payload)
    check(world.values(topic, 2), ["before", "after"])
    check(len(until(lambda: broker.lines("dead.jsonl"), 5, "the dead letter")), 1, "dead letters")


@case("TLS with SASL (PLAIN, SCRAM) or a certificate, for sinks and sources; who is refused is told why, and no password is in the log", "real_kafka")
def secured(world):
    by_sasl, by_certificate = (world.kafka.settings(heading) for heading in ("with TLS and SASL", "with TLS and a certificate"))
    ways = {mechanism: by_sasl.replace("scram_sha_512", mechanism) for mechanism in ("plain", "scram_sha_256", "scram_sha_512")}
    ways["certificate"] = by_certificate
    check(all("tls = true" in settings for settings in ways.values()), True, "settings that the script prints:")
    topic, commands = fresh("secured"), fresh("commands")
    world.produce(commands, "to/car", "stop")
    stranger = by_sasl.replace(re.search('sasl_password_path = "(.*)"', by_sasl)[1], "wrong-password")
    config = f'[[kafka]]\nname = "stranger"\ndead_letter_path = "dead.jsonl"\n{stranger}'
    config += rule('SELECT * FROM "stranger"', {"sink": "stranger", "topic": topic}, name="stranger")
    for way, settings in ways.items():
        config += f'[[kafka]]\nname = "{way}"\n{settings}'
        config += rule(f'SELECT * FROM "{way}"', {"sink": way, "topic": topic, "payload": "${payload}", "ack": "delivered"}, name=way)
    config += f'[[kafka_source]]\nname = "commands"\ntopics = "{commands}"\ngroup = "{fresh("group")}"\nfrom_beginning = true\n{by_sasl}'
    broker = world.broker(config, files={"wrong-password": "not-the-one"})
    with Client(broker.port, "car") as client:
        client.subscribe("to/#")
        check(client.message(seconds=30)[:2], ("to/car", b"stop"))
        client.deliver("stranger", "?")
        for way in ways:
            client.deliver(way, way)
    check(sorted(world.values(topic, len(ways))), sorted(ways))
    reason = until(lambda: sys_value(broker, "sinks/stranger/last_error"), 15, "why the stranger is refused")
    check("uthentication" in reason, True, f"the reason is {reason!r}:")
    check(sys_value(broker, "sinks/stranger/connected"), "0", "connected")
    with open(broker.path("log")) as log:
        check("not-the-one" in log.read(), False, "the password is in the log:")


@case("with ack = delivered an outage of Kafka holds PUBACK and PUBREC, answers pings, and loses nothing", "kafka")
def delivered(world):
    topic = fresh("delivered")
    broker = world.broker(
        world.kafka_sink() + rule('SELECT * FROM "t"', {"sink": "kafka", "topic": topic, "payload": "${payload}", "ack": "delivered"})
    )
    client = Client(broker.port, "c", keep_alive_s=600)
    client.deliver("t", "000 before", 1)
    client.deliver("t", "001 before", 2)
    yield "down"
    ids = [(client.publish("t", f"{number:03} during", qos), qos) for number, qos in enumerate([1, 2, 1, 1], start=2)]
    client.silent(PUBACK, 3)
    client.silent(PUBREC, 0.1)
    client.ping()
    # One with a short keep-alive stays connected as long as it pings, although its publish waits.
    with Client(broker.port, "hasty", keep_alive_s=1) as hasty:
        hasty.publish("t", "999 hasty", 1)
        for _ in range(8):
            time.sleep(0.5)
            hasty.ping()
        hasty.silent(PUBACK, 0.1)
    yield "up"
    for packet_id, qos in ids:
        client.acknowledged(packet_id, qos, 90)
    client.deliver("t", "006 after", 1)
    client.close()
    values = distinct([value for value in world.values(topic, 7) if "hasty" not in value])
    check(values, ["000 before", "001 before"] + [f"{number:03} during" for number in range(2, 6)] + ["006 after"])


@case("the status says that Kafka is away, why, and that it is back", "kafka")
def status(world):
    topic = fresh("status")
    broker = world.broker(
        world.kafka_sink() + rule('SELECT * FROM "t"', {"sink": "kafka", "topic": topic, "payload": "${payload}"}, name="away")
    )
    with Client(broker.port, "c") as client:
        client.deliver("t", "1")
        until(lambda: sys_value(broker, "sinks/kafka/delivered") == "1", 30, "delivery")
        check(sys_value(broker, "sinks/kafka/connected"), "1", "connected")
    yield "down"
    until(lambda: sys_value(broker, "sinks/kafka/connected") == "0", 30, "that Kafka is seen to be away")
    check(sys_value(broker, "sinks/kafka/last_error") != "", True, "there is a last error:")
    with Client(broker.port, "c") as client:
        client.deliver("t", "2")
    until(lambda: sys_value(broker, "sinks/kafka/queue/records") == "1", 30, "a queue of one")
    yield "up"
    until(lambda: sys_value(broker, "sinks/kafka/delivered") == "2", 60, "delivery")
    until(lambda: sys_value(broker, "sinks/kafka/queue/records") == "0", 10, "an empty queue")
    check(sys_value(broker, "actions/away/1/delivered"), "2", "delivered by the action")
    check(sys_value(broker, "sinks/kafka/connected"), "1", "connected")


def buffered_restart(world, end):
    """Acknowledged as queued on disk in an outage; the broker ends; what was acknowledged arrives after the restart."""
    topic = fresh("disk")
    broker = world.broker(
        world.kafka_sink('disk_path = "buffer"')
        + rule('SELECT * FROM "t"', {"sink": "kafka", "topic": topic, "payload": "${payload}", "ack": "queued"})
    )
    with Client(broker.port, "c") as client:
        client.deliver("t", "000")
    yield "down"
    expected = ["000"]
    for _ in range(2):
        with Client(broker.port, "c") as client:
            for _ in range(50):
                expected.append(f"{len(expected):03}")
                client.deliver("t", expected[-1])
        end(broker)
        broker.start()
    yield "up"
    values = world.values(topic, len(expected), 90)
    check(distinct(values), expected, "values")
    # New ones come behind the old ones, and the buffer does not come again.
    with Client(broker.port, "c") as client:
        client.deliver("t", "999")
    check(distinct(world.values(topic, len(values) + 1)), expected + ["999"], "values")
    check(broker.stop(), 0, "exit code")
    broker.start()
    with Client(broker.port, "c") as client:
        client.deliver("t", "999 again")
    check(len(world.values(topic, len(values) + 2)), len(values) + 2, "records after one more restart:")


@case("what was queued on disk in an outage survives a restart, in order", "kafka")
def restart(world):
    yield from buffered_restart(world, lambda broker: check(broker.stop(), 0, "exit code"))


@case("what was queued on disk in an outage survives kill -9, in order", "kafka")
def killed(world):
    yield from buffered_restart(world, lambda broker: broker.kill())


SMALL = 'memory_bytes_max = "64 KiB"\nbatch_bytes_max = "32 KiB"\nwhen_full = "{}"'


@case("a full buffer that holds has QoS 1 wait, drops QoS 0 and counts it, and loses nothing", "kafka")
def full_hold(world):
    topic = fresh("hold")
    broker = world.broker(
        world.kafka_sink(SMALL.format("hold")) + rule('SELECT * FROM "t"', {"sink": "kafka", "topic": topic, "payload": "${payload}"})
    )
    client, other = Client(broker.port, "c"), Client(broker.port, "other")
    client.deliver("t", "000")
    yield "down"
    filler = "x" * 1000
    ids = [client.publish("t", f"{number:03} {filler}", 1) for number in range(1, 201)]
    acknowledged = 0
    try:
        for packet_id in ids:
            client.acknowledged(packet_id, seconds=3)
            acknowledged += 1
    except TimeoutError:
        pass
    check(20 < acknowledged < 100, True, f"{acknowledged} were acknowledged, some 60 have room:")
    for _ in range(10):
        other.publish("t", f"zero {filler}")
    # It is not held: what it says next is heard.
    other.ping()
    until(lambda: sys_value(broker, "sinks/kafka/dropped/full") == "10", 15, "the count of 10 dropped")
    yield "up"
    for packet_id in ids[acknowledged:]:
        client.acknowledged(packet_id, seconds=90)
    values = distinct(value[:3] for value in world.values(topic, 201))
    check(values, [f"{number:03}" for number in range(201)], "values")
    until(lambda: sys_value(broker, "sinks/kafka/queue/bytes") == "0", 10, "an empty queue")


@case("a full buffer that drops the oldest acknowledges at once, keeps the newest, and counts the others", "kafka")
def full_drop(world):
    topic = fresh("drop")
    broker = world.broker(
        world.kafka_sink(SMALL.format("drop_oldest"))
        + rule('SELECT * FROM "t"', {"sink": "kafka", "topic": topic, "payload": "${payload}"})
    )
    with Client(broker.port, "c") as client:
        client.deliver("t", "000")
    world.values(topic, 1)
    yield "down"
    with Client(broker.port, "c") as client:
        for number in range(1, 201):
            client.deliver("t", f"{number:03} {'x' * 1000}")
    yield "up"
    delivered = until(lambda: sys_value(broker, "sinks/kafka/queue/records") == "0" and sys_value(broker, "sinks/kafka/delivered"), 90, "the end")
    dropped = int(until(lambda: sys_value(broker, "sinks/kafka/dropped/oldest"), 15, "the count"))
    check(int(delivered) + dropped, 201, "delivered and dropped")
    values = [value[:3] for value in world.values(topic, int(delivered))]
    check((len(distinct(values)), dropped > 100, values[-1], first_in_order(values)), (int(delivered), True, "200", True), "values")


@case("records of a Kafka topic are published to clients, once, also after a restart", "kafka")
def source(world):
    topic, group = fresh("commands"), fresh("group")
    config = (
        f'[[kafka_source]]\nname = "commands"\nbrokers = "{world.kafka.brokers}"\ntopics = "{topic}"\ngroup = "{group}"\n'
        'mqtt_topic = "${headers.to}/${key}"\nqos = 1\nfrom_beginning = true\n'
    )
    world.produce(topic, "car-1", "lock", [("to", b"commands")])
    broker = world.broker(config)
    # Nobody is there to hear it.
    until(lambda: sys_value(broker, "sources/commands/published") == "1", 30, "the first command")
    with Client(broker.port, "car-1", clean=False) as client:
        client.subscribe("commands/+", 1)
        for number in range(20):
            world.produce(topic, f"car-{number % 2}", f"open {number}", [("to", b"commands")])
        messages = client.messages(20)
        for car in (0, 1):
            own = [payload.decode() for at, payload in messages if at == f"commands/car-{car}"]
            check(own[-10:], [f"open {number}" for number in range(20) if number % 2 == car], f"commands to car-{car}")
        # A record that names no topic is skipped and blocks nothing.
        world.produce(topic, "a/+", "bad", [("to", b"commands")])
        world.produce(topic, "car-1", "after", [("to", b"commands")])
        check(client.message(), ("commands/car-1", b"after"))
        until(lambda: sys_value(broker, "sources/commands/skipped") == "1", 10, "the count of one skipped")
    check(broker.stop(), 0, "exit code")
    broker.start()
    with Client(broker.port, "car-1", version=5) as client:
        client.subscribe("commands/+", 1)
        world.produce(topic, "car-1", "new", [("to", b"commands"), ("by", "ü".encode())])
        check(client.message(30), ("commands/car-1", b"new"))
        check(client.user_properties, [("to", "commands"), ("by", "ü")], "user properties")
        client.silent(PUBLISH, 1)


# MongoDB


@case("a rule's rows are documents with their types", "mongo")
def mongo_documents(world):
    name, database = world.database()
    broker = world.broker(
        world.mongo_sink(name)
        + rule('SELECT payload.v AS v, clientid, qos FROM "rows"', {"sink": "mongodb", "collection": "rows", "ack": "delivered"}, name="rows")
        + rule(
            'SELECT payload.at AS at FROM "typed/+"',
            {
                "sink": "mongodb",
                "collection": "typed_${topic[2]}",
                "document": '{"from": "${clientid}", "at": {"$date": {"$numberLong": "${at}"}}, "raw": ${payload}}',
                "ack": "delivered",
            },
            name="typed",
        )
    )
    with Client(broker.port, "car-1") as client:
        for value in (1, 2.5, "x", None, True, [1, {"a": 2}], 1 << 40):
            client.deliver("rows", json.dumps({"v": value}), 1)
        client.deliver("typed/7", '{"at": 1700000000123, "list": [1]}', 2)
    found = [(row["v"], row["clientid"], row["qos"]) for row in database["rows"].find()]
    key = repr
    check(sorted(found, key=key), sorted([(value, "car-1", 1) for value in (1, 2.5, "x", None, True, [1, {"a": 2}], 1 << 40)], key=key))
    (typed,) = database["typed_7"].find()
    check((typed["from"], typed["at"].timestamp() if typed["at"].tzinfo else typed["at"].isoformat(), typed["raw"]),
          ("car-1", "2023-11-14T22:13:20.123000", {"at": 1700000000123, "list": [1]}))


@case("an upsert keeps one document for each client", "mongo")
def mongo_upsert(world):
    name, database = world.database()
    broker = world.broker(
        world.mongo_sink(name)
        + rule(
            'SELECT payload.v AS v, clientid FROM "t"',
            {"sink": "mongodb", "collection": "last", "filter": '{"_id": "${clientid}"}', "document": '{"_id": "${clientid}", "v": ${v}}', "ack": "delivered"},
        )
    )
    with Client(broker.port, "car-1") as one, Client(broker.port, "car-2") as two:
        for value in range(20):
            one.deliver("t", json.dumps({"v": value}))
            two.deliver("t", json.dumps({"v": -value}))
    check({row["_id"]: row["v"] for row in database["last"].find()}, {"car-1": 19, "car-2": -19})


@case("a document that MongoDB refuses goes to the dead-letter file and blocks nothing", "mongo")
def mongo_refused(world):
    name, database = world.database()
    broker = world.broker(
        world.mongo_sink(name, 'dead_letter_path = "dead.jsonl"')
        + rule('SELECT * FROM "t"', {"sink": "mongodb", "collection": "c", "document": "${payload}", "ack": "delivered"})
    )
    with Client(broker.port, "c") as client:
        payloads = ['{"_id": 1, "v": "first"}', '{"_id": 1, "v": "again"}', '["no document"]', '{"_id": 2, "v": "last"}']
        for packet_id in [client.publish("t", payload, 1) for payload in payloads]:
            client.acknowledged(packet_id, seconds=30)
    check({row["_id"]: row["v"] for row in database["c"].find()}, {1: "first", 2: "last"})
    check(len(until(lambda: len(broker.lines("dead.jsonl")) >= 2 and broker.lines("dead.jsonl"), 10, "two dead letters")), 2)


@case("with ack = delivered an outage of MongoDB holds PUBACK, answers pings, and loses nothing", "mongo")
def mongo_delivered(world):
    name, database = world.database()
    broker = world.broker(
        world.mongo_sink(name)
        + rule('SELECT payload AS v FROM "t"', {"sink": "mongodb", "collection": "c", "ack": "delivered"})
    )
    client = Client(broker.port, "c", keep_alive_s=600)
    client.deliver("t", "0")
    yield "down"
    ids = [client.publish("t", str(number), 1) for number in range(1, 21)]
    client.silent(PUBACK, 3)
    client.ping()
    yield "up"
    for packet_id in ids:
        client.acknowledged(packet_id, seconds=90)
    client.deliver("t", "21")
    check(sorted({int(row["v"]) for row in database["c"].find()}), list(range(22)))


# HTTP, files, clients


@case("HTTP requests carry batches of JSON over a connection that is kept")
def http(world):
    web = Web()
    broker = world.broker(
        f'[[http]]\nname = "web"\nurl = "{web.url}/in"\nheaders = "Authorization: Bearer x"\nrequests_max = 1\nlinger_ms = 200\n'
        + rule('SELECT payload.v AS v FROM "t"', {"sink": "web", "path": "/${clientid}", "ack": "delivered"})
    )
    with Client(broker.port, "car-1") as client:
        for packet_id in [client.publish("t", json.dumps({"v": value}), 1) for value in range(100)]:
            client.acknowledged(packet_id)
        client.deliver("t", '{"v": 100}')
    check([row["v"] for body in web.accepted() for row in json.loads(body)], list(range(101)))
    check(len(web.requests) < 20, True, f"{len(web.requests)} requests:")
    path, headers, _, _, _ = web.requests[0]
    headers = {name.lower(): value for name, value in headers.items()}
    check((path, headers["authorization"], headers["content-type"]), ("/in/car-1", "Bearer x", "application/json"))
    check(len({request[4] for request in web.requests}), 1, "connections")


@case("an HTTP server that fails is asked again, and one that refuses has its record go to the dead-letter file")
def http_errors(world):
    web = Web()
    broker = world.broker(
        f'[[http]]\nname = "web"\nurl = "{web.url}"\nbody = "single"\ndead_letter_path = "dead.jsonl"\nlinger_ms = 0\n'
        + rule('SELECT * FROM "t"', {"sink": "web", "body": "${payload}", "ack": "delivered"})
    )
    with Client(broker.port, "c") as client:
        web.status = 503
        packet_id = client.publish("t", "one", 1)
        client.silent(PUBACK, 1.5)
        check(len(web.requests) > 0, True, "it was tried:")
        web.status = 200
        client.acknowledged(packet_id, seconds=30)
        check(web.accepted(), ["one"])
        web.status = 400
        client.deliver("t", "refused")
        web.status = 200
        client.deliver("t", "two")
        check(web.accepted(), ["one", "two"])
    check(len(until(lambda: broker.lines("dead.jsonl"), 5, "the dead letter")), 1)


@case("of a batch that an HTTP server refuses only the record that it refuses alone is a dead letter")
def http_halves(world):
    web = Web()
    web.refuses = lambda body: 422 if "bad" in body else 200
    broker = world.broker(
        f'[[http]]\nname = "web"\nurl = "{web.url}"\nbody = "json_lines"\ndead_letter_path = "dead.jsonl"\nlinger_ms = 300\nrequests_max = 1\n'
        + rule('SELECT payload AS v FROM "t"', {"sink": "web", "ack": "delivered"})
    )
    with Client(broker.port, "c") as client:
        for packet_id in [client.publish("t", "bad" if number == 11 else f"{number:02}", 1) for number in range(20)]:
            client.acknowledged(packet_id)
    rows = [json.loads(line)["v"] for body in web.accepted() for line in body.splitlines()]
    check(rows, [f"{number:02}" for number in range(20) if number != 11])
    check(len(web.requests) > 2, True, "it took several requests:")
    check(len(until(lambda: broker.lines("dead.jsonl"), 5, "the dead letter")), 1, "dead letters")


@case("an end in order delivers what waits for its batch")
def flushed(world):
    broker = world.broker(
        '[[file]]\nname = "file"\npath = "rows.jsonl"\nlinger_ms = 60000\n' + rule('SELECT payload AS v FROM "t"', {"sink": "file"})
    )
    with Client(broker.port, "c") as client:
        for number in range(100):
            client.deliver("t", str(number))
    check(broker.lines("rows.jsonl"), [], "lines before the batch is full")
    check(broker.stop(), 0, "exit code")
    check([row["v"] for row in broker.lines("rows.jsonl")], [str(number) for number in range(100)])


@case("an end in order waits for a server that is away no longer than it may, and says what is lost")
def unflushed(world):
    # Nobody listens there.
    broker = world.broker(
        f'[[http]]\nname = "web"\nurl = "http://127.0.0.1:{free_port()}"\n' + rule('SELECT * FROM "t"', {"sink": "web"}), "shutdown_s = 2\n"
    )
    with Client(broker.port, "c") as client:
        for number in range(10):
            client.deliver("t", str(number))
    begin = time.monotonic()
    check(broker.stop(), 0, "exit code")
    check(1 < time.monotonic() - begin < 6, True, f"it took {time.monotonic() - begin:.1f} s:")
    with open(broker.path("log"), errors="replace") as file:
        said = [line for line in file if "lost" in line and "10" in line]
    check(len(said) > 0, True, f"the loss is said ({broker.log_end()}):")


@case("a rule counts what it matched, passed and failed on")
def counts(world):
    broker = world.broker(
        rule('SELECT upper(payload.v) AS v FROM "t" WHERE payload.go = true', {"publish": "out"}, name="counted")
    )
    with Client(broker.port, "watch") as watch, Client(broker.port, "c") as client:
        watch.subscribe("out")
        for go, value in ((True, "a"), (False, "b"), (True, 5), (True, "c")):
            client.deliver("t", json.dumps({"go": go, "v": value}))
        check([json.loads(payload)["v"] for _, payload in watch.messages(2)], ["A", "C"])
    expected = {"matched": "4", "passed": "2", "no_result": "1", "failed": "1", "actions": "2"}
    until(lambda: sys_value(broker, "rules/counted/matched") == "4", 10, "the count of 4")
    check({what: sys_value(broker, f"rules/counted/{what}") for what in expected}, expected)


@case("rows become lines of a file, and lines are not broken by what is in them")
def file_lines(world):
    broker = world.broker(
        '[[file]]\nname = "json"\npath = "rows.jsonl"\n[[file]]\nname = "text"\npath = "rows.txt"\n'
        + rule(
            'SELECT payload.v AS v, clientid FROM "t/#" WHERE payload.v IS NOT NULL',
            {"sink": "json", "ack": "delivered"},
            {"sink": "text", "line": "${clientid}: ${v}", "ack": "delivered"},
        )
    )
    with Client(broker.port, "c") as client:
        for payload in ('{"v": 1}', '{"v": "a\\nb"}', "no JSON", '{"w": 2}', '{"v": [1, 2]}'):
            client.deliver("t/x", payload)
        check(broker.lines("rows.jsonl"), [{"v": value, "clientid": "c"} for value in (1, "a\nb", [1, 2])])
        with open(broker.path("rows.txt")) as file:
            check(file.read().splitlines(), ["c: 1", "c: a b", "c: [1,2]"])
    check(broker.stop(), 0, "exit code")


@case("a rule publishes to clients, and rules that feed each other come to an end")
def republish(world):
    broker = world.broker(
        rule(
            'SELECT payload.speed AS speed, clientid FROM "vehicle/+/telemetry" WHERE payload.speed > 120',
            {"publish": "alerts/${clientid}", "payload": "${speed} km/h", "qos": 1},
            {"publish": "last/${clientid}", "retain": True},
            name="alerts",
        )
        + rule('SELECT * FROM "loop/#"', {"publish": "loop/${topic}", "payload": "${payload}"}, name="loop")
    )
    with Client(broker.port, "watch") as watch, Client(broker.port, "car-1") as car:
        watch.subscribe("alerts/#", 1)
        for speed in (100, 131, 99, 140):
            car.deliver("vehicle/1/telemetry", json.dumps({"speed": speed}))
        check(watch.messages(2), [("alerts/car-1", b"131 km/h"), ("alerts/car-1", b"140 km/h")])
        watch.subscribe("last/+")
        topic, payload = watch.message()
        check((topic, json.loads(payload)), ("last/car-1", {"speed": 140, "clientid": "car-1"}))
        watch.subscribe("loop/#")
        car.deliver("loop/a", "x")
        watch.ping()
        car.deliver("vehicle/1/telemetry", '{"speed": 150}')
        alerts = until(lambda: [True for topic, _ in [watch.message()] if topic == "alerts/car-1"], 20, "the alert behind the loop")
        check(alerts, [True])


@case("a client's connect, subscription, message and end are rows")
def events(world):
    broker = world.broker(
        '[[file]]\nname = "file"\npath = "events.jsonl"\nlinger_ms = 0\n'
        + rule(
            'SELECT event, clientid FROM "$events/client_connected", "$events/client_disconnected", "$events/session_subscribed", '
            '"$events/message_delivered"',
            {"sink": "file"},
        )
    )
    with Client(broker.port, "car-1") as client:
        client.subscribe("a/+")
        client.publish("a/b", "x")
        client.message()
    expected = [{"event": event, "clientid": "car-1"} for event in ("client_connected", "session_subscribed", "message_delivered", "client_disconnected")]

    def rows():
        own = [row for row in broker.lines("events.jsonl") if row["clientid"] == "car-1"]
        return len(own) >= 4 and own

    check(until(rows, 10, "four rows"), expected)


class Run:
    """Advances all cases together: to their outage, through it, to their end."""

    def __init__(self, world):
        self.world = world
        self.failed = 0

    def advance(self, sentence, step):
        """Whether the case goes on; says so if it has come to its end."""
        try:
            if step() is not None:
                return True
            print(f"ok   sinks: {sentence}", flush=True)
        except Exception as error:  # a case may fail in any way
            self.failed += 1
            where = traceback.extract_tb(error.__traceback__)
            line = next((frame.lineno for frame in reversed(where) if frame.filename == os.path.abspath(__file__) and frame.name != "check"), 0)
            print(f"FAIL sinks: {sentence}: {type(error).__name__}: {error} (line {line})", flush=True)
        return False

    def all(self, cases):
        waiting = []
        for sentence, function in cases:
            if inspect.isgeneratorfunction(function):
                running = function(self.world)
                if self.advance(sentence, lambda: next(running, None)):
                    waiting.append((sentence, running))
            else:
                self.advance(sentence, lambda: function(self.world))
        for change in (self.world.down, self.world.up):
            if waiting:
                change()
            waiting = [(sentence, running) for sentence, running in waiting if self.advance(sentence, lambda: next(running, None))]
        for sentence, _ in waiting:
            self.failed += 1
            print(f"FAIL sinks: {sentence}: it wants more than one outage", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", required=True)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--kafka", nargs=2, metavar=("SCRIPT", "PORT"))
    parser.add_argument("--mock-kafka", metavar="PROGRAM")
    parser.add_argument("--mongo", nargs=2, metavar=("SCRIPT", "PORT"))
    parser.add_argument("parts", nargs="*", help="only the cases whose sentences have one of these in them")
    arguments = parser.parse_args()
    world = World(arguments)
    wanted = []
    for sentence, needs, function in CASES:
        if arguments.parts and not any(part in sentence for part in arguments.parts):
            continue
        missing = [need for need in needs if need not in world.has]
        if missing:
            print(f"skip sinks: {sentence}: without {' and '.join(missing).replace('_', ' ')}", flush=True)
        else:
            wanted.append((sentence, function))
    run = Run(world)
    try:
        run.all(wanted)
    finally:
        Broker.kill_all()
        if world.kafka and world.kafka.is_mock:
            world.kafka.end()
    sys.exit(1 if run.failed else 0)


if __name__ == "__main__":
    main()
