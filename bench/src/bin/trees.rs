//! Subscriptions, retained messages and interest at size: what a match or a look-up costs and what an entry occupies, as they grow.
//!
//! Bytes are what the allocator was asked for, counted; nanoseconds are thread CPU, the best of several rounds, because other
//! processes share the caches. Prints Markdown tables; `scripts/trees.sh` runs it.
//!
//! Usage: trees [--rounds N] [--entries-max N]

use clap::Parser;
use corelane::ids::{CoreId, SessionId};
use corelane::message::{Message, MessageRef};
use corelane::time::Time;
use corelane::topic::{Hasher, Interest, Page, RetainedTree, Subscriptions, TopicKey};
use corelane::wire::QoS;
use corelane_bench::random::Random;
use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The system's allocator, counting the bytes it was asked for.
struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Parser)]
#[command(about = "Cost and size of the topic structures, from a thousand entries to a million")]
struct Arguments {
    /// Rounds of each measurement; the best counts.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// The largest size.
    #[arg(long, default_value_t = 1_000_000)]
    entries_max: usize,
}

/// Look-ups in one round.
const LOOKUPS: usize = 20_000;

fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds of one call of `f`, which is called once for each of the topics: the best round.
fn best_ns(rounds: usize, topics: &[String], mut f: impl FnMut(&str)) -> f64 {
    let round = |f: &mut dyn FnMut(&str)| {
        let start = thread_cpu_ns();
        topics.iter().for_each(|topic| f(topic));
        (thread_cpu_ns() - start) as f64 / topics.len() as f64
    };
    (0..rounds.max(1)).map(|_| round(&mut f)).fold(f64::INFINITY, f64::min)
}

fn bytes_of<T>(make: impl FnOnce() -> T) -> (T, usize) {
    let before = BYTES.load(Relaxed);
    let made = make();
    (made, BYTES.load(Relaxed) - before)
}

fn topic(number: usize) -> String {
    format!("fleet/{:03}/vehicle/{number:07}/speed", number % 997)
}

type FilterOf = fn(usize) -> String;

fn exact(number: usize) -> String {
    topic(number)
}

fn plus(number: usize) -> String {
    format!("fleet/+/vehicle/{number:07}/speed")
}

fn multi(number: usize) -> String {
    format!("fleet/{:03}/vehicle/{number:07}/#", number % 997)
}

fn mixed(number: usize) -> String {
    [exact as FilterOf, plus, multi][number % 3](number)
}

const KINDS: [(&str, FilterOf); 4] = [("exact", exact), ("`+` in the middle", plus), ("`#` at the end", multi), ("mixed", mixed)];

fn sizes(entries_max: usize) -> impl Iterator<Item = usize> {
    [1_000, 10_000, 100_000, 1_000_000].into_iter().filter(move |size| *size <= entries_max)
}

/// Topics of entries drawn at random, so that every look-up meets a cold part of a large structure.
fn drawn(size: usize) -> Vec<String> {
    let mut random = Random::new(size as u64);
    (0..LOOKUPS).map(|_| topic(random.below(size))).collect()
}

fn subscriptions(arguments: &Arguments) {
    println!("### Subscriptions: one distinct filter each\n");
    println!(
        "A match is the topic's hashes and every filter that matches, texts compared; a miss is a topic that nobody wants.\n"
    );
    println!(
        "| filters | number | ns per match | ns per miss | ns to subscribe | bytes per subscription |\n|---|---:|---:|---:|---:|---:|"
    );
    let hasher = Hasher::from_seed(7);
    let misses: Vec<String> =
        (0..LOOKUPS).map(|number| format!("fleet/{:03}/vehicle/x{number:06}/speed", number % 997)).collect();
    for (kind, filter_of) in KINDS {
        for size in sizes(arguments.entries_max) {
            let filters: Vec<String> = (0..size).map(filter_of).collect();
            let start = thread_cpu_ns();
            let (tree, bytes) = bytes_of(|| {
                let mut tree = Subscriptions::new();
                for (number, filter) in filters.iter().enumerate() {
                    tree.subscribe(&hasher, filter, SessionId(number as u32));
                }
                tree
            });
            let subscribe_ns = (thread_cpu_ns() - start) as f64 / size as f64;
            let mut found = Default::default();
            let mut matched = 0;
            let mut match_topic = |topic: &str| {
                tree.matching(&hasher, &TopicKey::new(topic, &hasher), &mut found);
                matched += found.len();
            };
            let match_ns = best_ns(arguments.rounds, &drawn(size), &mut match_topic);
            let miss_ns = best_ns(arguments.rounds, &misses, &mut match_topic);
            assert_eq!(matched, LOOKUPS * arguments.rounds.max(1), "each topic has its one filter");
            println!(
                "| {kind} | {size} | {match_ns:.0} | {miss_ns:.0} | {subscribe_ns:.0} | {:.1} |",
                bytes as f64 / size as f64
            );
        }
    }
}

