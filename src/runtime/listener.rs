//! Listening sockets: one per address and shard (SO_REUSEPORT), so that the kernel spreads new connections and no shard accepts for
//! another. All of them are bound before the shards start, so that an address in use is an error at start.
//!
//! Options are set on the listening socket; Linux lets the sockets it accepts inherit them. Accepting is bounded per turn. When the
//! process has run out of files or memory it stops for a moment: clients wait in the backlog, those already connected are not
//! touched, and nothing spins.

use super::ring::system;
use crate::time::Time;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Connections accepted in one turn, over all listeners of a shard.
pub const ACCEPTS_MAX: usize = 64;
const SUSPENDED_FIRST: Duration = Duration::from_millis(100);
const SUSPENDED_LONGEST: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerOptions {
    pub name: String,
    /// Port 0: the kernel picks one, the same for all shards. An IPv6 address does not listen for IPv4.
    pub address: SocketAddr,
    /// Connections that wait to be accepted, per shard; the kernel caps it at `net.core.somaxconn`.
    pub backlog: u32,
    pub nodelay: bool,
    /// Idle time before the first keep-alive probe, in seconds; 0: no TCP keep-alive. Probes follow at a quarter of it, four in all.
    pub keepalive_s: u32,
    /// How long sent bytes may stay unacknowledged before the connection is given up; 0: the kernel's default.
    pub user_timeout_ms: u32,
    /// Socket buffers in bytes; 0: the kernel sizes them by itself.
    pub receive_buffer_bytes: u32,
    pub send_buffer_bytes: u32,
}

impl ListenerOptions {
    pub fn new(name: impl Into<String>, address: SocketAddr) -> Self {
        Self {
            name: name.into(),
            address,
            backlog: 65_535,
            nodelay: true,
            keepalive_s: 60,
            user_timeout_ms: 30_000,
            receive_buffer_bytes: 0,
            send_buffer_bytes: 0,
        }
    }
}

/// Binds one socket per shard. All have the port that the first one got.
pub fn bind(options: &ListenerOptions, shards: usize) -> io::Result<Vec<TcpListener>> {
    let mut address = options.address;
    // With SO_REUSEPORT a second broker would share the port unnoticed; a socket without it finds whoever listens already.
    if address.port() != 0 {
        let alone = system::tcp_socket(address)?;
        system::set_option(&alone, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        set_v6_only(&alone, address)?;
        system::bind(&alone, address)?;
        system::listen(alone, 1)?;
    }
    let mut sockets = Vec::with_capacity(shards);
    for _ in 0..shards {
        let socket = listen(options, address)?;
        address.set_port(socket.local_addr()?.port());
        sockets.push(socket);
    }
    Ok(sockets)
}

fn set_v6_only(socket: &impl AsRawFd, address: SocketAddr) -> io::Result<()> {
    if address.is_ipv6() { system::set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1) } else { Ok(()) }
}

