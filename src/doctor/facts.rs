//! What the host has, read from the kernel. The soft limits of files and locked memory are raised to the hard ones first, as the broker
//! does when it starts. What cannot be read stays unknown.

use crate::boot;
use crate::runtime::probe;
use std::fs;
use std::path::Path;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// The kernel's release, such as `6.1.0-28-amd64`; empty if it does not say.
    pub kernel: String,
    /// The features of io_uring in use, or why this process gets none and how it would.
    pub ring: Option<Result<String, String>>,
    /// Limits of this process; `u64::MAX` is none.
    pub open_files: Option<u64>,
    pub locked_memory_bytes: Option<u64>,
    /// fs.nr_open: the highest limit of open files that a process can be given.
    pub nr_open: Option<u64>,
    /// fs.file-max, and what of it is in use: files of the whole host.
    pub file_max: Option<u64>,
    pub files_in_use: Option<u64>,
    /// net.ipv4.tcp_mem, in pages: without pressure, pressure, most.
    pub tcp_mem_pages: Option<[u64; 3]>,
    /// net.ipv4.tcp_rmem and tcp_wmem: least, first and most bytes of a socket's buffer.
    pub receive_bytes: Option<[u64; 3]>,
    pub send_bytes: Option<[u64; 3]>,
    pub somaxconn: Option<u64>,
    pub syn_backlog: Option<u64>,
    /// net.core.netdev_max_backlog: packets that wait for one core.
    pub core_backlog: Option<u64>,
    /// net.ipv4.tcp_max_orphans: sockets that are closed and not yet acknowledged.
    pub orphans_max: Option<u64>,
    /// Ports that outgoing connections are given.
    pub ports: Option<u64>,
    /// net.netfilter.nf_conntrack_max; `None` where connections are not tracked.
    pub conntrack_max: Option<u64>,
    /// Memory of the host, or of the control group if that is less.
    pub memory_bytes: Option<u64>,
    /// Cores in the affinity mask, and cores of the host.
    pub cores_allowed: Option<u64>,
    pub cores: Option<u64>,
    /// Network devices, loopback left out.
    pub devices: Vec<Device>,
}

/// How a network device spreads what it receives over the cores.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Device {
    pub name: String,
    pub receive_queues: u64,
    /// Some of its queues hand packets to other cores (RPS).
    pub steered: bool,
}

impl Facts {
    pub fn read() -> Self {
        let mut host = boot::HostFacts::default();
        host.read_proc();
        let sysctl = |name: &str| numbers(&format!("/proc/sys/{name}"));
        let one = |name: &str| sysctl(name).and_then(|numbers| numbers.first().copied());
        let three = |name: &str| sysctl(name).and_then(|numbers| <[u64; 3]>::try_from(numbers).ok());
        Self {
            ring: Some(probe::ring_features(&host.kernel).map(|features| features.join(", ")).map_err(|error| error.to_string())),
            kernel: host.kernel,
            open_files: probe::open_files().ok().map(|limit| limit.soft),
            locked_memory_bytes: probe::locked_memory_bytes().ok().map(|limit| limit.soft),
            nr_open: one("fs/nr_open"),
            file_max: host.files.host_max,
            files_in_use: one("fs/file-nr"),
            tcp_mem_pages: three("net/ipv4/tcp_mem"),
            receive_bytes: three("net/ipv4/tcp_rmem"),
            send_bytes: three("net/ipv4/tcp_wmem"),
            somaxconn: host.backlog_max,
            syn_backlog: one("net/ipv4/tcp_max_syn_backlog"),
            core_backlog: one("net/core/netdev_max_backlog"),
            orphans_max: one("net/ipv4/tcp_max_orphans"),
            ports: sysctl("net/ipv4/ip_local_port_range").and_then(|range| match range[..] {
                [low, high] => Some((high + 1).saturating_sub(low)),
                _ => None,
            }),
            conntrack_max: one("net/netfilter/nf_conntrack_max"),
            memory_bytes: host.memory_bytes.map(u64::from),
            cores_allowed: probe::cpus().ok().map(|cpus| cpus.len() as u64),
            cores: numbers_of_range(&fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default()),
            devices: devices(Path::new("/sys/class/net")),
        }
    }
}

fn numbers(path: &str) -> Option<Vec<u64>> {
    fs::read_to_string(path).ok()?.split_whitespace().map(|number| number.parse().ok()).collect()
}

/// How many numbers a list such as `0-3,6` names.
fn numbers_of_range(list: &str) -> Option<u64> {
    let count = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        (last.parse::<u64>().ok()? + 1).checked_sub(first.parse().ok()?)
    };
    list.trim().split(',').map(count).sum()
}

/// Devices with hardware below them; bridges and tunnels have their packets from those.
fn devices(directory: &Path) -> Vec<Device> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut devices: Vec<Device> = entries
        .filter(|entry| entry.path().join("device").exists())
        .map(|entry| {
            let queues = fs::read_dir(entry.path().join("queues")).into_iter().flatten().flatten();
            let receiving = queues.filter(|queue| queue.file_name().to_string_lossy().starts_with("rx-"));
            let masks: Vec<String> =
                receiving.map(|queue| fs::read_to_string(queue.path().join("rps_cpus")).unwrap_or_default()).collect();
            Device {
                name: entry.file_name().to_string_lossy().into_owned(),
                receive_queues: masks.len() as u64,
                steered: masks.iter().any(|mask| mask.chars().any(|c| matches!(c, '1'..='9' | 'a'..='f'))),
            }
        })
        .collect();
    devices.sort_by(|a, b| a.name.cmp(&b.name));
    devices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_counted() {
        assert_eq!(numbers_of_range("0-3,6\n"), Some(5));
        assert_eq!(numbers_of_range("0"), Some(1));
        assert_eq!(numbers_of_range(""), None);
        assert_eq!(numbers_of_range("3-1"), None);
    }

    #[test]
    fn this_host_says_what_every_host_says() {
        let facts = Facts::read();
        assert!(facts.open_files.is_some() && facts.nr_open.is_some() && facts.memory_bytes.is_some() && facts.ports.is_some());
        assert!(facts.tcp_mem_pages.is_some_and(|pages| pages[0] <= pages[2]));
        assert!(facts.cores_allowed.unwrap() <= facts.cores.unwrap());
    }
}