fn retained(arguments: &Arguments) {
    println!("\n### Retained messages\n");
    println!(
        "`fleet/{{n}}/vehicle/{{id}}/speed` with 32 bytes of payload; the bytes include the message. A page is 64 messages.\n"
    );
    println!(
        "| topics | ns per exact look-up | ns to find `fleet/+/vehicle/{{id}}/speed`, per branch | ns per message of a `fleet/{{n}}/#` page | bytes per message |\n|---:|---:|---:|---:|---:|"
    );
    for size in sizes(arguments.entries_max) {
        let (tree, bytes) = bytes_of(|| {
            let mut tree = RetainedTree::new();
            for number in 0..size {
                let message = MessageRef {
                    topic: &topic(number),
                    properties: &[],
                    payload: &[b'x'; 32],
                    qos: QoS::AtMostOnce,
                    retain: true,
                    expires_at: Time::NEVER,
                };
                tree.insert(Message::from(message));
            }
            tree
        });
        let exact_ns = best_ns(arguments.rounds, &drawn(size), |topic| {
            assert!(black_box(tree.get(topic)).is_some());
        });
        // One level of 997 branches is walked from seek to seek, in pages of 512 steps.
        let branches = size.min(997);
        let wildcards: Vec<String> = (0..20).map(|number| plus(number * 37 % size)).collect();
        let plus_ns = best_ns(arguments.rounds, &wildcards, |filter| {
            let (mut found, mut after) = (0, None);
            while let Page::More(place) = tree.page(filter, after.as_deref(), 512, |_| {
                found += 1;
                true
            }) {
                after = Some(place);
            }
            assert_eq!(found, 1);
        }) / branches as f64;
        let subtrees: Vec<String> = (0..branches).map(|number| format!("fleet/{number:03}/#")).collect();
        let (mut pages, mut messages) = (0usize, 0usize);
        let subtree_ns = best_ns(arguments.rounds, &subtrees, |filter| {
            let mut left = 64;
            pages += 1;
            black_box(tree.page(filter, None, 512, |message| {
                black_box(message.bytes());
                messages += usize::from(left > 0);
                left -= i32::from(left > 0);
                left > 0
            }));
        }) * pages as f64
            / messages as f64;
        println!("| {size} | {exact_ns:.0} | {plus_ns:.0} | {subtree_ns:.0} | {:.1} |", bytes as f64 / size as f64);
    }
}

fn interest(arguments: &Arguments) {
    println!("\n### Interest: what a core keeps of each filter that a peer wants\n");
    println!(
        "Projected to a process of so many shards: all cores together, with so many distinct filters in all, spread over the shards,"
    );
    println!("and with so many on each shard.\n");
    println!(
        "| filters of one peer | ns per look-up | bytes per filter and peer | 16 shards, in all | 64 shards, in all | 16 shards, on each | 64 shards, on each |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|");
    let hasher = Hasher::from_seed(7);
    let count = arguments.entries_max;
    let device = |number: usize| format!("dev/{number}/#");
    let kinds: [(&str, FilterOf); 2] = [("exact", exact), ("`dev/{i}/#`", device)];
    for (kind, filter_of) in kinds {
        let subscriptions = Subscriptions::new();
        let keys: Vec<_> = (0..count).map(|number| subscriptions.interest_key(&hasher, &filter_of(number))).collect();
        let (interest, bytes) = bytes_of(|| {
            let mut interest = Interest::new();
            keys.iter().for_each(|key| interest.announce(&hasher, CoreId(1), key));
            interest
        });
        let mut random = Random::new(1);
        let topics: Vec<String> = (0..LOOKUPS)
            .map(|_| random.below(count))
            .map(|number| if kind == "exact" { topic(number) } else { format!("dev/{number}/state") })
            .collect();
        let ns = best_ns(arguments.rounds, &topics, |topic| {
            assert_eq!(interest.cores(&hasher, &TopicKey::new(topic, &hasher)).0, 2);
        });
        let per_filter = bytes as f64 / count as f64;
        // Each filter is known to every core but its own.
        let gib = |filters: f64, shards: f64| per_filter * filters * (shards - 1.0) / (1u64 << 30) as f64;
        let (all, each) = (count as f64, |shards: f64| count as f64 * shards);
        println!(
            "| {count} {kind} | {ns:.0} | {per_filter:.1} | {:.2} GiB | {:.2} GiB | {:.1} GiB | {:.1} GiB |",
            gib(all, 16.0),
            gib(all, 64.0),
            gib(each(16.0), 16.0),
            gib(each(64.0), 64.0)
        );
    }
}

fn main() {
    let arguments = Arguments::parse();
    subscriptions(&arguments);
    retained(&arguments);
    interest(&arguments);
}
