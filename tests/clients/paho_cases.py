"""paho-mqtt, 1.x or 2.x, against a broker: every protocol version the library speaks, and the MQTT 5 features it reaches.

Usage: paho_cases.py HOST PORT
"""

import importlib.metadata
import queue
import sys
import threading
import time
import uuid
import warnings

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from cases import Cases, check

warnings.simplefilter("ignore")
HOST, PORT = sys.argv[1], int(sys.argv[2])
IS_2 = hasattr(mqtt, "CallbackAPIVersion")
PATIENCE = 5.0
VERSIONS = {"v3.1": mqtt.MQTTv31, "v3.1.1": mqtt.MQTTv311, "v5": mqtt.MQTTv5}


def properties(kind, **values):
    result = Properties(kind)
    for name, value in values.items():
        setattr(result, name, value)
    return result


def fresh(name):
    """A name nobody has used."""
    return f"{name}-{uuid.uuid4().hex[:10]}"


class Peer:
    """A client with its network thread, and what has happened to it as queues."""

    def __init__(self, version, name=None, clean=True, connect=None, will=None, manual_ack=False):
        self.version, self.clean, self.connect_properties = version, clean, connect
        self.messages, self.acknowledged = queue.Queue(), queue.Queue()
        self.connected, self.disconnected = queue.Queue(), queue.Queue()
        self.published = {}
        self.published_changed = threading.Condition()
        options = {"client_id": fresh("paho") if name is None else name, "protocol": version}
        if version != mqtt.MQTTv5:
            options["clean_session"] = clean
        if manual_ack:
            options["manual_ack"] = True
        self.client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, **options) if IS_2 else mqtt.Client(**options)
        self.client.on_message = lambda client, data, message: self.messages.put(message)
        self.client.on_connect = self.on_connect
        self.client.on_disconnect = self.on_disconnect
        self.client.on_subscribe = lambda client, data, mid, codes, *rest: self.acknowledged.put(codes)
        self.client.on_unsubscribe = self.on_unsubscribe
        self.client.on_publish = self.on_publish
        if will:
            self.client.will_set(**will)

    def on_connect(self, client, data, flags, code, *rest):
        present = flags.session_present if IS_2 else flags["session present"]
        self.connected.put((int(getattr(code, "value", code)), bool(present), rest[0] if rest else None))

    def on_disconnect(self, client, data, *rest):
        code = rest[1] if IS_2 else rest[0]
        self.disconnected.put(int(getattr(code, "value", code) or 0))

    def on_unsubscribe(self, client, data, mid, *rest):
        codes = (rest[0] if IS_2 else rest[1]) if self.version == mqtt.MQTTv5 else []
        self.acknowledged.put(codes)

    def on_publish(self, client, data, mid, *rest):
        with self.published_changed:
            self.published[mid] = int(getattr(rest[0], "value", 0)) if rest else 0
            self.published_changed.notify_all()

    def open(self, code=0):
        """Connects; the CONNACK's session present flag and properties."""
        if self.version == mqtt.MQTTv5:
            self.client.connect(HOST, PORT, 30, clean_start=self.clean, properties=self.connect_properties)
        else:
            self.client.connect(HOST, PORT, 30)
        self.client.loop_start()
        found, present, connack = self.connected.get(timeout=PATIENCE)
        check(found, code, "CONNACK code")
        return present, connack

    def subscribe(self, *filters, options=None, qos=0, **more):
        topics = [(each, options if options else qos) for each in filters]
        self.client.subscribe(topics, **more)
        return [int(getattr(code, "value", code)) for code in self.acknowledged.get(timeout=PATIENCE)]

    def unsubscribe(self, topic):
        self.client.unsubscribe(topic)
        codes = self.acknowledged.get(timeout=PATIENCE)
        codes = codes if isinstance(codes, list) else [codes]
        return [int(getattr(code, "value", code)) for code in codes]

    def publish(self, topic, payload=b"x", qos=0, retain=False, **more):
        """Publishes and waits for the whole acknowledgement; its reason code as far as the library tells."""
        sent = self.client.publish(topic, payload, qos, retain, **more)
        check(sent.rc, mqtt.MQTT_ERR_SUCCESS, "publish")
        with self.published_changed:
            if not self.published_changed.wait_for(lambda: sent.mid in self.published, PATIENCE):
                raise AssertionError(f"QoS {qos} was not acknowledged")
            return self.published[sent.mid]

    def next(self, patience=PATIENCE):
        try:
            return self.messages.get(timeout=patience)
        except queue.Empty:
            raise AssertionError("no message came") from None

    def expect(self, topic, payload=b"x", qos=0, retain=False):
        message = self.next()
        check((message.topic, message.qos, bool(message.retain)), (topic, qos, retain), "topic, QoS, retain")
        check(message.payload, payload if isinstance(payload, bytes) else payload.encode(), "payload")
        return message

    def nothing(self, seconds=0.15):
        try:
            message = self.messages.get(timeout=seconds)
        except queue.Empty:
            return
        raise AssertionError(f"unexpected {message.topic}: {message.payload[:40]}")

    def close(self):
        self.client.disconnect()
        self.client.loop_stop()

    def drop(self):
        """The connection goes without a DISCONNECT."""
        self.client.loop_stop()
        self.client.socket().close()


