//! The network plane of one shard, and the only place in the crate with `unsafe`.
//!
//! Sockets sit edge-triggered behind one epoll fd. What is ready is received, and what is owed is sent, in rounds: a [`Round`]
//! gathers the sends and receives of a turn, [`Round::exchange`] performs them with one `io_uring_enter`, or with the plain system
//! call if there is only one. A shard sleeps in `epoll_wait`, where the doorbell and the timer wake it as well as the sockets. Another
//! plane can be measured in this one's place by offering the same few calls: `watch`, `ready`, `round` (`send`, `receive`,
//! `exchange`), `sent`, `received`, `sleep`.
//!
//! What always holds, and why the `unsafe` below is sound:
//! 1. *Nothing of a round outlives its exchange.* Each send and receive carries MSG_DONTWAIT, which makes the kernel complete the
//!    request, with whatever result, before `io_uring_enter` returns; it is never armed, punted to a worker or retried. So the
//!    buffers it points to are free again when `exchange` returns: nothing is ever cancelled and closing a socket is free.
//! 2. *A pointer reaches the kernel only inside the borrow it came from.* A round keeps its requests in a list of its own and puts
//!    them into the submission queue inside `exchange`, while it still borrows the bytes to send. A round that is dropped or leaked
//!    has submitted nothing. If the kernel refuses to take all of a round, the plane is `broken` and enters no more.
//! 3. *A full send leaves no completion* (CQE_SKIP_SUCCESS); MSG_WAITALL makes a short one a failure, which always completes, with
//!    the count. The kernel does both from 6.1 on (`io_uring_notes.md` names the sources; the tests below check the running one).
//! 4. The ring is used by the thread that made it (SINGLE_ISSUER); [`Plane`] is neither `Send` nor `Sync`.

#![allow(unsafe_code)]

pub mod system;

use crate::time::Time;
use io_uring::{IoUring, opcode, squeue, types};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, OwnedFd};

/// Sockets received from in one exchange.
pub const RECEIVES_MAX: usize = 64;
/// The buffer of one receive. A receive that fills it says that there may be more.
pub const RECEIVE_BYTES: usize = 16 << 10;
/// Connections sent to in one exchange: at about 2 µs each this bounds what one `io_uring_enter` takes.
pub const SENDS_MAX: usize = 256;
/// Readiness events taken from the epoll fd at once.
const EVENTS_MAX: usize = 64;

const SUBMISSIONS: u32 = 512;
/// All that one exchange can complete fits with room to spare: the queue never overflows.
const COMPLETIONS: u32 = 1024;
const _: () = assert!(SENDS_MAX + RECEIVES_MAX <= SUBMISSIONS as usize && SUBMISSIONS < COMPLETIONS);

/// What a completion belongs to: the upper half of `user_data`; the lower half is the position in its round.
mod kind {
    pub const SEND: u64 = 1 << 32;
    pub const RECEIVE: u64 = 2 << 32;
    pub const MASK: u64 = !0 << 32;
}

/// Tokens of the plane's own descriptors in the epoll fd; no connection or listener has them.
const DOORBELL: u64 = u64::MAX;
const TIMER: u64 = u64::MAX - 1;

/// What a socket is watched for, once and for all: a socket that was full reports that it has room again by itself.
const INTEREST: u32 = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET) as u32;

/// A readiness event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    pub token: u64,
    events: u32,
}

impl Ready {
    /// There is something to receive: bytes, the end, or an error.
    pub fn readable(self) -> bool {
        self.has(libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR)
    }

    pub fn writable(self) -> bool {
        self.has(libc::EPOLLOUT)
    }

    /// The peer has sent its last byte or is gone: receive until that shows.
    pub fn ending(self) -> bool {
        self.has(libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR)
    }

    /// The connection is gone in both directions.
    pub fn broken(self) -> bool {
        self.has(libc::EPOLLHUP | libc::EPOLLERR)
    }

