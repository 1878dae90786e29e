"""umqtt.simple, what an ESP32 runs, against a broker; the unchanged module on CPython, with MicroPython's sockets imitated.

It writes a packet in several small pieces, speaks MQTT 3.1.1 at QoS 0 and 1, and asserts on anything it does not know.
Usage: umqtt_cases.py HOST PORT DIRECTORY-WITH-umqtt
"""

import binascii
import select
import socket
import struct
import sys
import types
import uuid

from cases import Cases, check


class Stream:
    """MicroPython's socket: a stream whose read and write take all they are asked for, or None where it would block."""

    def __init__(self):
        self.socket = socket.socket()
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.blocking = True

    def connect(self, address):
        self.socket.settimeout(5)
        self.socket.connect(address)

    def setblocking(self, blocking):
        self.blocking = blocking

    def read(self, count):
        if not self.blocking and not select.select([self.socket], [], [], 0)[0]:
            return None
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                return data
            data += more
        return data

    def write(self, data, count=None):
        data = data.encode() if isinstance(data, str) else bytes(data)
        self.socket.sendall(data if count is None else data[:count])

    def close(self):
        self.socket.close()


usocket = types.ModuleType("usocket")
usocket.socket = Stream
usocket.getaddrinfo = lambda host, port: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
sys.modules.update(usocket=usocket, ustruct=struct, ubinascii=binascii)
HOST, PORT = sys.argv[1], int(sys.argv[2])
sys.path.insert(0, sys.argv[3])

from umqtt.simple import MQTTClient  # noqa: E402


def fresh(name):
    return f"{name}-{uuid.uuid4().hex[:10]}".encode()


class Peer:
    def __init__(self, name=None, clean=True, will=None, keepalive=30):
        self.client = MQTTClient(name or fresh("esp32"), HOST, PORT, keepalive=keepalive)
        self.messages = []
        self.client.set_callback(lambda topic, message: self.messages.append((topic, message)))
        if will:
            self.client.set_last_will(*will)
        self.present = self.client.connect(clean_session=clean)

    def next(self):
        while not self.messages:
            self.client.wait_msg()
        return self.messages.pop(0)

    def nothing(self):
        # What was sent before is answered before the ping is.
        self.client.ping()
        while not self.messages and self.client.wait_msg() is not None:
            pass
        check(self.messages, [], "messages")

    def close(self):
        self.client.disconnect()

    def drop(self):
        self.client.sock.close()


def every_qos():
    peer = Peer()
    topic = fresh("qos")
    for subscribed in (0, 1):
        peer.client.subscribe(topic, subscribed)
        for qos in (0, 1):
            peer.client.publish(topic, b"q%d" % qos, qos=qos)
            check(peer.next(), (topic, b"q%d" % qos))
    peer.nothing()
    peer.close()


def many():
    peer = Peer()
    topic = fresh("many")
    peer.client.subscribe(topic, 1)
    for number in range(200):
        peer.client.publish(topic, b"%d" % number, qos=1)
    for number in range(200):
        check(peer.next(), (topic, b"%d" % number))
    peer.nothing()
    peer.close()


def retained():
    topic = fresh("retained")
    publisher = Peer()
    publisher.client.publish(topic, b"kept", retain=True, qos=1)
    late = Peer()
    late.client.subscribe(topic, 1)
    check(late.next(), (topic, b"kept"))
    publisher.client.publish(topic, b"", retain=True, qos=1)
    check(late.next(), (topic, b""))
    later = Peer()
    later.client.subscribe(topic, 1)
    later.nothing()
    for peer in (publisher, late, later):
        peer.close()


def will():
    topic = fresh("will")
    watcher = Peer()
    watcher.client.subscribe(topic, 1)
    Peer(will=(topic, b"gone", False, 1)).drop()
    check(watcher.next(), (topic, b"gone"))
    Peer(will=(topic, b"never", False, 1)).close()
    watcher.nothing()
    watcher.close()


def wildcards():
    root = fresh("wild")
    peer = Peer()
    peer.client.subscribe(root + b"/+/b")
    peer.client.subscribe(root + b"/c/#")
    for topic in (b"/a/b", b"/a/c", b"/c/d/e", b"/c"):
        peer.client.publish(root + topic, b"x", qos=1)
    check([peer.next()[0] for _ in range(3)], [root + b"/a/b", root + b"/c/d/e", root + b"/c"])
    peer.nothing()
    peer.close()


def persistent():
    name, topic = fresh("persistent"), fresh("queue")
    first = Peer(name, clean=False)
    check(first.present, 0, "session present")
    first.client.subscribe(topic, 1)
    first.close()
    publisher = Peer()
    for number in range(10):
        publisher.client.publish(topic, b"%d" % number, qos=1)
    again = Peer(name, clean=False)
    check(again.present, 1, "session present")
    for number in range(10):
        check(again.next(), (topic, b"%d" % number))
    again.nothing()
    again.close()
    clean = Peer(name, clean=True)
    check(clean.present, 0, "session present after a clean session")
    clean.close()
    publisher.close()


def unicode_topics():
    peer = Peer()
    topic = fresh("Straße/温度/\U0001f697")
    peer.client.subscribe(topic, 1)
    peer.client.publish(topic, "23 °C 雪".encode(), qos=1)
    check(peer.next(), (topic, "23 °C 雪".encode()))
    peer.close()


def payloads():
    peer = Peer()
    topic = fresh("payload")
    peer.client.subscribe(topic, 1)
    for size in (0, 127, 128, 16_384, 64 << 10, 900_000):
        for qos in (0, 1):
            peer.client.publish(topic, bytes([size & 0xFF]) * size, qos=qos)
            check(peer.next(), (topic, bytes([size & 0xFF]) * size))
    peer.close()


cases = Cases("umqtt.simple 1.3.4")
for case in (every_qos, many, retained, will, wildcards, persistent, unicode_topics, payloads):
    cases.run(case.__name__, case)
cases.finish()