fn listen(options: &ListenerOptions, address: SocketAddr) -> io::Result<TcpListener> {
    let socket = system::tcp_socket(address)?;
    let tcp = libc::IPPROTO_TCP;
    let number = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    let set = |level, name, value| system::set_option(&socket, level, name, value);
    set(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    set(libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    set(tcp, libc::TCP_NODELAY, i32::from(options.nodelay))?;
    if options.keepalive_s > 0 {
        set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
        set(tcp, libc::TCP_KEEPIDLE, number(options.keepalive_s))?;
        set(tcp, libc::TCP_KEEPINTVL, number(options.keepalive_s.div_ceil(4)))?;
        set(tcp, libc::TCP_KEEPCNT, 4)?;
    }
    if options.user_timeout_ms > 0 {
        set(tcp, libc::TCP_USER_TIMEOUT, number(options.user_timeout_ms))?;
    }
    if options.receive_buffer_bytes > 0 {
        set(libc::SOL_SOCKET, libc::SO_RCVBUF, number(options.receive_buffer_bytes))?;
    }
    if options.send_buffer_bytes > 0 {
        set(libc::SOL_SOCKET, libc::SO_SNDBUF, number(options.send_buffer_bytes))?;
    }
    set_v6_only(&socket, address)?;
    system::bind(&socket, address)?;
    system::listen(socket, number(options.backlog))
}

/// What became of an attempt to accept.
#[derive(Debug, PartialEq, Eq)]
pub enum Accepted {
    Socket(i32),
    /// Nobody waits.
    Nobody,
    /// This one failed before it was accepted; others may wait.
    Failed,
    /// The process is out of files or memory; accepting is suspended. The errno says which.
    Suspended(i32),
}

/// A shard's own socket of one listener.
pub struct Listener {
    socket: TcpListener,
    /// Somebody may be waiting. The socket is watched edge-triggered, so this is remembered until nobody is.
    hot: bool,
    suspended_until: Option<Time>,
    suspended_next: Duration,
}

impl Listener {
    pub fn new(socket: TcpListener) -> Self {
        Self { socket, hot: true, suspended_until: None, suspended_next: SUSPENDED_FIRST }
    }

    pub fn descriptor(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    pub fn on_ready(&mut self) {
        self.hot = true;
    }

    /// Whether accepting now may bring a connection.
    pub fn is_hot(&self, now: Time) -> bool {
        self.hot && self.suspended_until.is_none_or(|until| until <= now)
    }

    /// When accepting goes on by itself.
    pub fn next_deadline(&self) -> Time {
        self.suspended_until.filter(|_| self.hot).unwrap_or(Time::NEVER)
    }

    /// Takes the next connection; `accept` is the system call.
    pub fn accept(&mut self, now: Time, accept: impl FnOnce(i32) -> io::Result<i32>) -> Accepted {
        let error = match accept(self.descriptor()) {
            Ok(socket) => {
                self.suspended_until = None;
                self.suspended_next = SUSPENDED_FIRST;
                return Accepted::Socket(socket);
            }
            Err(error) => error,
        };
        match error.raw_os_error() {
            Some(libc::EAGAIN) => {
                self.hot = false;
                Accepted::Nobody
            }
            Some(errno @ (libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)) => {
                self.suspended_until = Some(now + self.suspended_next);
                self.suspended_next = (self.suspended_next * 2).min(SUSPENDED_LONGEST);
                Accepted::Suspended(errno)
            }
            // ECONNABORTED and the errors of the network that accept(2) says to treat like it.
            _ => Accepted::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    fn options() -> ListenerOptions {
        ListenerOptions::new("test", "127.0.0.1:0".parse().unwrap())
    }

    fn os_error(errno: i32) -> io::Result<i32> {
        Err(io::Error::from_raw_os_error(errno))
    }

    #[test]
    fn accepted_sockets_inherit_the_listeners_options_and_do_not_block() {
        let mut options = options();
        options.keepalive_s = 44;
        options.user_timeout_ms = 12_345;
        options.receive_buffer_bytes = 20_000;
        options.send_buffer_bytes = 30_000;
        let socket = bind(&options, 1).unwrap().remove(0);
        let _client = TcpStream::connect(socket.local_addr().unwrap()).unwrap();
        let accepted = system::accept(socket.as_raw_fd()).unwrap();
        let get = |level, name| system::option(accepted, level, name).unwrap();
        assert_eq!(get(libc::IPPROTO_TCP, libc::TCP_NODELAY), 1);
        assert_eq!(get(libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1);
        assert_eq!(get(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), 44);
        assert_eq!(get(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL), 11);
        assert_eq!(get(libc::IPPROTO_TCP, libc::TCP_KEEPCNT), 4);
        assert_eq!(get(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT), 12_345);
        // The kernel doubles what was asked for, to pay for its own bookkeeping.
        assert_eq!(get(libc::SOL_SOCKET, libc::SO_RCVBUF), 40_000);
        assert_eq!(get(libc::SOL_SOCKET, libc::SO_SNDBUF), 60_000);
        assert_eq!(system::discard(accepted, 1), system::Discarded::Nothing);
        system::close(accepted);
    }

    #[test]
    fn an_address_that_somebody_listens_on_is_an_error_even_if_the_other_would_share_it() {
        let first = bind(&options(), 2).unwrap();
        let address = first[0].local_addr().unwrap();
        assert_eq!(first[1].local_addr().unwrap(), address);
        let again = bind(&ListenerOptions { address, ..options() }, 1);
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(bind(&ListenerOptions { address, ..options() }, 1).is_ok());
    }

    #[test]
    fn without_files_accepting_stops_for_a_tenth_of_a_second_then_longer_and_recovers() {
        let mut listener = Listener::new(bind(&options(), 1).unwrap().remove(0));
        let mut now = Time::from_ms(1_000);
        for expected_ms in [100, 200, 400, 800, 1_000, 1_000] {
            assert!(listener.is_hot(now));
            assert_eq!(listener.accept(now, |_| os_error(libc::EMFILE)), Accepted::Suspended(libc::EMFILE));
            assert!(!listener.is_hot(now));
            assert_eq!(listener.next_deadline() - now, Duration::from_millis(expected_ms));
            now = listener.next_deadline();
        }
        assert_eq!(listener.accept(now, |_| Ok(7)), Accepted::Socket(7));
        assert_eq!(listener.next_deadline(), Time::NEVER);
        assert_eq!(listener.accept(now, |_| os_error(libc::ENOMEM)), Accepted::Suspended(libc::ENOMEM));
        assert_eq!(listener.next_deadline() - now, SUSPENDED_FIRST);
    }

    #[test]
    fn an_aborted_connection_does_not_hide_the_next_one_and_an_empty_backlog_is_not_asked_again() {
        let mut listener = Listener::new(bind(&options(), 1).unwrap().remove(0));
        assert_eq!(listener.accept(Time(0), |_| os_error(libc::ECONNABORTED)), Accepted::Failed);
        assert!(listener.is_hot(Time(0)));
        assert_eq!(listener.accept(Time(0), system::accept), Accepted::Nobody);
        assert!(!listener.is_hot(Time(0)));
        listener.on_ready();
        assert!(listener.is_hot(Time(0)));
    }
}