    fn has(self, mask: i32) -> bool {
        self.events & mask as u32 != 0
    }
}

/// The one request of a round that has only one.
#[derive(Clone, Copy)]
enum Only<'bytes> {
    Send { socket: i32, bytes: &'bytes [u8] },
    Receive { socket: i32 },
}

pub struct Plane {
    ring: IoUring,
    epoll: OwnedFd,
    /// Readiness events; those of the last sleep stand here until they are taken.
    events: Vec<libc::epoll_event>,
    found: Option<usize>,
    /// The last look at the epoll fd filled `events`.
    more: bool,
    /// A timerfd, and when it will go off. It is not set anew for a later time, which would cost a system call for each sleep: it
    /// goes off early, once, and is set then.
    timer: OwnedFd,
    timer_at: Time,
    broken: bool,
    buffers: Box<[u8]>,
    /// The round being gathered.
    requests: Vec<squeue::Entry>,
    /// Results of the last exchange: bytes, or a negative errno.
    sent: Vec<i32>,
    received: Vec<i32>,
    #[cfg(test)]
    completions: usize,
    _only_on_its_thread: PhantomData<*mut ()>,
}

impl Plane {
    /// The plane of the calling thread. `doorbell` is an eventfd that stays open as long as the plane.
    ///
    /// # Errors
    /// What the kernel says when it refuses the ring, the epoll fd or the timer; `probe` turns that into advice before a shard starts.
    pub fn new(doorbell: i32) -> io::Result<Self> {
        let empty = libc::epoll_event { events: 0, u64: 0 };
        let plane = Self {
            ring: build_ring(SUBMISSIONS, COMPLETIONS)?,
            epoll: system::epoll_create()?,
            events: vec![empty; EVENTS_MAX],
            found: None,
            more: false,
            timer: system::timer()?,
            timer_at: Time::NEVER,
            broken: false,
            buffers: vec![0; RECEIVES_MAX * RECEIVE_BYTES].into_boxed_slice(),
            requests: Vec::with_capacity(SUBMISSIONS as usize),
            sent: Vec::with_capacity(SENDS_MAX),
            received: Vec::with_capacity(RECEIVES_MAX),
            #[cfg(test)]
            completions: 0,
            _only_on_its_thread: PhantomData,
        };
        plane.watch(doorbell, DOORBELL)?;
        plane.watch(plane.timer.as_raw_fd(), TIMER)?;
        Ok(plane)
    }

