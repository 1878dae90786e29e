"""What the cases talk to: the broker with a configuration of its own, Kafka (the real one or librdkafka's mock cluster), MongoDB, HTTP."""

import http.server
import itertools
import json
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time


def free_port():
    """Below the ports that the kernel gives to outgoing connections, so that nobody takes it meanwhile."""
    while True:
        port = random.randrange(12000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def until(condition, seconds=20, what="it"):
    """Waits until the condition has a value that counts as true, and gives it."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {seconds} s; last seen: {value!r}")
        time.sleep(0.05)


class Broker:
    """A directory and a process in it, which may end and begin again."""

    running = []

    def __init__(self, command, directory, settings, config):
        program, *arguments = shlex.split(command)
        # Found from where the run began: the broker itself starts in a directory of its own.
        self.command = [os.path.abspath(shutil.which(program) or program), *arguments]
        self.directory = directory
        self.port = free_port()
        os.makedirs(directory, exist_ok=True)
        with open(self.path("broker.toml"), "w") as file:
            file.write(f"[broker]\nshards = 2\nsys_interval_s = 1\n{settings}\n{config}")
        self.process = None
        self.start()

    def path(self, *parts):
        return os.path.join(self.directory, *parts)

    def start(self):
        log = open(self.path("log"), "ab")
        command = [*self.command, "--config", self.path("broker.toml"), "--listen", f"127.0.0.1:{self.port}"]
        self.process = subprocess.Popen(command, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        Broker.running.append(self.process)
        until(self.listens, 20, f"the broker's start ({self.log_end()})")

    def listens(self):
        if self.process.poll() is not None:
            raise AssertionError(f"the broker ended with {self.process.returncode}: {self.log_end()}")
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def log_end(self):
        with open(self.path("log"), errors="replace") as file:
            return " | ".join(file.read().splitlines()[-5:])

    def stop(self):
        """In order; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def kill(self):
        self.process.kill()
        self.process.wait(10)

    def lines(self, name):
        """Lines of JSON in a file of its directory; one that is being written does not count."""
        try:
            with open(self.path(name)) as file:
                return [json.loads(line) for line in file if line.endswith("\n")]
        except FileNotFoundError:
            return []

    @classmethod
    def kill_all(cls):
        for process in cls.running:
            if process.poll() is None:
                process.kill()
                process.wait()


class RealKafka:
    name = "Kafka"
    is_mock = False

    def __init__(self, script, port):
        self.script = [script]
        self.port = port
        self.brokers = f"127.0.0.1:{port}"

    def do(self, command):
        return subprocess.run([*self.script, command, "--port", str(self.port)], check=True, stdout=subprocess.PIPE, text=True).stdout

    def settings(self, heading):
        """What the script says that a broker's configuration needs, below this heading."""
        _, _, rest = self.do("start").partition(f"{heading}:\n")
        return "".join(f"{line.strip()}\n" for line in itertools.takewhile(lambda line: line.startswith(" "), rest.splitlines()))

    def down(self):
        self.do("kill")

    def up(self):
        self.do("start")

    def end(self):
        self.do("reset")


class MockKafka:
    name = "librdkafka's mock cluster"
    is_mock = True

    def __init__(self, program):
        self.process = subprocess.Popen([program, "mock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.brokers = self.process.stdout.readline().strip()

    def do(self, command):
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        self.process.stdout.readline()

    def down(self):
        self.do("down")

    def up(self):
        self.do("up")

    def end(self):
        self.process.stdin.close()
        self.process.wait(10)


class Web:
    """An HTTP server that keeps what it is sent and answers with the status it is told."""

    def __init__(self):
        web = self
        self.requests = []
        self.status = 200
        # What a body is answered with, if it is not the status.
        self.refuses = None

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                status = web.refuses(body) if web.refuses else web.status
                web.requests.append((self.path, dict(self.headers), body, status, self.client_address[1]))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_PUT = do_POST

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def accepted(self):
        """Bodies that were answered with 200."""
        return [body for _, _, body, status, _ in self.requests if status == 200]
