//! Whether this machine lets the broker run: kernel, io_uring, locked memory, file descriptors, CPUs. Everything that is missing is
//! one line with what, why and the fix, before anything is started.

use super::ring::build_ring;
use super::ring::system::{self, Resource, ResourceLimit};
use std::fs;
use std::io;

/// The oldest kernel with all that the ring uses.
pub const KERNEL_FLOOR: (u32, u32) = (6, 1);
/// What an executor wants this limit to be before it makes its rings. How much of it a shard takes depends on the kernel (see
/// io_uring_notes.md, "What the pitfalls cost"): nothing before 6.14, some 100 KiB since, and more where there is more; with so much for each
/// of them, all have started.
pub const LOCKED_BYTES_MIN: u64 = 512 << 10;
/// Descriptors that are not connections: logs, rings, epoll, doorbells, listeners; the process's, and each shard's.
const FILES_OF_PROCESS: u64 = 32;
const FILES_OF_SHARD: u64 = 32;
/// Fewer connections than this is not a broker but a mistake.
const CONNECTIONS_MIN: u64 = 64;

/// What the machine offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub kernel: String,
    /// What of io_uring is in use, in the kernel's words.
    pub ring_features: &'static [&'static str],
    /// The CPUs this process may run on.
    pub cpus: Vec<usize>,
    /// The soft limit of open files as the process found it.
    pub open_files_at_start: u64,
    pub open_files: ResourceLimit,
    pub locked_memory_bytes: ResourceLimit,
}

impl Host {
    /// How many connections the file limit leaves room for.
    pub fn connections_max(&self, shards: usize) -> u64 {
        self.open_files.soft.saturating_sub(files_beside_connections(shards))
    }
}

/// Open files of a broker with so many shards that are no connections.
pub fn files_beside_connections(shards: usize) -> u64 {
    FILES_OF_PROCESS + FILES_OF_SHARD * shards as u64
}

#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error(
        "kernel {release} is too old: the network plane needs io_uring as of Linux {}.{}; upgrade the kernel",
        KERNEL_FLOOR.0,
        KERNEL_FLOOR.1
    )]
    KernelTooOld { release: String },
    #[error(
        "io_uring is switched off on this machine (kernel.io_uring_disabled = {value}) and the broker does all its network I/O \
         with it; allow it: sysctl -w kernel.io_uring_disabled=0"
    )]
    RingDisabled { value: u32 },
    #[error(
        "io_uring is forbidden to this process, most likely by a container's seccomp profile (Docker's default one does), and the \
         broker does all its network I/O with it; allow it: docker run --security-opt seccomp=unconfined --ulimit memlock=-1 …, \
         or a profile that permits io_uring_setup, io_uring_enter and io_uring_register"
    )]
    RingForbidden,
    #[error("the kernel refuses an io_uring: {0}; the broker does all its network I/O with it")]
    RingRefused(io::Error),
    #[error(
        "only {have} bytes of memory may be locked and a shard wants {LOCKED_BYTES_MIN}; raise it: ulimit -l unlimited, \
         LimitMEMLOCK=infinity in the systemd unit, or docker run --ulimit memlock=-1"
    )]
    LockedMemory { have: u64 },
    #[error(
        "only {have} files may be open, which leaves too few for connections ({shards} shards need {need}); raise it: \
         ulimit -n 1048576, LimitNOFILE=1048576 in the systemd unit, or docker run --ulimit nofile=1048576"
    )]
    OpenFiles { have: u64, need: u64, shards: usize },
    #[error("the kernel does not say what this process may use: {0}")]
    Unknown(#[from] io::Error),
}

/// Looks at the machine; raises the soft limits of files and locked memory to the hard ones on the way.
pub fn host() -> Result<Host, ProbeError> {
    let kernel = kernel_release();
    if is_too_old(&kernel) {
        return Err(ProbeError::KernelTooOld { release: kernel });
    }
    let locked_memory_bytes = locked_memory_bytes()?;
    if locked_memory_bytes.soft < LOCKED_BYTES_MIN {
        return Err(ProbeError::LockedMemory { have: locked_memory_bytes.soft });
    }
    let ring_features = ring_features(&kernel)?;
    let open_files_at_start = system::resource_limit(Resource::OpenFiles)?.soft;
    Ok(Host { kernel, ring_features, cpus: cpus()?, open_files_at_start, open_files: open_files()?, locked_memory_bytes })
}

/// The kernel's release, such as `6.1.0-28-amd64`; empty if it does not say.
pub fn kernel_release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// Whether a kernel of this release lacks what the ring uses. A release that cannot be read is given a try.
pub fn is_too_old(release: &str) -> bool {
    version(release).is_some_and(|version| version < KERNEL_FLOOR)
}