    /// Watches a socket; `token` comes back with each of its events, the first at once.
    pub fn watch(&self, socket: i32, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, socket, token)
    }

    /// Gives a watched socket another token. What it is ready for now is reported again, with the new token.
    pub fn rewatch(&self, socket: i32, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, socket, token)
    }

    /// No longer watches a socket that stays open elsewhere. A socket that is closed needs no unwatching.
    pub fn unwatch(&self, socket: i32) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, socket, 0)
    }

    fn control(&self, operation: i32, socket: i32, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: INTEREST, u64: token };
        // SAFETY: `event` lives through the call, which copies it.
        system::check(unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, socket, &mut event) }).map(drop)
    }

    /// Whether the last [`Plane::ready`] may have left events behind.
    pub fn may_be_ready(&self) -> bool {
        self.more
    }

    /// Appends at most a batch of readiness events: those that ended the sleep, or else what one system call finds.
    pub fn ready(&mut self, out: &mut Vec<Ready>) {
        let found = match self.found.take() {
            Some(found) => found,
            None => system::epoll_wait(&self.epoll, &mut self.events, false),
        };
        self.more = found == EVENTS_MAX;
        for event in &self.events[..found] {
            match event.u64 {
                // Edge-triggered, so that neither has to be read: each ring and each going-off is an event of its own.
                DOORBELL => {}
                TIMER => self.timer_at = Time::NEVER,
                token => out.push(Ready { token, events: event.events }),
            }
        }
    }

    /// Sleeps until a socket is ready, the doorbell rings or it is `until`; it may end early. What it found is what
    /// [`Plane::ready`] gives next, which must be asked before another sleep.
    pub fn sleep(&mut self, now: Time, until: Time) {
        debug_assert!(self.found.is_none());
        if until < self.timer_at {
            self.timer_at = until;
            system::set_timer(&self.timer, until - now);
        }
        self.found = Some(system::epoll_wait(&self.epoll, &mut self.events, true));
    }

    /// Begins a round. What an earlier one gathered and did not exchange is forgotten.
    pub fn round<'bytes>(&mut self) -> Round<'_, 'bytes> {
        self.requests.clear();
        self.sent.clear();
        self.received.clear();
        Round { plane: self, only: None }
    }

    /// What became of a send of the last round, by its position: the bytes that went out (fewer than offered: the socket is full)
    /// or the errno. EAGAIN means that the socket was full already; it will report when it has room.
    pub fn sent(&self, position: usize) -> Result<usize, i32> {
        let result = self.sent[position];
        usize::try_from(result).map_err(|_| -result)
    }

    /// What a receive of the last round got, by its position. Nothing (`Ok(&[])`) is the peer's end; EAGAIN means no bytes yet.
    pub fn received(&self, position: usize) -> Result<&[u8], i32> {
        let result = self.received[position];
        let len = usize::try_from(result).map_err(|_| -result)?;
        let start = position * RECEIVE_BYTES;
        Ok(&self.buffers[start..start + len])
    }

    /// Hands `requests` to the kernel and takes their completions.
    fn enter(&mut self) -> io::Result<()> {
        if self.broken {
            return Err(io::Error::other("the ring failed before"));
        }
        {
            let mut queue = self.ring.submission();
            for request in &self.requests {
                // SAFETY: invariants 1 and 2: what the request points to is borrowed, or owned by this plane, until the enter below
                // has returned, and afterwards the kernel does not use it.
                unsafe { queue.push(request) }.expect("a round fits the submission queue");
            }
        }
        let mut unsubmitted = self.requests.len();
        self.requests.clear();
        while unsubmitted > 0 {
            // SAFETY: no argument is a pointer.
            match unsafe { self.ring.submitter().enter::<libc::sigset_t>(unsubmitted as u32, 0, 0, None) } {
                Ok(submitted) => unsubmitted -= submitted.min(unsubmitted),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // The kernel is short of memory for requests, or has completions to get rid of first.
                    Some(libc::EAGAIN | libc::EBUSY) => std::thread::yield_now(),
                    _ => {
                        self.broken = true;
                        return Err(error);
                    }
                },
            }
            self.reap();
            unsubmitted = unsubmitted.min(self.ring.submission().len());
        }
        Ok(())
    }

    /// Takes all completions.
    fn reap(&mut self) {
        for completion in self.ring.completion() {
            let position = completion.user_data() as u32 as usize;
            #[cfg(test)]
            {
                self.completions += 1;
            }
            match completion.user_data() & kind::MASK {
                kind::SEND => self.sent[position] = completion.result(),
                kind::RECEIVE => self.received[position] = completion.result(),
                other => unreachable!("no request carries {other:#x}"),
            }
        }
    }
}

/// The sends and receives of one turn. Dropped without [`Round::exchange`], none of it happens.
pub struct Round<'plane, 'bytes> {
    plane: &'plane mut Plane,
    /// What was asked for last.
    only: Option<Only<'bytes>>,
}

