//! The ring: made as the broker makes its own, with what the kernel has to know for a plane, and provided buffers.

use io_uring::types::{BufRingEntry, Fd};
use io_uring::{CompletionQueue, IoUring, Probe, SubmissionQueue, Submitter, cqueue, opcode, squeue};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicU16, Ordering};

/// Requests that fit the submission queue.
pub const SUBMISSIONS: u32 = 512;

pub fn build(completions: u32) -> io::Result<IoUring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_submit_all()
        .setup_cqsize(completions)
        .dontfork()
        .build(SUBMISSIONS)
}

/// [`build`], and what the kernel refuses is a plane that it cannot do.
pub fn new(completions: u32) -> io::Result<IoUring> {
    build(completions).map_err(|error| unsupported(format!("the kernel refuses an io_uring: {error}")))
}

/// Whether the kernel knows a request; its name, and since when there is such a one, are for the message.
pub fn require(ring: &IoUring, code: u8, name: &str, since: &str) -> io::Result<()> {
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    if probe.is_supported(code) { Ok(()) } else { Err(lacks(name, since)) }
}

pub fn lacks(what: &str, since: &str) -> io::Error {
    unsupported(format!("this kernel has no {what}; Linux {since} has"))
}

pub fn unsupported(what: String) -> io::Error {
    io::Error::new(ErrorKind::Unsupported, what)
}

/// A ring's two queues, in use by one thread.
pub struct Queues<'ring> {
    pub submitter: Submitter<'ring>,
    submissions: SubmissionQueue<'ring>,
    completions: CompletionQueue<'ring>,
}

impl<'ring> Queues<'ring> {
    pub fn of(ring: &'ring mut IoUring) -> Self {
        let (submitter, submissions, completions) = ring.split();
        Self { submitter, submissions, completions }
    }

    /// Puts a request into the queue; what is in a full one goes to the kernel first.
    ///
    /// # Safety
    /// What the request points to stays where it is, and is not touched, until the request has completed.
    pub unsafe fn push(&mut self, request: &squeue::Entry) -> io::Result<()> {
        while self.submissions.is_full() {
            self.enter(0)?;
        }
        // SAFETY: the caller's.
        unsafe { self.submissions.push(request) }.expect("it is not full");
        Ok(())
    }

    /// Hands the kernel what is queued and waits for `wanted` completions; after a signal, or if the kernel is short of memory, both
    /// may have happened in part.
    pub fn enter(&mut self, wanted: usize) -> io::Result<()> {
        self.submissions.sync();
        let result = self.submitter.submit_and_wait(wanted);
        self.submissions.sync();
        self.completions.sync();
        match result {
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether the kernel has taken everything.
    pub fn is_submitted(&self) -> bool {
        self.submissions.is_empty()
    }

    pub fn next(&mut self) -> Option<cqueue::Entry> {
        self.completions.next()
    }

    /// Asks for every client to come; each is a completion with `user_data`, and [`accepted`] takes it.
    pub fn accept_all(&mut self, listener: &TcpListener, user_data: u64) -> io::Result<()> {
        let request = opcode::AcceptMulti::new(Fd(listener.as_raw_fd())).build().user_data(user_data);
        // SAFETY: it points to nothing.
        unsafe { self.push(&request) }
    }
}

/// The client of a completed accept; `None` if it was gone already.
pub fn accepted(completion: &cqueue::Entry) -> Option<TcpStream> {
    if completion.result() < 0 {
        return None;
    }
    // SAFETY: the kernel has just made this descriptor and nobody else knows it.
    let stream = unsafe { TcpStream::from_raw_fd(completion.result()) };
    stream.set_nodelay(true).ok()?;
    Some(stream)
}

/// A ring of provided buffers, from which the kernel takes them in order.
pub struct BufferRing {
    entries: *mut BufRingEntry,
    count: u16,
    tail: u16,
}

impl BufferRing {
    /// Registers one for `count` buffers, a power of two, as the group `group`. It is to outlive the ring, or to be unregistered.
    pub fn register(submitter: &Submitter, group: u16, count: u16) -> io::Result<Self> {
        let layout = Self::layout(count);
        // SAFETY: the layout is not of size zero.
        let entries = unsafe { alloc_zeroed(layout) }.cast::<BufRingEntry>();
        if entries.is_null() {
            handle_alloc_error(layout);
        }
        let buffers = Self { entries, count, tail: 0 };
        // SAFETY: the memory is as long as said, and lives as long as this value.
        match unsafe { submitter.register_buf_ring_with_flags(entries as u64, count, group, 0) } {
            Ok(()) => Ok(buffers),
            Err(error) if error.kind() == ErrorKind::InvalidInput => Err(lacks("ring of provided buffers", "5.19")),
            Err(error) => Err(error),
        }
    }

    /// Whole pages, because the kernel maps it.
    fn layout(count: u16) -> Layout {
        let bytes = usize::from(count) * size_of::<BufRingEntry>();
        Layout::from_size_align(bytes.next_multiple_of(4096), 4096).expect("a power of two")
    }

    /// Gives the kernel a buffer. Returns its position in the ring.
    ///
    /// # Safety
    /// The buffer stays where it is, and is not touched, until the kernel gives it back; the ring has room for it.
    pub unsafe fn add(&mut self, buffer: *const u8, len: usize, id: u16) -> u16 {
        let position = self.tail & (self.count - 1);
        // SAFETY: the position is within the ring; the tail lies in its first entry, where the kernel reads it atomically.
        unsafe {
            let entry = &mut *self.entries.add(usize::from(position));
            entry.set_addr(buffer as u64);
            entry.set_len(len as u32);
            entry.set_bid(id);
            self.tail = self.tail.wrapping_add(1);
            let tail = BufRingEntry::tail(self.entries).cast::<AtomicU16>();
            (*tail).store(self.tail, Ordering::Release);
        }
        position
    }
}

impl Drop for BufferRing {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; the kernel has pinned the pages that it still uses.
        unsafe { dealloc(self.entries.cast(), Self::layout(self.count)) };
    }
}
