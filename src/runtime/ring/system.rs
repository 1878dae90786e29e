//! The system calls that the standard library does not offer, each as a plain function. Descriptors are numbers here, as the pure
//! core carries them; who owns one is said by the file that calls.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Turns a system call's result into the error it stands for.
pub(super) fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(result: i32) -> io::Result<OwnedFd> {
    // SAFETY: the kernel has just made this descriptor and nobody else knows it.
    check(result).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(super) fn epoll_create() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
}

/// Readiness events that there are, or, if `sleep`, the first ones to come: how many of `events` were written. None after a signal.
pub(super) fn epoll_wait(epoll: &OwnedFd, events: &mut [libc::epoll_event], sleep: bool) -> usize {
    let (room, timeout) = (events.len() as i32, if sleep { -1 } else { 0 });
    // SAFETY: the kernel writes at most the slice's length before the call returns.
    let found = unsafe { libc::epoll_wait(epoll.as_raw_fd(), events.as_mut_ptr(), room, timeout) };
    usize::try_from(found).unwrap_or(0)
}

/// A timer of the monotonic clock that is not set.
pub(super) fn timer() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    owned(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) })
}

/// Lets a timer go off after `time`, once; what it was set to before is forgotten.
pub(super) fn set_timer(timer: &OwnedFd, time: Duration) {
    // Zero would switch it off. A time that does not fit is as good as never.
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX).min(1 << 32);
    let value = libc::timespec { tv_sec: seconds, tv_nsec: i64::from(time.subsec_nanos().max(1)) };
    let setting = libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
    // SAFETY: the setting lives through the call; the old one is not asked for. It cannot fail on a timerfd and a valid time.
    unsafe { libc::timerfd_settime(timer.as_raw_fd(), 0, &setting, std::ptr::null_mut()) };
}

/// A doorbell's eventfd. It is never read, because it is watched edge-triggered.
pub fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) })
}

/// Adds one to an eventfd. It would block after 2⁶⁴ times, which nobody rings.
pub fn eventfd_ring(fd: &OwnedFd) {
    let one = 1u64;
    // SAFETY: eight readable bytes that live through the call.
    unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Sleeps until an eventfd is rung.
#[cfg(test)]
pub fn eventfd_wait(fd: i32) {
    let mut count = 0u64;
    // SAFETY: eight writable bytes that live through the call.
    unsafe { libc::read(fd, (&raw mut count).cast(), 8) };
}

/// Lets this thread, and those that it starts, run on one CPU only.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: a set of bits, for which zeros are a value; the CPU has a bit in it; the set lives through the call.
    let result = unsafe {
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut cpus);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const cpus)
    };
    check(result).map(drop)
}

/// Closes a descriptor that the caller owns.
pub fn close(fd: i32) {
    // SAFETY: no pointers.
    unsafe { libc::close(fd) };
}

/// Closes a socket that the caller owns and tells the peer with a reset; what was not sent is forgotten.
pub fn close_with_reset(socket: i32) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the option lives through the call and has the size given.
    unsafe {
        libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), size_of::<libc::linger>() as u32)
    };
    close(socket);
}

/// Ends the sending side: the peer reads everything sent so far, then the end.
pub fn shutdown_send(socket: i32) {
    // SAFETY: no pointers.
    unsafe { libc::shutdown(socket, libc::SHUT_WR) };
}

/// What a socket had to throw away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Discarded {
    /// So many bytes, and there may be more.
    Bytes(usize),
    /// Nothing just now.
    Nothing,
    /// The peer's end, or an error: nothing will come.
    End,
}

/// Throws away up to `max` received bytes of a TCP socket without copying them.
pub fn discard(socket: i32, max: usize) -> Discarded {
    // SAFETY: with MSG_TRUNC, TCP drops the bytes and writes nothing to the (null) buffer.
    let n = unsafe { libc::recv(socket, std::ptr::null_mut(), max, libc::MSG_TRUNC | libc::MSG_DONTWAIT) };
    match usize::try_from(n) {
        Ok(0) => Discarded::End,
        Ok(n) => Discarded::Bytes(n),
        Err(_) => match io::Error::last_os_error().kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Discarded::Nothing,
            _ => Discarded::End,
        },
    }
}