def opened(version, *arguments, **more):
    peer = Peer(version, *arguments, **more)
    peer.open()
    return peer


# ---------------------------------------------------------------------------------------------- every version


def every_qos(version):
    peer = opened(version)
    topic = fresh("qos")
    check(peer.subscribe(topic, qos=2), [2])
    for qos in (0, 1, 2):
        peer.publish(topic, f"q{qos}", qos)
        peer.expect(topic, f"q{qos}", qos)
    check(peer.subscribe(topic, qos=1), [1])
    peer.publish(topic, "lower", 2)
    peer.expect(topic, "lower", 1)
    peer.nothing()
    peer.close()


def order(version):
    peer = opened(version)
    topic = fresh("order")
    peer.subscribe(topic, qos=2)
    for qos in (0, 1, 2):
        for number in range(100):
            peer.client.publish(topic, str(number), qos)
        for number in range(100):
            check(peer.next().payload, str(number).encode())
    peer.nothing()
    peer.close()


def retained(version):
    topic = fresh("retained")
    publisher = opened(version)
    publisher.publish(topic, "first", 1, True)
    publisher.publish(topic, "kept", 1, True)
    late = opened(version)
    late.subscribe(topic, qos=1)
    late.expect(topic, "kept", 1, True)
    publisher.publish(topic, "live", 1, True)
    late.expect(topic, "live", 1, False)
    publisher.publish(topic, b"", 1, True)
    late.expect(topic, b"", 1, False)
    later = opened(version)
    later.subscribe(topic, topic + "/#", qos=1)
    later.nothing()
    for peer in (publisher, late, later):
        peer.close()


def retained_wildcard(version):
    root = fresh("plants")
    publisher = opened(version)
    for number in range(20):
        publisher.publish(f"{root}/{number}/level", str(number), 1, True)
    late = opened(version)
    late.subscribe(root + "/+/level", qos=0)
    found = {late.next().topic for _ in range(20)}
    check(len(found), 20)
    late.nothing()
    for number in range(20):
        publisher.publish(f"{root}/{number}/level", b"", 1, True)
    publisher.close()
    late.close()


def will(version):
    topic = fresh("will")
    watcher = opened(version)
    watcher.subscribe(topic, qos=2)
    victim = opened(version, will={"topic": topic, "payload": "gone", "qos": 1, "retain": True})
    victim.drop()
    watcher.expect(topic, "gone", 1, False)
    late = opened(version)
    late.subscribe(topic, qos=1)
    late.expect(topic, "gone", 1, True)
    late.publish(topic, b"", 1, True)
    watcher.expect(topic, b"", 1)
    polite = opened(version, will={"topic": topic, "payload": "never", "qos": 1})
    polite.close()
    watcher.nothing()
    watcher.close()
    late.close()