impl<'bytes> Round<'_, 'bytes> {
    /// Sends as much of `bytes` as the socket takes at once. At most one send per socket and round: two could overtake each other.
    /// Panics past [`SENDS_MAX`].
    pub fn send(&mut self, socket: i32, bytes: &'bytes [u8]) {
        let plane = &mut *self.plane;
        let position = plane.sent.len();
        assert!(position < SENDS_MAX);
        // More than this at once says nothing new, and the kernel counts in i32.
        let len = bytes.len().min(1 << 30) as u32;
        plane.sent.push(len as i32);
        self.only = Some(Only::Send { socket, bytes: &bytes[..len as usize] });
        let send = opcode::Send::new(types::Fd(socket), bytes.as_ptr(), len)
            .flags(libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL)
            .build()
            .flags(squeue::Flags::SKIP_SUCCESS)
            .user_data(kind::SEND | position as u64);
        plane.requests.push(send);
    }

    /// Receives what the socket has, at most [`RECEIVE_BYTES`]. Panics past [`RECEIVES_MAX`].
    pub fn receive(&mut self, socket: i32) {
        let plane = &mut *self.plane;
        self.only = Some(Only::Receive { socket });
        let position = plane.received.len();
        let start = position * RECEIVE_BYTES;
        let buffer = &mut plane.buffers[start..start + RECEIVE_BYTES];
        let receive = opcode::Recv::new(types::Fd(socket), buffer.as_mut_ptr(), RECEIVE_BYTES as u32)
            .flags(libc::MSG_DONTWAIT)
            .build()
            .user_data(kind::RECEIVE | position as u64);
        // Overwritten by its completion.
        plane.received.push(-libc::EAGAIN);
        plane.requests.push(receive);
    }

    /// Performs the round: one system call, none if there is nothing to do.
    ///
    /// # Errors
    /// Only what leaves the ring unusable; the shard cannot go on.
    pub fn exchange(self) -> io::Result<()> {
        let plane = self.plane;
        match (plane.requests.len(), self.only) {
            (0, _) => return Ok(()),
            // One message that woke the shard: the plain system call is the cheaper one.
            (1, Some(Only::Receive { socket })) => {
                plane.received[0] = system::receive(socket, &mut plane.buffers[..RECEIVE_BYTES]);
            }
            (1, Some(Only::Send { socket, bytes })) => plane.sent[0] = system::send(socket, bytes),
            _ => return plane.enter(),
        }
        plane.requests.clear();
        Ok(())
    }
}

/// The ring as every shard uses it; `probe` makes one too, to see whether it is allowed.
pub fn build_ring(submissions: u32, completions: u32) -> io::Result<IoUring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        // A request that is refused must not hold back those behind it.
        .setup_submit_all()
        .setup_cqsize(completions)
        .dontfork()
        .build(submissions)
}

#[cfg(test)]
mod tests {
    use super::system::{eventfd, eventfd_ring};
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::IntoRawFd;
    use std::time::{Duration, Instant};

    struct World {
        plane: Plane,
        bell: OwnedFd,
    }

    fn world() -> World {
        let bell = eventfd().unwrap();
        let mut world = World { plane: Plane::new(bell.as_raw_fd()).unwrap(), bell };
        // An eventfd can be written to, which is an event too.
        assert!(world.ready().is_empty());
        world
    }

