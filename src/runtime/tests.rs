//! The shell against real sockets, with the echo core in place of the broker's.

use super::echo_core::{BLOB_BYTES, EchoCore, PAUSE_MS, PIECE_BYTES, Told};
use super::*;
use crate::shard::Phase;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, channel};

struct Server {
    running: Option<Running>,
    address: SocketAddr,
    told: Receiver<Told>,
}

impl Server {
    fn start(shards: usize) -> Self {
        Self::start_with(shards, RuntimeOptions { sys_interval_s: 0, ..RuntimeOptions::default() }, |_| {})
    }

    fn start_with(shards: usize, options: RuntimeOptions, adapt: impl FnOnce(&mut ListenerOptions)) -> Self {
        let mut listener = ListenerOptions::new("test", "127.0.0.1:0".parse().unwrap());
        adapt(&mut listener);
        let options = RuntimeOptions { shards: ShardCount::N(shards), listeners: vec![listener], ..options };
        let bound = bind(options).unwrap();
        let address = bound.listening[0].1;
        let (tell, told) = channel();
        let new_core = move |core, cores, _now| {
            let tell = tell.clone();
            EchoCore::new(core, cores, move |news| tell.send(news).unwrap_or(()))
        };
        Self { running: Some(bound.start(Clock::start(), None, new_core).unwrap()), address, told }
    }