def wildcards(version):
    root = fresh("wild")
    peer = opened(version)
    peer.subscribe(root + "/+/b")
    other = opened(version)
    other.subscribe(root + "/#")
    for topic in (f"{root}/a/b", f"{root}//b", f"{root}/a/b/c", root, f"{root}/a"):
        peer.publish(topic)
    for topic in (f"{root}/a/b", f"{root}//b"):
        peer.expect(topic)
    peer.nothing()
    for topic in (f"{root}/a/b", f"{root}//b", f"{root}/a/b/c", root, f"{root}/a"):
        other.expect(topic)
    other.nothing()
    peer.unsubscribe(root + "/+/b")
    peer.publish(f"{root}/a/b")
    other.expect(f"{root}/a/b")
    peer.nothing()
    peer.close()
    other.close()


def persistent(version):
    name, topic = fresh("persistent"), fresh("queue")
    connect = properties(PacketTypes.CONNECT, SessionExpiryInterval=60) if version == mqtt.MQTTv5 else None
    first = Peer(version, name, clean=False, connect=connect)
    check(first.open()[0], False, "session present")
    first.subscribe(topic, qos=2)
    first.close()
    publisher = opened(version)
    for number in range(30):
        publisher.publish(topic, str(number), 1 + number % 2)
    again = Peer(version, name, clean=False, connect=connect)
    present, _ = again.open()
    # A v3.1 CONNACK has no session present flag.
    if version != mqtt.MQTTv31:
        check(present, True, "session present")
    # paho hands over a QoS 2 message when it is released, which may be after the QoS 1 message behind it.
    got = [again.next() for _ in range(30)]
    for qos in (1, 2):
        found = [message.payload for message in got if message.qos == qos]
        check(found, [str(number).encode() for number in range(qos - 1, 30, 2)], f"queued at QoS {qos}")
    again.nothing()
    again.drop()
    publisher.publish(topic, "after a drop", 1)
    third = Peer(version, name, clean=False, connect=connect)
    third.open()
    third.expect(topic, "after a drop", 1)
    third.close()
    clean = Peer(version, name, clean=True)
    check(clean.open()[0], False, "session present after a clean start")
    publisher.publish(topic, "nobody", 1)
    clean.nothing()
    clean.close()
    publisher.close()


def unicode_topics(version):
    peer = opened(version)
    root = fresh("Straße")
    topic = root + "/温度/\U0001f697"
    peer.subscribe(root + "/+/#", qos=1)
    peer.publish(topic, "23 °C 雪", 1)
    peer.expect(topic, "23 °C 雪", 1)
    peer.close()