    /// A non-blocking socket and the client at its other end.
    fn pair() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = listener.accept().unwrap().0;
        socket.set_nonblocking(true).unwrap();
        (socket.into(), client)
    }

    impl World {
        fn exchange(&mut self, sends: &[(&OwnedFd, &[u8])], receives: &[&OwnedFd]) {
            let mut round = self.plane.round();
            for (socket, bytes) in sends {
                round.send(socket.as_raw_fd(), bytes);
            }
            for socket in receives {
                round.receive(socket.as_raw_fd());
            }
            round.exchange().unwrap();
        }

        fn ready(&mut self) -> Vec<Ready> {
            let mut events = Vec::new();
            self.plane.ready(&mut events);
            events
        }
    }

    const QUIET: Duration = Duration::from_millis(100);

    /// Whether a sleep of this length lasts so long and ends with no event.
    fn sleeps_on(world: &mut World, time: Duration) -> bool {
        let started = Instant::now();
        world.plane.sleep(Time(0), Time(0) + time);
        let is_quiet = world.ready().is_empty();
        is_quiet && started.elapsed() >= time
    }

    /// What ends a sleep, which must not last.
    fn wakes(world: &mut World) -> Vec<Ready> {
        let started = Instant::now();
        world.plane.sleep(Time(0), Time(0) + Duration::from_secs(10));
        assert!(started.elapsed() < Duration::from_secs(10), "nothing came");
        world.ready()
    }

    #[test]
    fn a_full_send_completes_silently() {
        let mut world = world();
        let (first, mut client) = pair();
        let (second, _second_client) = pair();
        world.exchange(&[(&first, b"hello"), (&second, b"you")], &[]);
        assert_eq!((world.plane.sent(0), world.plane.sent(1)), (Ok(5), Ok(3)));
        assert_eq!(world.plane.completions, 0);
        let mut bytes = [0; 5];
        client.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"hello");
    }

    #[test]
    fn a_sleep_lasts_as_long_as_said_whatever_was_said_before() {
        let mut world = world();
        world.ready();
        for ms in [30, 10, 50] {
            assert!(sleeps_on(&mut world, Duration::from_millis(ms)));
        }
    }

    #[test]
    fn a_timer_that_was_set_for_an_earlier_time_goes_off_once() {
        let mut world = world();
        world.ready();
        eventfd_ring(&world.bell);
        assert!(!sleeps_on(&mut world, QUIET), "the doorbell ends it");
        let started = Instant::now();
        assert!(wakes(&mut world).is_empty(), "the timer, which was still set");
        assert!(started.elapsed() >= QUIET / 2);
        assert!(sleeps_on(&mut world, QUIET * 2));
    }

    #[test]
    fn a_send_to_a_socket_that_gets_full_reports_how_far_it_came_and_the_next_one_that_it_is_full() {
        let mut world = world();
        let (socket, mut client) = pair();
        world.plane.watch(socket.as_raw_fd(), 7).unwrap();
        world.exchange(&[], &[]);
        assert!(world.ready().iter().all(|event| event.writable()));
        let bytes = vec![1u8; 64 << 20];
        world.exchange(&[(&socket, &bytes)], &[]);
        let sent = world.plane.sent(0).unwrap();
        assert!(sent > 0 && sent < bytes.len(), "{sent}");
        // The peer's kernel may still have moved some of it, so it can take a little more before it is full for good.
        let mut total = sent;
        loop {
            world.exchange(&[(&socket, &bytes[total..])], &[]);
            match world.plane.sent(0) {
                Ok(more) => total += more,
                Err(errno) => break assert_eq!(errno, libc::EAGAIN),
            }
        }
        // Nothing stays armed: when there is room again nothing is sent by itself, and readiness says so instead.
        world.ready();
        let mut received = vec![0; total];
        client.read_exact(&mut received).unwrap();
        let events = wakes(&mut world);
        assert!(events.iter().any(|event| event.token == 7 && event.writable()), "{events:?}");
        client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        assert!(client.read(&mut received).is_err(), "a send went on after its exchange");
    }

    #[test]
    fn a_send_to_a_connection_that_is_gone_reports_it_and_raises_no_signal() {
        let mut world = world();
        let (socket, mut client) = pair();
        world.exchange(&[(&socket, b"not read")], &[]);
        client.write_all(b"x").unwrap();
        drop(client);
        std::thread::sleep(Duration::from_millis(20));
        world.exchange(&[(&socket, b"lost")], &[]);
        let first = world.plane.sent(0);
        world.exchange(&[(&socket, b"lost")], &[]);
        assert!(matches!(first, Err(libc::ECONNRESET | libc::EPIPE)), "{first:?}");
        assert_eq!(world.plane.sent(0), Err(libc::EPIPE));
    }

    #[test]
    fn results_belong_to_their_own_sockets_whatever_happens_to_the_others() {
        let mut world = world();
        let (first, mut first_client) = pair();
        let (second, second_client) = pair();
        let (third, _third_client) = pair();
        first_client.write_all(b"one").unwrap();
        drop(second_client);
        std::thread::sleep(Duration::from_millis(20));
        let closed = eventfd().unwrap().into_raw_fd();
        system::close(closed);
        let mut round = world.plane.round();
        round.send(closed, b"nowhere");
        round.send(first.as_raw_fd(), b"reply");
        for socket in [first.as_raw_fd(), second.as_raw_fd(), third.as_raw_fd(), closed] {
            round.receive(socket);
        }
        round.exchange().unwrap();
        assert_eq!((world.plane.sent(0), world.plane.sent(1)), (Err(libc::EBADF), Ok(5)));
        let received: Vec<_> = (0..4).map(|position| world.plane.received(position)).collect();
        assert_eq!(received, [Ok(&b"one"[..]), Ok(&b""[..]), Err(libc::EAGAIN), Err(libc::EBADF)]);
    }

    #[test]
    fn a_receive_that_finds_nothing_is_over_and_does_not_take_bytes_that_come_later() {
        let mut world = world();
        let (socket, mut client) = pair();
        world.exchange(&[], &[&socket]);
        assert_eq!(world.plane.received(0), Err(libc::EAGAIN));
        client.write_all(b"later").unwrap();
        world.exchange(&[], &[]);
        world.exchange(&[], &[&socket]);
        assert_eq!(world.plane.received(0), Ok(&b"later"[..]));
    }

    #[test]
    fn a_full_round_of_sends_and_receives_fits() {
        let mut world = world();
        let pairs: Vec<_> = (0..SENDS_MAX).map(|_| pair()).collect();
        let sends: Vec<(&OwnedFd, &[u8])> = pairs.iter().map(|(socket, _)| (socket, &b"x"[..])).collect();
        let receives: Vec<&OwnedFd> = pairs.iter().take(RECEIVES_MAX).map(|(socket, _)| socket).collect();
        for (_, client) in &pairs {
            (&mut &*client).write_all(b"y").unwrap();
        }
        world.exchange(&sends, &receives);
        assert!((0..SENDS_MAX).all(|position| world.plane.sent(position) == Ok(1)));
        assert!((0..RECEIVES_MAX).all(|position| world.plane.received(position) == Ok(b"y")));
    }

    #[test]
    fn readiness_and_the_doorbell_end_a_sleep_each_time() {
        let mut world = world();
        let (socket, mut client) = pair();
        world.plane.watch(socket.as_raw_fd(), 9).unwrap();
        world.exchange(&[], &[]);
        world.ready();
        for _ in 0..3 {
            assert!(sleeps_on(&mut world, QUIET));
            client.write_all(b"x").unwrap();
            let events = wakes(&mut world);
            assert!(events.len() == 1 && events[0].token == 9 && events[0].readable(), "{events:?}");
            assert!(sleeps_on(&mut world, QUIET));
            eventfd_ring(&world.bell);
            assert!(wakes(&mut world).is_empty());
        }
    }

    #[test]
    fn more_ready_sockets_than_one_batch_all_show() {
        let mut world = world();
        let pairs: Vec<_> = (0..3 * EVENTS_MAX).map(|_| pair()).collect();
        for (index, (socket, _)) in pairs.iter().enumerate() {
            world.plane.watch(socket.as_raw_fd(), index as u64).unwrap();
        }
        let mut seen = vec![false; pairs.len()];
        world.exchange(&[], &[]);
        loop {
            for event in world.ready() {
                seen[event.token as usize] = true;
            }
            if !world.plane.may_be_ready() {
                break;
            }
        }
        assert!(seen.iter().all(|seen| *seen));
    }

    #[test]
    fn a_round_that_was_not_exchanged_leaves_nothing_behind() {
        let mut world = world();
        let (socket, mut client) = pair();
        world.plane.round().send(socket.as_raw_fd(), b"never");
        world.exchange(&[(&socket, b"sent")], &[]);
        let mut bytes = [0; 4];
        client.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"sent");
        client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert!(client.read(&mut bytes).is_err());
    }
}
