//! Each plane of `planes` echoes: bytes come back whole and to whom they belong, whatever their number and whoever else leaves.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const NAMES: [&str; 14] = [
    "epoll",
    "ring-batch",
    "ring-sleep",
    "epoll-wait",
    "registered-files",
    "registered-ring",
    "send-zc",
    "spin",
    "busy-poll",
    "napi",
    "multishot-recv",
    "send-bundle",
    "multishot-poll",
    "glommio",
];

/// More than any plane has in one buffer, or in 64 of the smaller ones.
const LARGE: usize = 300_000;

/// More than the sockets of a connection hold, or all buffers of the planes that share them.
const FILLING: usize = 16_000_000;

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The server and its address; `None` if it says that the kernel cannot do it.
fn start(plane: &str) -> Option<(Server, String)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_planes"));
    let child = command.args(["--plane", plane]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut server = Server(child);
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    if let Some(address) = line.trim().strip_prefix("listening on ") {
        return Some((server, address.to_owned()));
    }
    let mut said = String::new();
    server.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(server.0.wait().unwrap().code(), Some(71), "{plane}: {said}");
    assert_eq!(said.lines().count(), 1, "{plane}: {said}");
    None
}

fn client(address: &str) -> TcpStream {
    let client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    client.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    client
}

/// Sends bytes that differ from place to place and from `seed` to `seed`, and takes them back at the same time, or begins to only after a
/// while, when the sockets are full.
fn echo(plane: &str, client: &TcpStream, seed: usize, count: usize, pause: Duration) {
    let bytes: Vec<u8> = (0..count).map(|index| ((index * 31 + index / 251 + seed * 17) % 256) as u8).collect();
    let mut back = vec![0; count];
    std::thread::scope(|scope| {
        scope.spawn(|| (&mut &*client).write_all(&bytes).unwrap());
        std::thread::sleep(pause);
        (&mut &*client).read_exact(&mut back).unwrap_or_else(|error| panic!("{plane}: {error}"));
    });
    assert!(back == bytes, "{plane}: not what was sent, of {count} bytes");
}

/// The planes that need a kernel later than the broker does.
const LATER: [&str; 4] = ["epoll-wait", "busy-poll", "napi", "send-bundle"];

fn serves(plane: &str) {
    let Some((_server, address)) = start(plane) else {
        return assert!(LATER.contains(&plane), "{plane}: the broker's own kernel cannot do it");
    };
    let clients: Vec<TcpStream> = (0..100).map(|_| client(&address)).collect();
    for round in 0..3 {
        clients.iter().for_each(|client| (&mut &*client).write_all(&[round; 64]).unwrap());
        for client in &clients {
            let mut back = [!round; 64];
            (&mut &*client).read_exact(&mut back).unwrap_or_else(|error| panic!("{plane}: {error}"));
            assert_eq!(back, [round; 64], "{plane}");
        }
    }
    std::thread::scope(|scope| {
        clients.iter().take(8).enumerate().for_each(|(seed, client)| {
            scope.spawn(move || (1..=3).for_each(|times| echo(plane, client, seed, LARGE * times, Duration::ZERO)));
        });
    });
    echo(plane, &clients[0], 98, FILLING, Duration::from_millis(300));
    // The last bytes come back before the end, and the end comes.
    for mut client in clients {
        client.write_all(b"last").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut back = Vec::new();
        client.read_to_end(&mut back).unwrap_or_else(|error| panic!("{plane}: {error}"));
        assert_eq!(back, b"last", "{plane}");
    }
    echo(plane, &client(&address), 99, LARGE, Duration::ZERO);
}

#[test]
fn each_plane_echoes() {
    corelane_bench::process::raise_file_limit().unwrap();
    std::thread::scope(|scope| NAMES.map(|plane| scope.spawn(move || serves(plane))).map(|thread| thread.join().unwrap()));
}

#[test]
fn the_list_names_all_planes() {
    let output = Command::new(env!("CARGO_BIN_EXE_planes")).arg("--list").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let names: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, NAMES);
}

#[test]
fn cancelling_and_closing_are_told() {
    let told = |option: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_planes")).args(option).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let cancelled = told(&["--cancel", "1000"]);
    assert!(cancelled.lines().all(|line| line.starts_with("1000 armed, ")), "{cancelled}");
    assert_eq!(cancelled.lines().count(), 4, "{cancelled}");
    let closed = told(&["--close"]);
    assert_eq!(closed.trim(), "closed with a receive armed: no FIN within 500 ms; after the receive was cancelled: a FIN");
}
