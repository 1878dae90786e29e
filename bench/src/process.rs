//! Memory and CPU of a process, as /proc tells them, and this process's own file limit.

use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::io;

/// CPU time that all threads of a process have used, in nanoseconds: from `schedstat` where the kernel has it, else from `stat`,
/// which counts in ticks of 10 ms.
pub fn cpu_ns(pid: u32) -> io::Result<u64> {
    schedstat(pid, 0).or_else(|_| cpu_ticks_ns(pid))
}

/// The same by the names of its threads: those of one name together.
pub fn threads_cpu_ns(pid: u32) -> io::Result<BTreeMap<String, u64>> {
    let mut threads = BTreeMap::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?.path();
        // A thread may end while it is looked at.
        let (Ok(name), Ok(text)) = (read_to_string(task.join("comm")), read_to_string(task.join("schedstat"))) else { continue };
        let cpu_ns: u64 =
            text.split_whitespace().next().and_then(|field| field.parse().ok()).ok_or_else(|| malformed("schedstat"))?;
        *threads.entry(name.trim_end().to_owned()).or_default() += cpu_ns;
    }
    Ok(threads)
}

/// Time that the threads of a process have been ready to run without running, in nanoseconds: others had their core. 0 where the
/// kernel does not tell.
pub fn waited_ns(pid: u32) -> u64 {
    schedstat(pid, 1).unwrap_or(0)
}

fn schedstat(pid: u32, field: usize) -> io::Result<u64> {
    let mut total = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = read_to_string(task?.path().join("schedstat"))?;
        let number: Option<u64> = text.split_whitespace().nth(field).and_then(|field| field.parse().ok());
        total += number.ok_or_else(|| malformed("schedstat"))?;
    }
    Ok(total)
}

/// utime + stime of a process in nanoseconds, to a tick of 10 ms.
pub fn cpu_ticks_ns(pid: u32) -> io::Result<u64> {
    let text = read_to_string(format!("/proc/{pid}/stat"))?;
    // The command's name, in parentheses, may hold anything.
    let fields = text.rsplit_once(')').ok_or_else(|| malformed("stat"))?.1;
    let ticks: Vec<u64> = fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse().ok()).collect();
    match ticks[..] {
        [user, system] => Ok((user + system) * 10_000_000),
        _ => Err(malformed("stat")),
    }
}

/// Resident memory in bytes, from `smaps_rollup`, which is exact where `statm` is batched per thread.
pub fn resident_bytes(pid: u32) -> io::Result<u64> {
    let text = read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).ok_or_else(|| malformed("smaps_rollup"))?;
    Ok(first_number(line).ok_or_else(|| malformed("smaps_rollup"))? * 1024)
}

/// The kernel's slab memory in bytes, of the whole machine.
pub fn slab_bytes() -> io::Result<u64> {
    let text = read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Slab:")).ok_or_else(|| malformed("meminfo"))?;
    Ok(first_number(line).ok_or_else(|| malformed("meminfo"))? * 1024)
}

/// One cache of /proc/slabinfo, which only root reads.
pub struct SlabCache {
    pub name: String,
    pub objects: u64,
    pub object_bytes: u64,
}

pub fn slab_caches() -> io::Result<Vec<SlabCache>> {
    let text = read_to_string("/proc/slabinfo")?;
    let caches = text.lines().skip(2).filter_map(|line| {
        let mut fields = line.split_whitespace();
        let name = fields.next()?.to_owned();
        let objects = fields.next()?.parse().ok()?;
        let object_bytes = fields.nth(1)?.parse().ok()?;
        Some(SlabCache { name, objects, object_bytes })
    });
    Ok(caches.collect())
}

/// Raises the soft limit of open files to the hard one and returns it.
pub fn raise_file_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } < 0 {
        return Err(io::Error::last_os_error());
    }
    limit.rlim_cur = limit.rlim_max;
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(limit.rlim_cur)
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("unexpected text in {what}"))
}