/// Whether nobody is at the other end of a connected socket any more: it is broken, or its peer has closed it and everything the
/// peer sent has been read.
pub fn peer_gone(socket: i32) -> bool {
    let mut poll = libc::pollfd { fd: socket, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one pollfd that lives through the call.
    if unsafe { libc::poll(&mut poll, 1, 0) } <= 0 {
        return false;
    }
    let seen = i32::from(poll.revents);
    seen & i32::from(libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0
        || (seen & i32::from(libc::POLLRDHUP) != 0 && unread_bytes(socket) == 0)
}

/// Bytes received on a socket and not yet read.
pub fn unread_bytes(socket: i32) -> usize {
    let mut n: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int, which lives through the call.
    unsafe { libc::ioctl(socket, libc::FIONREAD, &mut n) };
    usize::try_from(n).unwrap_or(0)
}

/// The next connection of a listening socket, non-blocking; it inherits the listener's other options.
pub fn accept(listener: i32) -> io::Result<i32> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the peer's address is not asked for.
    check(unsafe { libc::accept4(listener, std::ptr::null_mut(), std::ptr::null_mut(), flags) })
}

/// The address at the other end; `None` if it is gone already.
pub fn peer_address(socket: i32) -> Option<SocketAddr> {
    // SAFETY: the caller's socket stays open through the call, and only a copy of it is given away.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    TcpStream::from(socket.try_clone_to_owned().ok()?).peer_addr().ok()
}

/// A non-blocking TCP socket, not yet bound.
pub fn tcp_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: no pointers.
    owned(unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0) })
}

pub fn set_option(socket: &impl AsRawFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    let len = size_of::<i32>() as u32;
    // SAFETY: `value` lives through the call and has the length given.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), len) }).map(drop)
}

/// Receives what a socket has: how many bytes, 0 at the peer's end, or an error's number below 0.
pub fn receive(socket: i32, buffer: &mut [u8]) -> i32 {
    // SAFETY: the kernel writes at most the buffer's length into it.
    let received = unsafe { libc::recv(socket, buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT) };
    if received < 0 { -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) } else { received as i32 }
}

/// Sends as much as the socket takes at once: how many bytes, or an error's number below 0.
pub fn send(socket: i32, bytes: &[u8]) -> i32 {
    // SAFETY: the kernel reads the slice before the call returns.
    let sent = unsafe { libc::send(socket, bytes.as_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    if sent < 0 { -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) } else { sent as i32 }
}

/// Acknowledges what was received now instead of with the next bytes sent, or after the kernel's delay.
pub fn acknowledge_at_once(socket: i32) {
    // It fails only on a socket that has broken, which is found otherwise.
    set_option(&socket, libc::IPPROTO_TCP, libc::TCP_QUICKACK, 1).ok();
}

#[cfg(test)]
pub fn option(socket: i32, level: i32, name: i32) -> io::Result<i32> {
    let (mut value, mut len) = (0i32, size_of::<i32>() as u32);
    // SAFETY: the kernel writes at most `len` bytes to `value`.
    check(unsafe { libc::getsockopt(socket, level, name, (&raw mut value).cast(), &mut len) })?;
    Ok(value)
}

pub fn bind(socket: &OwnedFd, address: SocketAddr) -> io::Result<()> {
    let fd = socket.as_raw_fd();
    match address {
        SocketAddr::V4(address) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: a socket address of the family and size given that lives through the call.
            check(unsafe { libc::bind(fd, (&raw const raw).cast(), size_of::<libc::sockaddr_in>() as u32) })
        }
        SocketAddr::V6(address) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            };
            // SAFETY: as above.
            check(unsafe { libc::bind(fd, (&raw const raw).cast(), size_of::<libc::sockaddr_in6>() as u32) })
        }
    }
    .map(drop)
}

pub fn listen(socket: OwnedFd, backlog: i32) -> io::Result<TcpListener> {
    // SAFETY: no pointers.
    check(unsafe { libc::listen(socket.as_raw_fd(), backlog) })?;
    Ok(TcpListener::from(socket))
}

/// A resource limit: what applies, and up to what the process may raise it by itself. `u64::MAX` means none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResourceLimit {
    pub soft: u64,
    pub hard: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resource {
    OpenFiles,
    LockedMemoryBytes,
}

impl Resource {
    fn number(self) -> libc::__rlimit_resource_t {
        match self {
            Resource::OpenFiles => libc::RLIMIT_NOFILE,
            Resource::LockedMemoryBytes => libc::RLIMIT_MEMLOCK,
        }
    }
}

pub fn resource_limit(resource: Resource) -> io::Result<ResourceLimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one rlimit, which lives through the call.
    check(unsafe { libc::getrlimit(resource.number(), &mut limit) })?;
    Ok(ResourceLimit { soft: limit.rlim_cur, hard: limit.rlim_max })
}

pub fn set_resource_limit(resource: Resource, limit: ResourceLimit) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: limit.soft, rlim_max: limit.hard };
    // SAFETY: one rlimit that lives through the call.
    check(unsafe { libc::setrlimit(resource.number(), &limit) }).map(drop)
}

/// The CPUs that the process may run on, in order.
pub fn affinity() -> io::Result<Vec<usize>> {
    // SAFETY: an all-zero cpu_set_t is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most the size given.
    check(unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) })?;
    // SAFETY: only bits inside the set are looked at.
    Ok((0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect())
}
