#!/usr/bin/env python3
"""One paho client publishes messages one by one to a topic that it subscribes to and measures how long each takes to come back.

    scripts/echo.py --port 1883                  # a broker that runs already: median, p99 and messages per second
    scripts/echo.py --compare                    # starts Debian's mosquitto and Corelane and alternates rounds between them

With --compare it fails if Corelane's median is worse than mosquitto's. paho-mqtt is installed below target/ when missing.
"""

import argparse
import os
import re
import select
import shlex
import socket
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def use_environment_with_paho():
    """Runs this script again with the interpreter of an environment that has paho-mqtt."""
    venv = subprocess.run(
        [os.path.join(ROOT, "tests/clients/venv.sh"), "paho2", "paho-mqtt==2.1.0"], check=True, stdout=subprocess.PIPE, text=True
    )
    os.execv(venv.stdout.strip(), [venv.stdout.strip(), *sys.argv])


try:
    import paho.mqtt.client as mqtt

    if not hasattr(mqtt, "CallbackAPIVersion"):
        raise ImportError("paho-mqtt 1.x")
except ImportError:
    use_environment_with_paho()


def echo(host, port, count, qos, payload_bytes):
    """Seconds that each of `count` messages took to come back, and how long they took together."""
    topic = f"echo/{os.getpid()}"
    arrived = []
    subscribed = []
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=f"echo-{os.getpid()}", protocol=mqtt.MQTTv311)
    client.on_connect = lambda client, *rest: client.subscribe(topic, qos)
    client.on_subscribe = lambda *rest: subscribed.append(True)
    client.on_message = lambda client, data, message: arrived.append(message.payload)
    client.connect(host, port, 60)

    def wait_for(items, length):
        deadline = time.monotonic() + 10
        while len(items) < length:
            if client.loop(1) != mqtt.MQTT_ERR_SUCCESS:
                sys.exit("the connection broke")
            if time.monotonic() > deadline:
                sys.exit("nothing came back for 10 s")

    wait_for(subscribed, 1)
    times = []
    begin = time.perf_counter()
    for number in range(count):
        payload = b"%0*d" % (payload_bytes, number)
        sent = time.perf_counter()
        client.publish(topic, payload, qos)
        wait_for(arrived, number + 1)
        times.append(time.perf_counter() - sent)
        if arrived[-1] != payload:
            sys.exit(f"sent {payload}, received {arrived[-1]}")
    total = time.perf_counter() - begin
    client.disconnect()
    return times, total


def report(label, times, total):
    ordered = sorted(times)
    median, p99 = statistics.median(ordered), ordered[int(len(ordered) * 0.99)]
    print(f"{label}median {median * 1e6:.1f} us, p99 {p99 * 1e6:.1f} us, {len(times) / total:.0f} messages per second", flush=True)
    return median


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(command):
    """Starts a broker on a free port and waits until it says that it listens; process and port."""
    port = free_port()
    command = [*command, "--listen", f"127.0.0.1:{port}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output = b""
    deadline = time.monotonic() + 30
    while not re.search(rb"listening on", output):
        ready = select.select([process.stdout], [], [], max(0, deadline - time.monotonic()))[0]
        more = os.read(process.stdout.fileno(), 65536) if ready else b""
        if not more:
            process.kill()
            sys.exit(f"it did not start: {shlex.join(command)}\n{output.decode(errors='replace')}")
        output += more
    # It may have more to say than a pipe holds, and nobody listens any more.
    subprocess.Popen(["cat"], stdin=process.stdout, stdout=subprocess.DEVNULL)
    return process, port


def compare(arguments):
    corelane = arguments.broker
    if not corelane:
        subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=ROOT, check=True)
        corelane = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release/corelane")
    commands = {"mosquitto": [os.path.join(ROOT, "scripts/mosquitto.sh")], "corelane": shlex.split(corelane)}
    started = {}
    try:
        for name, command in commands.items():
            started[name] = start(command)
        medians = {name: [] for name in commands}
        for round_number in range(arguments.rounds):
            # Who comes first alternates, too.
            for name in list(commands) if round_number % 2 == 0 else reversed(list(commands)):
                times, total = echo("127.0.0.1", started[name][1], arguments.count, arguments.qos, arguments.payload)
                medians[name].append(report(f"round {round_number + 1} {name:<9} ", times, total))
    finally:
        for process, _ in started.values():
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
    mosquitto, corelane = (statistics.median(medians[name]) for name in commands)
    ratio = corelane / mosquitto
    holds = round(ratio, 2) <= 1
    print(f"medians of {arguments.rounds} rounds: mosquitto {mosquitto * 1e6:.1f} us, Corelane {corelane * 1e6:.1f} us")
    print(f"ratio {ratio:.2f}, no worse than 1.00: {'PASS' if holds else 'FAIL'}")
    sys.exit(0 if holds else 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=1883)
    parser.add_argument("--count", type=int, default=2000, help="messages (per round)")
    parser.add_argument("--qos", type=int, choices=(0, 1, 2), default=0)
    parser.add_argument("--payload", type=int, default=64, help="payload bytes")
    parser.add_argument("--compare", action="store_true", help="Corelane against Debian's mosquitto")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each with --compare")
    parser.add_argument("--broker", help="Corelane's command; otherwise it is built")
    arguments = parser.parse_args()
    if arguments.compare:
        compare(arguments)
    else:
        times, total = echo(arguments.host, arguments.port, arguments.count, arguments.qos, arguments.payload)
        report("", times, total)


main()
