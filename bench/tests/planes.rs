//! Every plane of `planes` echoes what it is sent, to whom it came from; a broken one would be measured as a fast one.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const PLANES: &str = env!("CARGO_BIN_EXE_planes");
/// The exit code of a plane that the kernel does not have.
const UNSUPPORTED: i32 = 3;

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Starts a plane; `None` where the kernel does not have it.
fn start(plane: &str) -> Option<(Server, SocketAddr)> {
    let mut server = Server(Command::new(PLANES).args(["--plane", plane]).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    match line.trim_end().strip_prefix("listening on ") {
        Some(address) => Some((server, address.parse().unwrap())),
        None => {
            assert_eq!(server.0.wait().unwrap().code(), Some(UNSUPPORTED), "{plane}: {line}");
            None
        }
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + seed * 17 + at / 251) as u8).collect()
}

#[test]
fn every_plane_echoes_what_it_is_sent() {
    let list = Command::new(PLANES).arg("--list").output().unwrap();
    let names: Vec<String> = String::from_utf8(list.stdout).unwrap().lines().map(str::to_owned).collect();
    assert_eq!(names.len(), 12, "{names:?}");
    for plane in &names {
        let Some((mut server, address)) = start(plane) else {
            eprintln!("{plane}: not on this kernel");
            continue;
        };
        let mut clients: Vec<TcpStream> = (0..5).map(|_| connect(address)).collect();
        // One at a time, then all at once; single bytes, and more than any plane's buffer.
        for len in [1, 100, 40_000] {
            for (seed, client) in clients.iter_mut().enumerate() {
                client.write_all(&pattern(seed, len)).unwrap();
                if len == 1 {
                    client.read_exact(&mut [0]).unwrap();
                }
            }
            for (seed, client) in clients.iter_mut().enumerate().filter(|_| len > 1) {
                let mut echo = vec![0; len];
                client.read_exact(&mut echo).unwrap_or_else(|error| panic!("{plane}: {len} bytes: {error}"));
                assert!(echo == pattern(seed, len), "{plane}: not the echo of {len} bytes");
            }
        }
        // Who leaves disturbs nobody, and its descriptor serves the next.
        clients.truncate(2);
        std::thread::sleep(Duration::from_millis(50));
        clients.extend((0..3).map(|_| connect(address)));
        for round in 0..200 {
            for (seed, client) in clients.iter_mut().enumerate() {
                client.write_all(&pattern(seed + round, 100)).unwrap();
            }
            for (seed, client) in clients.iter_mut().enumerate() {
                let mut echo = [0; 100];
                client.read_exact(&mut echo).unwrap_or_else(|error| panic!("{plane}: round {round}: {error}"));
                assert!(echo[..] == pattern(seed + round, 100), "{plane}: not the echo of round {round}");
            }
        }
        assert!(server.0.try_wait().unwrap().is_none(), "{plane} ended");
    }
}

#[test]
fn a_cancel_finds_its_request_among_many() {
    let output = Command::new(PLANES).args(["--cancel", "5000"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("armed=5000 cancels=1000 us_each="));
}