    fn connect(&self) -> TcpStream {
        let client = TcpStream::connect(self.address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        client.set_nodelay(true).unwrap();
        client
    }

    fn told(&self) -> Told {
        self.told.recv_timeout(Duration::from_secs(10)).unwrap()
    }

    fn shut_down(&mut self) {
        if let Some(running) = self.running.take() {
            running.shut_down().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shut_down();
    }
}

fn read_exactly(client: &mut TcpStream, expected: &[u8]) {
    let mut bytes = vec![0; expected.len()];
    client.read_exact(&mut bytes).unwrap();
    assert!(bytes == expected, "{:?}", String::from_utf8_lossy(&bytes));
}

/// Reads to the end and fails on a reset.
fn read_all(client: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    client.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn two_hundred_clients_on_two_shards_get_back_what_they_send() {
    let server = Server::start(2);
    let mut clients: Vec<TcpStream> = (0..200).map(|_| server.connect()).collect();
    for round in 0..5usize {
        for (number, client) in clients.iter_mut().enumerate() {
            client.write_all(format!("e{round}/{number}").as_bytes()).unwrap();
        }
        for (number, client) in clients.iter_mut().enumerate() {
            read_exactly(client, format!("e{round}/{number}").as_bytes());
        }
    }
}

#[test]
fn more_than_a_batch_buffer_holds_arrives_whole_and_in_order() {
    let server = Server::start(1);
    let mut client = server.connect();
    let sent: Vec<u8> = (0..3_000_000u32).map(|number| b'a' + (number % 7) as u8).collect();
    let mut writer = client.try_clone().unwrap();
    let bytes = sent.clone();
    let writing = std::thread::spawn(move || writer.write_all(&bytes).unwrap());
    read_exactly(&mut client, &sent);
    writing.join().unwrap();
}

#[test]
fn what_a_full_socket_does_not_take_follows_when_the_client_reads_on() {
    let mut server = Server::start_with(1, RuntimeOptions { sys_interval_s: 0, ..RuntimeOptions::default() }, |listener| {
        listener.send_buffer_bytes = 64 << 10
    });
    let mut client = server.connect();
    client.write_all(b"B").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let mut blob = vec![0; BLOB_BYTES];
    client.read_exact(&mut blob).unwrap();
    assert!(blob.iter().enumerate().all(|(index, &byte)| byte == (index >> 20) as u8));
    client.write_all(b"echo").unwrap();
    read_exactly(&mut client, b"echo");
    let board = Arc::clone(&server.running.as_ref().unwrap().board);
    std::thread::sleep(Duration::from_millis(1_200));
    let shell = board.snapshot(Time(0), &mut Vec::new()).shards[0].shell;
    assert!(shell.sends_cut_short > 0, "the socket was never full");
    assert!(shell.turns < 20_000, "a full socket is waited for, not tried again and again: {} turns", shell.turns);
    server.shut_down();
}

#[test]
fn the_second_piece_does_not_wait_until_something_else_wakes_the_shard() {
    let server = Server::start(1);
    let mut client = server.connect();
    let mut quickest = Duration::MAX;
    for _ in 0..5 {
        let started = Instant::now();
        client.write_all(b"M").unwrap();
        read_exactly(&mut client, &[[1; PIECE_BYTES], [2; PIECE_BYTES], [3; PIECE_BYTES]].concat());
        quickest = quickest.min(started.elapsed());
    }
    // A shard with news wakes by itself once a second; that is what must not have helped.
    assert!(quickest < Duration::from_millis(200), "{quickest:?}");
}

#[test]
fn a_client_that_keeps_sending_still_reads_the_last_bytes_before_a_close() {
    let server = Server::start(1);
    let mut client = server.connect();
    client.write_all(b"C").unwrap();
    // It does not know yet that it was told goodbye.
    std::thread::sleep(Duration::from_millis(50));
    for _ in 0..30 {
        client.write_all(&[b'x'; 1000]).unwrap();
    }
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(read_all(&mut client), b"bye");
    assert_eq!(server.told(), Told::Closed);
}

#[test]
fn bytes_that_came_with_the_wish_to_close_do_not_cost_the_client_the_last_bytes() {
    let server = Server::start(1);
    for _ in 0..50 {
        let mut client = server.connect();
        // More than one receive takes: the rest is unread when the core closes.
        let mut sent = vec![b'x'; 40_000];
        sent[0] = b'C';
        client.write_all(&sent).unwrap();
        assert_eq!(read_all(&mut client), b"bye");
    }
}

#[test]
fn a_client_that_does_not_stop_sending_is_cut_off() {
    let server = Server::start(1);
    let mut client = server.connect();
    client.write_all(b"C").unwrap();
    let started = Instant::now();
    let error = loop {
        if let Err(error) = client.write_all(&[b'x'; 10_000]) {
            break error;
        }
        assert!(started.elapsed() < Duration::from_secs(10), "it may send for ever");
    };
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
}

#[test]
fn a_client_that_stays_after_the_close_is_closed_after_a_second() {
    let mut server = Server::start(1);
    let mut client = server.connect();
    client.write_all(b"C").unwrap();
    assert_eq!(read_all(&mut client), b"bye");
    assert_eq!(server.told(), Told::Closed);
    // Nothing reads the socket any more, so a write is answered by a reset, which the next write reports.
    std::thread::sleep(Duration::from_millis(1_300));
    client.write_all(b"x").unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert!(client.write_all(b"x").is_err());
    server.shut_down();
}

#[test]
fn a_connection_that_does_not_take_its_last_bytes_within_a_second_is_reset() {
    let options = RuntimeOptions { sys_interval_s: 0, ..RuntimeOptions::default() };
    let server = Server::start_with(1, options, |listener| listener.send_buffer_bytes = 64 << 10);
    let mut client = server.connect();
    client.write_all(b"B").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(server.told(), Told::End { reset: false });
    let started = Instant::now();
    assert_eq!(server.told(), Told::Closed);
    let lasted = started.elapsed();
    assert!(lasted > Duration::from_millis(800) && lasted < Duration::from_millis(1_500), "{lasted:?}");
    let mut bytes = Vec::new();
    assert_eq!(client.read_to_end(&mut bytes).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn the_end_of_a_client_and_a_reset_are_told_apart() {
    let server = Server::start(1);
    let client = server.connect();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!((server.told(), server.told()), (Told::End { reset: false }, Told::Closed));
    let mut client = server.connect();
    client.write_all(b"echo that is not read").unwrap();
    std::thread::sleep(Duration::from_millis(50));
    drop(client);
    assert_eq!((server.told(), server.told()), (Told::End { reset: true }, Told::Closed));
}

#[test]
fn a_paused_connection_is_not_read_and_is_told_to_have_unread_bytes_and_goes_on_where_it_was() {
    let server = Server::start(1);
    let mut client = server.connect();
    client.write_all(b"P").unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let started = Instant::now();
    client.write_all(b"waits").unwrap();
    assert_eq!(server.told(), Told::Unread);
    read_exactly(&mut client, b"waits");
    let lasted = started.elapsed();
    assert!(lasted > Duration::from_millis(PAUSE_MS - 100), "it was read while paused, after {lasted:?}");
}

#[test]
fn the_rest_of_a_full_receive_waits_when_the_connection_is_paused_by_it() {
    let server = Server::start(1);
    let mut client = server.connect();
    let mut sent = vec![b'P'; ring::RECEIVE_BYTES];
    sent.extend_from_slice(b"the rest");
    client.write_all(&sent).unwrap();
    assert_eq!(server.told(), Told::Unread);
    read_exactly(&mut client, b"the rest");
}

#[test]
fn the_end_that_came_with_the_last_bytes_is_seen_after_them() {
    let server = Server::start(1);
    let mut client = server.connect();
    client.write_all(b"P").unwrap();
    std::thread::sleep(Duration::from_millis(50));
    client.write_all(b"last").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut client), b"last");
    let told: Vec<Told> = std::iter::from_fn(|| Some(server.told())).take_while(|told| *told != Told::Closed).collect();
    assert!(told.contains(&Told::Unread) && told.last() == Some(&Told::End { reset: false }), "{told:?}");
}

#[test]
fn a_paused_connection_that_breaks_is_told_to_be_gone() {
    let server = Server::start(1);
    let mut client = server.connect();
    client.write_all(b"echo").unwrap();
    std::thread::sleep(Duration::from_millis(20));
    client.write_all(b"P").unwrap();
    std::thread::sleep(Duration::from_millis(20));
    drop(client);
    let mut told = server.told();
    if told == Told::Unread {
        told = server.told();
    }
    assert_eq!(told, Told::End { reset: true });
}

#[test]
fn a_connection_moves_to_another_shard_and_lives_on_there() {
    let server = Server::start(2);
    for _ in 0..20 {
        let mut client = server.connect();
        client.write_all(b"Hello").unwrap();
        read_exactly(&mut client, b"movedello");
        assert_eq!(server.told(), Told::Moved { peer_gone: false });
        // Bytes that came while it moved, and those after.
        client.write_all(b"echo").unwrap();
        read_exactly(&mut client, b"echo");
        client.write_all(b"Hhere and there").unwrap();
        client.write_all(b" again").unwrap();
        let mut bytes = vec![0; 25];
        client.read_exact(&mut bytes).unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), "movedhere and there again");
        assert_eq!(server.told(), Told::Moved { peer_gone: false });
        drop(client);
        while server.told() != Told::Closed {}
    }
}

#[test]
fn a_connection_whose_peer_has_gone_arrives_marked_so() {
    let server = Server::start(2);
    for reset in [false, true] {
        let mut client = server.connect();
        if reset {
            client.write_all(b"unread echo").unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
        client.write_all(b"H").unwrap();
        drop(client);
        // A client that is quick is seen to be gone, one that is slow comes to its end after it has moved.
        let moved = server.told();
        assert!(matches!(moved, Told::Moved { .. } | Told::End { .. }), "{moved:?}");
        while server.told() != Told::Closed {}
    }
}

#[test]
fn an_answer_from_another_shard_arrives_whether_the_shards_sleep_or_not() {
    let server = Server::start(2);
    let mut clients: Vec<TcpStream> = (0..20).map(|_| server.connect()).collect();
    for _ in 0..300 {
        for client in &mut clients {
            client.write_all(b"A").unwrap();
            read_exactly(client, b"answered");
        }
    }
    for _ in 0..100 {
        for client in &mut clients {
            client.write_all(b"A").unwrap();
        }
        for client in &mut clients {
            read_exactly(client, b"answered");
        }
    }
}

#[test]
fn two_thousand_clients_at_once_are_all_accepted() {
    let server = Server::start(2);
    let clients: Vec<TcpStream> = (0..2_000).map(|_| server.connect()).collect();
    for client in &clients {
        (&mut &*client).write_all(b"e").unwrap();
    }
    for mut client in clients {
        read_exactly(&mut client, b"e");
    }
}

/// The process's own limit is part of this test, so it runs in a process of its own.
#[test]
fn a_process_without_files_serves_its_clients_and_accepts_again_when_it_can() {
    let name = "runtime::tests::out_of_files";
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "started by the test above"]
fn out_of_files() {
    let server = Server::start(1);
    let mut old = server.connect();
    old.write_all(b"old").unwrap();
    read_exactly(&mut old, b"old");
    let limit = ring::system::resource_limit(ring::system::Resource::OpenFiles).unwrap();
    let few = ring::system::ResourceLimit { soft: 256, ..limit };
    ring::system::set_resource_limit(ring::system::Resource::OpenFiles, few).unwrap();
    let mut hoard = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        hoard.push(file);
    }
    // Room for the client's end only.
    hoard.pop();
    let mut new = server.connect();
    new.write_all(b"new").unwrap();
    std::thread::sleep(Duration::from_millis(1_500));
    let board = &server.running.as_ref().unwrap().board;
    let shell = board.snapshot(Time(0), &mut Vec::new()).shards[0].shell;
    assert!((1..10).contains(&shell.accepts_suspended) && shell.turns < 100, "it spins: {shell:?}");
    old.write_all(b"still here").unwrap();
    read_exactly(&mut old, b"still here");
    hoard.pop();
    read_exactly(&mut new, b"new");
}

#[test]
fn a_shutdown_tells_every_client_and_passes_the_phases_in_order() {
    let mut server = Server::start(2);
    let mut clients: Vec<TcpStream> = (0..100).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.write_all(b"e").unwrap();
        read_exactly(client, b"e");
    }
    let started = Instant::now();
    let reading = std::thread::spawn(move || clients.iter_mut().for_each(|client| assert_eq!(read_all(client), b"shutdown")));
    server.shut_down();
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    reading.join().unwrap();
    let phases: Vec<Phase> =
        server.told.try_iter().filter_map(|told| if let Told::Phase(phase) = told { Some(phase) } else { None }).collect();
    let expected =
        [Phase::ReadsOff, Phase::ReadsOff, Phase::Draining, Phase::Draining, Phase::Disconnecting, Phase::Disconnecting];
    assert_eq!(phases, expected, "both shards enter a phase before either enters the next");
    assert!(TcpStream::connect(server.address).is_err());
}

