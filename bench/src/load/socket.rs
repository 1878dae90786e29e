//! The system calls of the load workers: non-blocking connects from a chosen source, an edge-triggered epoll set with a wait that
//! is exact to the nanosecond, a reset, a file table for each thread, and what a signal leaves. All of the load modules' `unsafe` is here; each block is one system
//! call on descriptors that are open and on memory that is borrowed for the call.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What says that nothing more will come than is there.
const CLOSED: u32 = (libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLRDHUP) as u32;

/// An edge-triggered set of sockets: each is reported once when it becomes readable or writable.
pub struct EdgeSet {
    set: OwnedFd,
    events: Vec<libc::epoll_event>,
}

#[derive(Clone, Copy)]
pub struct Event {
    pub token: u64,
    pub readable: bool,
    pub writable: bool,
    /// The peer has closed, or the connection has failed: reading goes on to its end.
    pub closed: bool,
}

impl EdgeSet {
    pub fn new(batch: usize) -> io::Result<Self> {
        let set = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let set = unsafe { OwnedFd::from_raw_fd(set) };
        Ok(Self { set, events: vec![libc::epoll_event { events: 0, u64: 0 }; batch] })
    }

    pub fn add(&self, descriptor: &impl AsRawFd, token: u64) -> io::Result<()> {
        let events = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET) as u32;
        let mut event = libc::epoll_event { events, u64: token };
        check(unsafe { libc::epoll_ctl(self.set.as_raw_fd(), libc::EPOLL_CTL_ADD, descriptor.as_raw_fd(), &mut event) })?;
        Ok(())
    }

    /// Waits at most so long; how many events [`EdgeSet::event`] then has.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<usize> {
        let timeout = libc::timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        let result = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.set.as_raw_fd(),
                self.events.as_mut_ptr(),
                self.events.len() as i32,
                &timeout,
                std::ptr::null::<libc::sigset_t>(),
                0,
            )
        };
        match check(result as i32) {
            Ok(count) => Ok(count as usize),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error),
        }
    }

    pub fn event(&self, index: usize) -> Event {
        let libc::epoll_event { events, u64: token } = self.events[index];
        Event {
            token,
            readable: events & (libc::EPOLLIN as u32 | CLOSED) != 0,
            writable: events & (libc::EPOLLOUT as u32 | CLOSED) != 0,
            closed: events & CLOSED != 0,
        }
    }
}

/// From now on this thread has a file table of its own, so that the limit of open files counts for it alone.
pub fn own_file_table() -> io::Result<()> {
    check(unsafe { libc::unshare(libc::CLONE_FILES) })?;
    Ok(())
}

/// A non-blocking TCP socket whose connect has begun; TCP_NODELAY is on. The port of `source` is chosen with the connect, so each
/// source address has the whole port range for each destination.
pub fn begin_connect(to: SocketAddr, source: Option<IpAddr>) -> io::Result<OwnedFd> {
    let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let socket = check(unsafe { libc::socket(family, kind, 0) })?;
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    set_option(&socket, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1i32)?;
    if let Some(source) = source {
        set_option(&socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1i32)?;
        let (address, length) = raw_address(SocketAddr::new(source, 0));
        check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })?;
    }
    let (address, length) = raw_address(to);
    match check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) }) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket),
    }
}

/// Why a connect that is no longer in progress failed; `Ok` if it did not.
pub fn take_error(socket: &impl AsRawFd) -> io::Result<()> {
    let mut error = 0i32;
    let mut length = size_of::<i32>() as libc::socklen_t;
    let value = (&raw mut error).cast();
    check(unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ERROR, value, &mut length) })?;
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// Closes with a reset, as a device that loses its power looks to the broker when the network says so.
pub fn reset(socket: OwnedFd) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // Where the option is refused the close is an ordinary one.
    let _ = set_option(&socket, libc::SOL_SOCKET, libc::SO_LINGER, linger);
}

/// Cores of this thread's affinity mask, in ascending order.
pub fn allowed_cores() -> io::Result<Vec<usize>> {
    let mut set: libc::cpu_set_t = unsafe { zeroed() };
    check(unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) })?;
    Ok((0..libc::CPU_SETSIZE as usize).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect())
}

pub fn pin_to(core: usize) -> io::Result<()> {
    let mut set: libc::cpu_set_t = unsafe { zeroed() };
    unsafe { libc::CPU_SET(core, &mut set) };
    check(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) })?;
    Ok(())
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_interrupt(_: i32) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From now on the first SIGINT or SIGTERM only makes [`is_interrupted`] true; a second one ends the process.
pub fn catch_interrupts() -> io::Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let mut action: libc::sigaction = unsafe { zeroed() };
        action.sa_sigaction = note_interrupt as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESETHAND;
        check(unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) })?;
    }
    Ok(())
}

pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Nanoseconds of CLOCK_MONOTONIC: one clock for all threads, so a message's age needs no synchronised clocks.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn set_option<T>(socket: &impl AsRawFd, level: i32, name: i32, value: T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), length) })?;
    Ok(())
}

fn raw_address(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
    let length = match address {
        SocketAddr::V4(address) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                sin_zero: [0; 8],
            };
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(raw) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(address) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            };
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(raw) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, length as libc::socklen_t)
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
