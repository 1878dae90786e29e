"""A client that sees every packet: what it is sent and when, which client libraries hide. MQTT 3.1.1, or 5.0 where properties matter."""

import select
import socket
import time

CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, PINGRESP, DISCONNECT = 2, 3, 4, 5, 6, 7, 9, 13, 14


def text(value):
    value = value.encode() if isinstance(value, str) else value
    return len(value).to_bytes(2, "big") + value


def number(value):
    out = b""
    while True:
        value, low = value >> 7, value & 0x7F
        out += bytes([low | (0x80 if value else 0)])
        if not value:
            return out


class Client:
    def __init__(self, port, client_id, version=4, keep_alive_s=60, clean=True):
        self.version = version
        self.received = b""
        self.next_id = 0
        # Of the message that was last given out.
        self.user_properties = []
        # Packets that came while another was waited for.
        self.others = []
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        properties = b"\0" if version == 5 else b""
        head = text("MQTT") + bytes([version, 2 if clean else 0]) + keep_alive_s.to_bytes(2, "big")
        self.send(0x10, head + properties + text(client_id))
        connack = self.wait_for(CONNACK)
        if connack[1] != 0:
            raise AssertionError(f"refused with {connack[1]}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send(self, first_byte, body):
        self.socket.sendall(bytes([first_byte]) + number(len(body)) + body)

    def publish(self, topic, payload, qos=0, user_properties=(), retain=False):
        """Sends and does not wait; the packet's id."""
        body = text(topic)
        if qos:
            self.next_id = self.next_id % 65535 + 1
            body += self.next_id.to_bytes(2, "big")
        if self.version == 5:
            properties = b"".join(b"\x26" + text(name) + text(value) for name, value in user_properties)
            body += number(len(properties)) + properties
        body += payload.encode() if isinstance(payload, str) else payload
        self.send(0x30 | qos << 1 | retain, body)
        return self.next_id

    def deliver(self, topic, payload, qos=1, **more):
        """Publishes and waits until it is acknowledged."""
        self.acknowledged(self.publish(topic, payload, qos, **more), qos)

    def acknowledged(self, packet_id, qos=1, seconds=20):
        if qos == 1:
            self.wait_for(PUBACK, packet_id, seconds)
        elif qos == 2:
            self.wait_for(PUBREC, packet_id, seconds)
            self.send(0x62, packet_id.to_bytes(2, "big"))
            self.wait_for(PUBCOMP, packet_id, seconds)

    def subscribe(self, topic_filter, qos=0):
        self.next_id += 1
        properties = b"\0" if self.version == 5 else b""
        self.send(0x82, self.next_id.to_bytes(2, "big") + properties + text(topic_filter) + bytes([qos]))
        self.wait_for(SUBACK, self.next_id)

    def ping(self, seconds=2):
        self.send(0xC0, b"")
        self.wait_for(PINGRESP, seconds=seconds)

    def message(self, seconds=10):
        """The next message, as topic and payload; acknowledged if it wants to be."""
        return self.parse(self.wait_for(PUBLISH, seconds=seconds))

    def messages(self, count, seconds=20):
        return [self.message(seconds) for _ in range(count)]

    def silent(self, kind, seconds):
        """Nothing of this kind comes."""
        try:
            found = self.wait_for(kind, seconds=seconds)
        except TimeoutError:
            return
        raise AssertionError(f"a packet of type {kind} came: {found[:40]!r}")

    def parse(self, packet):
        qos, packet = packet[0] >> 1 & 3, packet[1:]
        end = 2 + int.from_bytes(packet[:2], "big")
        topic, packet = packet[2:end].decode(), packet[end:]
        if qos:
            packet_id, packet = packet[:2], packet[2:]
            self.send(0x40 if qos == 1 else 0x50, packet_id)
        self.user_properties = []
        if self.version == 5:
            # Those of the tests are shorter than 128 bytes, so their length is one byte.
            properties, packet = packet[1 : 1 + packet[0]], packet[1 + packet[0] :]
            while properties:
                if properties[0] != 0x26:
                    raise AssertionError(f"property {properties[0]:#x} is not expected")
                pair, properties = [], properties[1:]
                for _ in range(2):
                    end = 2 + int.from_bytes(properties[:2], "big")
                    pair.append(properties[2:end].decode())
                    properties = properties[end:]
                self.user_properties.append(tuple(pair))
        return topic, packet

    def wait_for(self, kind, packet_id=None, seconds=10):
        """The body of the next packet of this kind (and id); of a PUBLISH with its first byte before it."""
        deadline = time.monotonic() + seconds
        for index, (other, body) in enumerate(self.others):
            if self.is_it(other, body, kind, packet_id):
                del self.others[index]
                return body
        while True:
            while (taken := self.take()) is not None:
                if self.is_it(*taken, kind, packet_id):
                    return taken[1]
                self.others.append(taken)
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.socket], [], [], left)[0]:
                raise TimeoutError(f"no packet of type {kind} within {seconds} s")
            more = self.socket.recv(1 << 16)
            if not more:
                raise ConnectionError(f"the broker closed the connection; a packet of type {kind} was waited for")
            self.received += more

    @staticmethod
    def is_it(packet, body, kind, packet_id):
        return packet == kind and (packet_id is None or body[:2] == packet_id.to_bytes(2, "big"))

    def take(self):
        """The first packet of what was received, if it is whole: its kind and body."""
        length, at = 0, 1
        while at < len(self.received):
            byte = self.received[at]
            length |= (byte & 0x7F) << 7 * (at - 1)
            at += 1
            if byte < 0x80:
                if len(self.received) < at + length:
                    return None
                kind, body = self.received[0] >> 4, self.received[at : at + length]
                if kind == PUBLISH:
                    body = self.received[:1] + body
                self.received = self.received[at + length :]
                return kind, body
        return None

    def close(self):
        try:
            self.send(0xE0, b"")
        except OSError:
            pass
        self.socket.close()
