//! The kernel's memory for the broker's end of a connection, from /proc/slabinfo, which only root reads.
//!
//! Both ends of every connection are on this host, in an epoll set each, so what there is of a socket is halved. Caches that have
//! nothing to do with a socket are left out: other processes move them. The kernel merges caches of equal size, and whoever reads
//! /proc/PID/fd makes dentries, so of the objects that a connection's end has only one of, only one is counted.

use crate::process::SlabCache;
use serde::Serialize;

/// What a socket has one of at either end.
const ONE_AT_EITHER_END: &[&str] = &[
    "TCP",
    "sock_inode_cache",
    "filp",
    "dentry",
    "lsm_inode_cache",
    "lsm_file_cache",
    "eventpoll_epi",
    "eventpoll_pwq",
    "ep_head",
];
/// What there may be any number of, by the beginning of its name: buffers, timers and whatever else is allocated by size.
const BY_SIZE: &[&str] = &["kmalloc-", "skbuff_", "io_kiocb"];

#[derive(Clone, Serialize, Debug)]
pub struct SlabCost {
    /// Bytes per connection of the broker's end.
    pub broker_bytes: f64,
    /// Of those, by cache.
    pub caches: Vec<(String, f64)>,
}

/// What a connection costs more, from one reading to the other; each has its number of connections.
pub fn between((first, before): &(u64, Vec<SlabCache>), (last, after): &(u64, Vec<SlabCache>)) -> SlabCost {
    let connections = last.saturating_sub(*first).max(1) as f64;
    let mut cost = SlabCost { broker_bytes: 0.0, caches: Vec::new() };
    for cache in after {
        let Some(earlier) = before.iter().find(|earlier| earlier.name == cache.name) else { continue };
        let objects = (cache.objects as f64 - earlier.objects as f64) / connections / 2.0;
        let counted = if ONE_AT_EITHER_END.contains(&cache.name.as_str()) {
            objects.min(1.0)
        } else if BY_SIZE.iter().any(|prefix| cache.name.starts_with(prefix)) {
            objects
        } else {
            continue;
        };
        if objects < 0.01 {
            continue;
        }
        let bytes = counted * cache.object_bytes as f64;
        cost.broker_bytes += bytes;
        cost.caches.push((cache.name.clone(), bytes));
    }
    cost
}

/// Caches in a line of progress: the largest.
const LINE_CACHES: usize = 8;

/// The kernel's slab memory for sockets, of both ends, in MiB: in all, and of the largest caches.
pub fn line(caches: &[SlabCache]) -> String {
    let counted = |name: &str| ONE_AT_EITHER_END.contains(&name) || BY_SIZE.iter().any(|prefix| name.starts_with(prefix));
    let mib = |cache: &SlabCache| (cache.objects * cache.object_bytes) >> 20;
    let mut caches: Vec<_> = caches.iter().filter(|cache| counted(&cache.name) && mib(cache) > 0).collect();
    caches.sort_by_key(|cache| std::cmp::Reverse(mib(cache)));
    let largest: Vec<_> = caches.iter().take(LINE_CACHES).map(|cache| format!("{} {}", cache.name, mib(cache))).collect();
    let all: u64 = caches.iter().map(|cache| mib(cache)).sum();
    format!("  slab {all} MB ({})", largest.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_largest_caches_of_sockets_first() {
        let cache = |name: &str, objects| SlabCache { name: name.to_owned(), objects, object_bytes: 1 << 10 };
        let caches = [cache("filp", 2048), cache("ext4_inode", 9000), cache("TCP", 4096), cache("dentry", 1000)];
        assert_eq!(line(&caches), "  slab 6 MB (TCP 4, filp 2)");
    }

    #[test]
    fn half_of_what_grew_belongs_to_the_broker() {
        let cache = |name: &str, objects, object_bytes| SlabCache { name: name.to_owned(), objects, object_bytes };
        let before = vec![cache("TCP", 10, 2000), cache("kmalloc-64", 100, 64), cache("ext4_inode", 5, 900)];
        let after = vec![cache("TCP", 230, 2000), cache("kmalloc-64", 500, 64), cache("ext4_inode", 905, 900)];
        let cost = between(&(0, before), &(100, after));
        // 1.1 sockets per end count as one; two blocks of 64 bytes per end.
        assert_eq!(cost.broker_bytes, 2000.0 + 128.0);
        assert_eq!(cost.caches.len(), 2);
    }
}