/// Makes a ring, to see that this process may: what of io_uring is in use, in the kernel's words.
pub fn ring_features(kernel: &str) -> Result<&'static [&'static str], ProbeError> {
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok().and_then(|text| text.trim().parse().ok());
    match build_ring(2, 4) {
        Ok(ring) if ring.params().is_feature_skip_cqe_on_success() => {
            Ok(&["SINGLE_ISSUER", "DEFER_TASKRUN", "SUBMIT_ALL", "CQE_SKIP"])
        }
        Ok(_) => Err(ProbeError::KernelTooOld { release: kernel.to_owned() }),
        Err(error) => Err(refusal(error, kernel.to_owned(), disabled)),
    }
}

/// The limit of open files, its soft part raised to the hard one.
pub fn open_files() -> io::Result<ResourceLimit> {
    raise(Resource::OpenFiles)
}

/// The limit of locked memory, its soft part raised to the hard one.
pub fn locked_memory_bytes() -> io::Result<ResourceLimit> {
    raise(Resource::LockedMemoryBytes)
}

/// The CPUs this process may run on.
pub fn cpus() -> io::Result<Vec<usize>> {
    system::affinity()
}

/// Whether the file limit leaves room for so many shards and some connections.
pub fn check_files(host: &Host, shards: usize) -> Result<(), ProbeError> {
    if host.connections_max(shards) >= CONNECTIONS_MIN {
        return Ok(());
    }
    let need = files_beside_connections(shards) + CONNECTIONS_MIN;
    Err(ProbeError::OpenFiles { have: host.open_files.soft, need, shards })
}

fn refusal(error: io::Error, kernel: String, disabled: Option<u32>) -> ProbeError {
    match (error.raw_os_error(), disabled) {
        (Some(libc::EPERM), Some(value @ 1..)) => ProbeError::RingDisabled { value },
        (Some(libc::EPERM | libc::EACCES | libc::ENOSYS), _) => ProbeError::RingForbidden,
        (Some(libc::EINVAL), _) => ProbeError::KernelTooOld { release: kernel },
        _ => ProbeError::RingRefused(error),
    }
}

fn raise(resource: Resource) -> Result<ResourceLimit, io::Error> {
    let limit = system::resource_limit(resource)?;
    let raised = ResourceLimit { soft: limit.hard, ..limit };
    // Some systems refuse even this; then what was granted has to do.
    if limit.soft < limit.hard && system::set_resource_limit(resource, raised).is_ok() { Ok(raised) } else { Ok(limit) }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases_of_every_shape_compare_by_major_and_minor() {
        assert_eq!(version("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(version("5.15.0-1051-aws"), Some((5, 15)));
        assert_eq!(version("6.18-rc1"), Some((6, 18)));
        assert_eq!(version("unknown"), None);
        assert!(version("5.19").unwrap() < KERNEL_FLOOR && version("10.0").unwrap() > KERNEL_FLOOR);
    }

    #[test]
    fn each_way_to_forbid_io_uring_has_its_own_fix_in_one_line() {
        let refused = |errno, disabled| refusal(io::Error::from_raw_os_error(errno), "6.5.0".into(), disabled).to_string();
        assert!(refused(libc::EPERM, Some(2)).contains("sysctl -w kernel.io_uring_disabled=0"));
        assert!(refused(libc::EPERM, Some(0)).contains("docker run --security-opt seccomp=unconfined"));
        assert!(refused(libc::ENOSYS, None).contains("docker run"));
        assert!(refused(libc::EINVAL, None).contains("needs io_uring as of Linux 6.1"));
        assert!(!refused(libc::EPERM, None).contains('\n'));
    }

    #[test]
    fn the_file_limit_is_shared_out_between_the_process_its_shards_and_connections() {
        let limit = ResourceLimit { soft: 1024, hard: 1024 };
        let host = Host {
            kernel: String::new(),
            ring_features: &[],
            cpus: vec![0],
            open_files_at_start: 1024,
            open_files: limit,
            locked_memory_bytes: limit,
        };
        assert_eq!(host.connections_max(2), 928);
        assert!(check_files(&host, 2).is_ok());
        assert!(check_files(&host, 30).unwrap_err().to_string().starts_with("only 1024 files may be open"));
    }

    #[test]
    fn this_machine_passes_its_own_tests_needs() {
        let host = host().unwrap();
        assert!(!host.cpus.is_empty());
        assert_eq!(host.open_files.soft, host.open_files.hard);
    }
}