#[test]
fn core_0_is_given_the_sum_of_all_shards_for_sys() {
    let options = RuntimeOptions { sys_interval_s: 1, ..RuntimeOptions::default() };
    let server = Server::start_with(2, options, |_| {});
    let clients: Vec<TcpStream> = (0..10).map(|_| server.connect()).collect();
    let deadline = Instant::now() + Duration::from_secs(5);
    while server.told() != (Told::Sys { shards: 2, accepted: 10 }) {
        assert!(Instant::now() < deadline);
    }
    drop(clients);
}

#[test]
fn an_idle_shard_sleeps() {
    let server = Server::start(2);
    let _clients: Vec<TcpStream> = (0..100).map(|_| server.connect()).collect();
    std::thread::sleep(Duration::from_millis(1_500));
    let board = &server.running.as_ref().unwrap().board;
    let turns = || board.shards().map(|shard| shard.turn.see().turn).sum::<u64>();
    let before = turns();
    std::thread::sleep(Duration::from_millis(1_000));
    assert!(turns() - before <= 4, "{} turns in an idle second", turns() - before);
}

/// The runtime without the broker: an echo server on port 9300 for the seconds in `ECHO_SECONDS`, to be measured from outside, such as
/// with `echo_load --protocol raw` of `bench/`.
#[test]
#[ignore = "a server for measurements, not a test"]
fn serve_echo_for_measurements() {
    let seconds = std::env::var("ECHO_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let options = RuntimeOptions { sys_interval_s: 0, ..RuntimeOptions::default() };
    let _server = Server::start_with(1, options, |listener| listener.address = "127.0.0.1:9300".parse().unwrap());
    std::thread::sleep(Duration::from_secs(seconds));
}