def payloads(version):
    peer = opened(version)
    topic = fresh("payload")
    peer.subscribe(topic, qos=2)
    for size in (0, 1, 127, 128, 16_383, 16_384, 64 << 10, 900_000):
        payload = bytes(index * 7 & 0xFF for index in range(min(size, 997))) * (size // 997 + 1)
        for qos in (0, 1, 2):
            peer.publish(topic, payload[:size], qos)
            peer.expect(topic, payload[:size], qos)
    peer.close()


def takeover(version):
    name = fresh("takeover")
    first = opened(version, name)
    first.client.reconnect_delay_set(60, 60)
    second = opened(version, name)
    code = first.disconnected.get(timeout=PATIENCE)
    # paho reads the reason code only of a DISCONNECT with properties; without them it reports 0. A close without DISCONNECT is neither.
    if version == mqtt.MQTTv5 and code not in (0, 0x8E):
        raise AssertionError(f"DISCONNECT reason {code}")
    first.client.loop_stop()
    topic = fresh("mine")
    second.subscribe(topic)
    second.publish(topic)
    second.expect(topic)
    second.close()


# ---------------------------------------------------------------------------------------------- MQTT 5


def v5_message_properties():
    peer = opened(mqtt.MQTTv5)
    topic = fresh("properties")
    peer.subscribe(topic, qos=1)
    sent = properties(
        PacketTypes.PUBLISH,
        UserProperty=[("a", "1"), ("a", "2"), ("ü", "雪")],
        ContentType="text/plain",
        ResponseTopic="answer/here",
        CorrelationData=b"\x00\x01\xff",
        PayloadFormatIndicator=1,
    )
    peer.publish(topic, "text", 1, properties=sent)
    got = peer.expect(topic, "text", 1).properties
    check(got.UserProperty, [("a", "1"), ("a", "2"), ("ü", "雪")])
    check((got.ContentType, got.ResponseTopic, got.CorrelationData), ("text/plain", "answer/here", b"\x00\x01\xff"))
    check(got.PayloadFormatIndicator, 1)
    peer.close()


def v5_request_response():
    service, caller = opened(mqtt.MQTTv5), opened(mqtt.MQTTv5)
    request, answer = fresh("request"), fresh("answer")
    service.subscribe(request, qos=1)
    caller.subscribe(answer, qos=1)
    ask = properties(PacketTypes.PUBLISH, ResponseTopic=answer, CorrelationData=b"42")
    caller.publish(request, "?", 1, properties=ask)
    asked = service.expect(request, "?", 1).properties
    reply = properties(PacketTypes.PUBLISH, CorrelationData=asked.CorrelationData)
    service.publish(asked.ResponseTopic, "!", 1, properties=reply)
    check(caller.expect(answer, "!", 1).properties.CorrelationData, b"42")
    service.close()
    caller.close()


def v5_message_expiry():
    name, topic = fresh("expiry"), fresh("expiring")
    connect = properties(PacketTypes.CONNECT, SessionExpiryInterval=60)
    first = Peer(mqtt.MQTTv5, name, clean=False, connect=connect)
    first.open()
    first.subscribe(topic, qos=1)
    first.close()
    publisher = opened(mqtt.MQTTv5)
    publisher.publish(topic, "soon", 1, properties=properties(PacketTypes.PUBLISH, MessageExpiryInterval=1))
    publisher.publish(topic, "later", 1, properties=properties(PacketTypes.PUBLISH, MessageExpiryInterval=100))
    time.sleep(2.1)
    again = Peer(mqtt.MQTTv5, name, clean=False, connect=connect)
    again.open()
    left = again.expect(topic, "later", 1).properties.MessageExpiryInterval
    if not 90 <= left <= 98:
        raise AssertionError(f"expiry {left}, expected about 98")
    again.nothing()
    again.close()
    publisher.close()


def v5_topic_alias_in():
    peer = Peer(mqtt.MQTTv5)
    _, connack = peer.open()
    if getattr(connack, "TopicAliasMaximum", 0) < 2:
        raise AssertionError("the broker takes no aliases")
    one, two = fresh("alias/one"), fresh("alias/two")
    peer.subscribe(one, two, qos=1)
    peer.publish(one, "set", 1, properties=properties(PacketTypes.PUBLISH, TopicAlias=1))
    peer.publish(two, "set", 1, properties=properties(PacketTypes.PUBLISH, TopicAlias=2))
    peer.publish("", "used", 1, properties=properties(PacketTypes.PUBLISH, TopicAlias=1))
    peer.publish("", "used", 1, properties=properties(PacketTypes.PUBLISH, TopicAlias=2))
    for topic, payload in ((one, "set"), (two, "set"), (one, "used"), (two, "used")):
        peer.expect(topic, payload, 1)
    peer.close()


def v5_subscription_identifiers():
    peer = opened(mqtt.MQTTv5)
    root = fresh("identifier")
    identified = lambda value: properties(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=value)
    peer.client.subscribe(root + "/a", properties=identified(7))
    peer.acknowledged.get(timeout=PATIENCE)
    peer.client.subscribe(root + "/b", properties=identified(268_435_455))
    peer.acknowledged.get(timeout=PATIENCE)
    peer.publish(root + "/a")
    check(peer.expect(root + "/a").properties.SubscriptionIdentifier, [7])
    peer.publish(root + "/b")
    check(peer.expect(root + "/b").properties.SubscriptionIdentifier, [268_435_455])
    peer.close()


def v5_shared_subscription():
    topic = fresh("shared")
    members = [opened(mqtt.MQTTv5) for _ in range(4)]
    for member in members:
        check(member.subscribe(f"$share/group/{topic}", qos=1), [1])
    outside = opened(mqtt.MQTTv5)
    outside.subscribe(topic, qos=1)
    publisher = opened(mqtt.MQTTv5)
    for number in range(80):
        publisher.publish(topic, str(number), 1)
    for number in range(80):
        outside.expect(topic, str(number), 1)
    time.sleep(0.2)
    counts = [member.messages.qsize() for member in members]
    check(sum(counts), 80, "messages of the group")
    got = sorted(int(member.next().payload) for member in members for _ in range(member.messages.qsize()))
    check(got, list(range(80)), "each once")
    if min(counts) == 0:
        raise AssertionError(f"a member got nothing: {counts}")
    members[0].close()
    members[1].drop()
    time.sleep(0.1)
    for number in range(20):
        publisher.publish(topic, str(number), 1)
    time.sleep(0.2)
    check(sum(member.messages.qsize() for member in members[2:]), 20, "messages of the members that stay")
    for peer in (*members[2:], outside, publisher):
        peer.close()


def v5_subscription_options():
    peer, other = opened(mqtt.MQTTv5), opened(mqtt.MQTTv5)
    topic = fresh("options")
    peer.subscribe(topic, options=SubscribeOptions(qos=1, noLocal=True))
    peer.publish(topic, "own", 1)
    peer.nothing()
    other.publish(topic, "other", 1)
    peer.expect(topic, "other", 1)
    # Retain As Published.
    peer.subscribe(topic, options=SubscribeOptions(qos=1, retainAsPublished=True))
    other.publish(topic, "kept", 1, True)
    peer.expect(topic, "kept", 1, True)
    # Retain Handling: 2 never sends, 1 only to a new subscription, 0 always.
    handling = lambda value: SubscribeOptions(qos=1, retainHandling=value)
    peer.subscribe(topic, options=handling(2))
    peer.nothing()
    peer.subscribe(topic, options=handling(1))
    peer.nothing()
    peer.subscribe(topic, options=handling(0))
    peer.expect(topic, "kept", 1, True)
    peer.unsubscribe(topic)
    peer.subscribe(topic, options=handling(1))
    peer.expect(topic, "kept", 1, True)
    peer.publish(topic, b"", 1, True)
    peer.expect(topic, b"", 1)
    peer.close()
    other.close()


def v5_reason_codes():
    peer = opened(mqtt.MQTTv5)
    topic = fresh("reasons")
    check(peer.subscribe(topic, qos=2), [2], "SUBACK")
    check(peer.unsubscribe(topic), [0], "UNSUBACK of a subscription")
    check(peer.unsubscribe(topic), [0x11], "UNSUBACK of none")
    if IS_2:
        check(peer.publish(fresh("nobody"), "x", 1), 0x10, "PUBACK without subscribers")
        check(peer.publish(fresh("nobody"), "x", 2), 0, "QoS 2 completes")
    peer.close()


def v5_session_expiry():
    name, topic = fresh("short"), fresh("short")
    connect = properties(PacketTypes.CONNECT, SessionExpiryInterval=1)
    first = Peer(mqtt.MQTTv5, name, clean=False, connect=connect)
    check(first.open()[0], False)
    first.subscribe(topic, qos=1)
    first.drop()
    second = Peer(mqtt.MQTTv5, name, clean=False, connect=connect)
    check(second.open()[0], True, "session present within the interval")
    second.close()
    time.sleep(2.3)
    third = Peer(mqtt.MQTTv5, name, clean=False, connect=connect)
    check(third.open()[0], False, "session present after the interval")
    # DISCONNECT may change the interval.
    third.client.disconnect(properties=properties(PacketTypes.DISCONNECT, SessionExpiryInterval=60))
    third.client.loop_stop()
    time.sleep(2.3)
    fourth = Peer(mqtt.MQTTv5, name, clean=False, connect=connect)
    check(fourth.open()[0], True, "session present after DISCONNECT lengthened the interval")
    fourth.close()


def v5_will_delay():
    topic, name = fresh("late-will"), fresh("testator")
    watcher = opened(mqtt.MQTTv5)
    watcher.subscribe(topic, qos=1)
    the_will = {
        "topic": topic,
        "payload": "gone",
        "qos": 1,
        "properties": properties(PacketTypes.WILLMESSAGE, WillDelayInterval=1, UserProperty=("k", "v"), ContentType="c"),
    }
    connect = properties(PacketTypes.CONNECT, SessionExpiryInterval=60)
    victim = opened(mqtt.MQTTv5, name, clean=False, connect=connect, will=the_will)
    victim.drop()
    watcher.nothing(0.5)
    again = opened(mqtt.MQTTv5, name, clean=False, connect=connect, will=the_will)
    watcher.nothing(1.6)
    again.drop()
    watcher.nothing(0.5)
    got = watcher.expect(topic, "gone", 1).properties
    check((got.UserProperty, got.ContentType), ([("k", "v")], "c"))
    watcher.nothing()
    # With DISCONNECT 0x04 the will is sent though the client leaves politely.
    third = opened(mqtt.MQTTv5, name, clean=True, will={"topic": topic, "payload": "asked for", "qos": 1})
    from paho.mqtt.reasoncodes import ReasonCodes

    third.client.disconnect(reasoncode=ReasonCodes(PacketTypes.DISCONNECT, identifier=4))
    third.client.loop_stop()
    watcher.expect(topic, "asked for", 1)
    watcher.close()


def v5_maximum_packet_size():
    topic = fresh("size")
    small = opened(mqtt.MQTTv5, connect=properties(PacketTypes.CONNECT, MaximumPacketSize=1000))
    small.subscribe(topic, qos=1)
    publisher = opened(mqtt.MQTTv5)
    publisher.publish(topic, b"x" * 5000, 1)
    publisher.publish(topic, b"x" * 1500, 0)
    publisher.publish(topic, b"fits", 1)
    small.expect(topic, b"fits", 1)
    small.nothing()
    small.close()
    publisher.close()


def v5_receive_maximum():
    topic = fresh("window")
    slow = opened(mqtt.MQTTv5, connect=properties(PacketTypes.CONNECT, ReceiveMaximum=2), manual_ack=True)
    slow.subscribe(topic, qos=1)
    publisher = opened(mqtt.MQTTv5)
    for number in range(6):
        publisher.publish(topic, str(number), 1)
    publisher.publish(topic, "passes", 0)
    waiting = [slow.next(), slow.next()]
    held = slow.next(1)
    check((held.payload, held.qos), (b"passes", 0), "only QoS 0 passes a full window:")
    slow.nothing(0.3)
    for number in range(6):
        message = waiting.pop(0)
        check(message.payload, str(number).encode())
        slow.client.ack(message.mid, 1)
        if number < 4:
            waiting.append(slow.next())
    slow.nothing()
    slow.close()
    publisher.close()


def v5_assigned_client_id():
    peer = Peer(mqtt.MQTTv5, "")
    _, connack = peer.open()
    if not getattr(connack, "AssignedClientIdentifier", ""):
        raise AssertionError("no client id was assigned")
    peer.close()


def main():
    cases = Cases(f"paho-mqtt {importlib.metadata.version('paho-mqtt')}")
    for label, version in VERSIONS.items():
        for case in (
            every_qos,
            order,
            retained,
            retained_wildcard,
            will,
            wildcards,
            persistent,
            unicode_topics,
            payloads,
            takeover,
        ):
            cases.run(f"{label} {case.__name__}", case, version)
    for case in (
        v5_message_properties,
        v5_request_response,
        v5_message_expiry,
        v5_topic_alias_in,
        v5_subscription_identifiers,
        v5_shared_subscription,
        v5_subscription_options,
        v5_reason_codes,
        v5_session_expiry,
        v5_will_delay,
        v5_maximum_packet_size,
        v5_assigned_client_id,
    ):
        cases.run(case.__name__, case)
    if IS_2:
        cases.run("v5_receive_maximum", v5_receive_maximum)
    cases.finish()


main()
