use super::super::options::{BufferOptions, FileOptions};
use super::super::target::fake::Fake;
use super::super::target::{Report, Verdict};
use super::super::testing::{Directory, World, numbered, wait_until};
use super::*;
use crate::shard::WhenFull;
use std::collections::HashMap;
use std::fs;

fn options(name: &str) -> SinkOptions {
    let buffer = BufferOptions { linger_ms: 0, ..BufferOptions::default() };
    SinkOptions { name: name.to_owned(), buffer, kind: SinkKind::File(FileOptions::default()) }
}

fn on_disk(directory: &Directory) -> SinkOptions {
    let mut options = options("events");
    options.buffer.disk_path = directory.path("buffer").to_str().unwrap().to_owned();
    options
}

/// A world with one sink that is a fake, and one action.
fn with_fake(fake: &Fake, sink: SinkOptions, confirm: Confirm) -> World {
    let fake = fake.clone();
    World::start(2, vec![sink], &[(0, confirm)], move |_| Some(Arc::new(fake.clone())))
}

fn texts(fake: &Fake) -> Vec<u64> {
    fake.delivered().iter().map(|text| str::from_utf8(text).unwrap().parse().unwrap()).collect()
}

#[test]
fn records_of_a_shard_are_delivered_in_order_and_everything_is_given_back() {
    let fake = Fake::default();
    let mut world = with_fake(&fake, options("events"), Confirm::Delivered);
    for round in 0..20 {
        for shard in 0..2 {
            world.push(shard, 0, (0..100).map(|number| (10_000 * shard as u64) + round * 100 + number));
        }
    }
    for shard in 0..2 {
        let mut answers = world.answers(shard, 2_000);
        answers.sort_unstable_by_key(|(number, _)| *number);
        let expected: Vec<_> = (0..2_000).map(|number| (10_000 * shard as u32 + number, Outcome::Accepted)).collect();
        assert!(answers == expected, "shard {shard}");
        let of_shard: Vec<u64> = texts(&fake).into_iter().filter(|text| text / 10_000 == shard as u64).collect();
        assert!(of_shard == (0..2_000).map(|number| 10_000 * shard as u64 + number).collect::<Vec<_>>());
    }
    world.assert_nothing_held();
    let status = world.status();
    assert_eq!(status["sinks/events/delivered"], "4000");
    assert_eq!(status["sinks/events/connected"], "1");
    assert_eq!(status["actions/rule/0/delivered"], "4000");
    assert!(status["actions/rule/0/latency/p50_us"].parse::<u64>().unwrap() > 0);
}

#[test]
fn a_queued_record_is_accepted_while_the_server_is_down_and_a_delivered_one_is_not() {
    for (confirm, accepted) in [(Confirm::Queued, true), (Confirm::Delivered, false)] {
        let fake = Fake::default();
        fake.script.lock().unwrap().down = Some("refused".into());
        let mut world = with_fake(&fake, options("events"), confirm);
        world.push(0, 0, 0..3);
        wait_until(|| world.status()["sinks/events/retried"] != "0");
        let answers = world.answers_now(0);
        assert_eq!(answers.len(), if accepted { 3 } else { 0 });
        assert_eq!(world.status()["sinks/events/connected"], "0");
        assert_eq!(world.status()["sinks/events/last_error"], "refused");
        assert_eq!(world.globals.gates[0].buffered_records.get(), 3);
        fake.script.lock().unwrap().down = None;
        wait_until(|| texts(&fake) == [0, 1, 2]);
        if !accepted {
            assert_eq!(world.answers(0, 3).len(), 3);
        }
        world.assert_nothing_held();
        assert_eq!(world.status()["sinks/events/connected"], "1");
    }
}

#[test]
fn what_a_batch_did_not_get_through_is_tried_again_before_anything_else() {
    let fake = Fake::default();
    fake.script
        .lock()
        .unwrap()
        .reports
        .push_back(Report { verdicts: vec![Verdict::Delivered, Verdict::Again, Verdict::Again], error: Some("half-way".into()) });
    let mut sink = options("events");
    sink.buffer.batch_records_max = 3;
    let mut world = with_fake(&fake, sink, Confirm::Delivered);
    world.push(0, 0, 0..6);
    assert_eq!(world.answers(0, 6).len(), 6);
    assert_eq!(texts(&fake), [0, 1, 2, 3, 4, 5]);
    assert_eq!(fake.script.lock().unwrap().attempts, [3, 2, 3]);
}

#[test]
fn refused_records_become_dead_letters_and_block_nothing() {
    let directory = Directory::new();
    let fake = Fake::default();
    fake.script.lock().unwrap().refuses = Some(b"7".to_vec());
    let mut sink = options("events");
    sink.buffer.dead_letter_path = directory.path("letters").to_str().unwrap().to_owned();
    let mut world = with_fake(&fake, sink, Confirm::Delivered);
    world.push(1, 0, 0..20);
    let mut answers = world.answers(1, 20);
    answers.sort_unstable_by_key(|(number, _)| *number);
    for (number, outcome) in answers {
        assert_eq!(outcome, if number % 10 == 7 { Outcome::Failed } else { Outcome::Accepted }, "{number}");
    }
    world.assert_nothing_held();
    let letters = fs::read_to_string(directory.path("letters")).unwrap();
    let letters: Vec<serde_json::Value> = letters.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(letters.iter().map(|letter| letter["parts"][0].as_str().unwrap()).collect::<Vec<_>>(), ["000007", "000017"]);
    assert_eq!((&letters[0]["action"], &letters[0]["reason"]), (&"rule/0".into(), &"the fake refuses it".into()));
    let status = world.status();
    assert_eq!([&status["sinks/events/delivered"], &status["sinks/events/dead_letters"]], ["18", "2"]);
    assert_eq!(status["actions/rule/0/dead_letters"], "2");
}

#[test]
fn batches_wait_for_their_linger_unless_they_are_full() {
    let fake = Fake::default();
    let mut sink = options("events");
    sink.buffer.linger_ms = 60_000;
    sink.buffer.batch_records_max = 10;
    let mut world = with_fake(&fake, sink, Confirm::Delivered);
    world.push(0, 0, 0..25);
    assert_eq!(world.answers(0, 20).len(), 20);
    assert_eq!(fake.script.lock().unwrap().attempts, [10, 10]);
    assert!(world.handle.flush(Duration::from_secs(10)));
    assert_eq!(world.answers(0, 5).len(), 5);
    assert_eq!(fake.script.lock().unwrap().attempts, [10, 10, 5]);
}

#[test]
fn batches_end_by_bytes_and_a_record_larger_than_a_batch_goes_alone() {
    let fake = Fake::default();
    let mut sink = options("events");
    sink.buffer.batch_bytes_max = 2 * numbered(0, 0).bytes() + 1;
    let mut world = with_fake(&fake, sink, Confirm::Delivered);
    fake.script.lock().unwrap().takes = Duration::from_millis(50);
    world.push(0, 0, 0..1);
    wait_until(|| world.status()["sinks/events/in_flight"] == "1");
    world.push(0, 0, 1..6);
    world.answers(0, 6);
    assert_eq!(fake.script.lock().unwrap().attempts, [1, 2, 2, 1]);
    let fake = Fake::default();
    let mut sink = options("events");
    sink.buffer.batch_bytes_max = 1;
    let mut world = with_fake(&fake, sink, Confirm::Delivered);
    world.push(0, 0, 0..3);
    world.answers(0, 3);
    assert_eq!(fake.script.lock().unwrap().attempts, [1, 1, 1]);
}

#[test]
fn batches_of_a_parallel_target_are_under_way_at_the_same_time() {
    let fake = Fake { batches_max: 4, records_max: 5, ..Fake::default() };
    fake.script.lock().unwrap().takes = Duration::from_millis(300);
    let mut world = with_fake(&fake, options("events"), Confirm::Delivered);
    let start = Instant::now();
    world.push(0, 0, 0..20);
    world.answers(0, 20);
    assert_eq!(fake.script.lock().unwrap().attempts, [5, 5, 5, 5]);
    assert!(start.elapsed() < Duration::from_millis(1_100), "{:?}", start.elapsed());
}

#[test]
fn a_record_that_does_not_get_through_holds_up_others_only_when_they_are_many_and_costs_nothing_meanwhile() {
    let fake = Fake { batches_max: 2, records_max: 1, ..Fake::default() };
    fake.script.lock().unwrap().stuck = Some(b"000000".to_vec());
    let mut world = with_fake(&fake, options("events"), Confirm::Delivered);
    world.push(0, 0, 0..100);
    // The window is four times what may be in flight.
    let first = world.answers(0, 7);
    assert_eq!(first, (1..8).map(|number| (number, Outcome::Accepted)).collect::<Vec<_>>());
    let before = world.thread_ticks();
    std::thread::sleep(Duration::from_secs(1));
    assert!(world.answers_now(0).is_empty());
    let ticks = world.thread_ticks() - before;
    assert!(ticks <= 1, "{ticks} ticks in a second of waiting");
    fake.script.lock().unwrap().stuck = None;
    assert_eq!(world.answers(0, 93).len(), 93);
    world.assert_nothing_held();
}

#[test]
fn one_sink_that_is_down_does_not_hold_up_another() {
    let (down, up) = (Fake::default(), Fake::default());
    down.script.lock().unwrap().down = Some("refused".into());
    let fakes = [down.clone(), up.clone()];
    let actions = [(0, Confirm::Delivered), (1, Confirm::Delivered)];
    let mut world =
        World::start(1, vec![options("down"), options("up")], &actions, move |sink| Some(Arc::new(fakes[sink].clone())));
    for number in 0..50 {
        world.push(0, 0, number..number + 1);
        world.push(0, 1, 1_000 + number..1_000 + number + 1);
    }
    let answers = world.answers(0, 50);
    assert!(answers.iter().all(|(number, outcome)| *number >= 1_000 && *outcome == Outcome::Accepted));
    assert_eq!(world.globals.gates[0].buffered_records.get(), 50);
    assert_eq!(world.globals.gates[1].buffered_records.get(), 0);
}

#[test]
fn a_full_buffer_drops_its_oldest_and_tells_their_publishers() {
    let fake = Fake::default();
    fake.script.lock().unwrap().down = Some("refused".into());
    let mut sink = options("events");
    sink.buffer.memory_bytes_max = 10 * numbered(0, 0).bytes();
    sink.buffer.when_full = WhenFull::DropOldest;
    sink.buffer.batch_records_max = 2;
    let mut world = with_fake(&fake, sink, Confirm::Delivered);
    world.push(0, 0, 0..2);
    wait_until(|| world.status()["sinks/events/in_flight"] == "2");
    world.push(0, 0, 2..30);
    let dropped = world.answers(0, 20);
    // The two in flight stay, and the eight newest.
    assert_eq!(dropped, (2..22).map(|number| (number, Outcome::Failed)).collect::<Vec<_>>());
    assert_eq!(world.status()["sinks/events/dropped/oldest"], "20");
    assert_eq!(world.status()["actions/rule/0/dropped"], "20");
    fake.script.lock().unwrap().down = None;
    world.answers(0, 10);
    assert_eq!(texts(&fake), [0, 1].into_iter().chain(22..30).collect::<Vec<_>>());
    world.assert_nothing_held();
}

#[test]
fn after_a_crash_a_disk_buffer_delivers_everything_that_was_accepted_in_order() {
    let directory = Directory::new();
    let fake = Fake::default();
    fake.script.lock().unwrap().down = Some("refused".into());
    let mut world = with_fake(&fake, on_disk(&directory), Confirm::Queued);
    world.push(0, 0, 0..500);
    assert_eq!(world.answers(0, 500).len(), 500);
    assert!(world.status()["sinks/events/disk/bytes"].parse::<u64>().unwrap() > 500 * 20);
    world.kill();
    let fake = Fake::default();
    let mut world = with_fake(&fake, on_disk(&directory), Confirm::Queued);
    world.push(0, 0, 500..510);
    wait_until(|| texts(&fake).len() == 510);
    assert_eq!(texts(&fake), (0..510).collect::<Vec<_>>());
    world.assert_gate_empty();
    world.handle.stop();
    let fake = Fake::default();
    let mut world = with_fake(&fake, on_disk(&directory), Confirm::Queued);
    world.push(0, 0, 510..511);
    wait_until(|| !texts(&fake).is_empty());
    assert_eq!(texts(&fake), [510]);
}

#[test]
fn a_disk_buffer_holds_more_than_memory_and_gives_it_all_back() {
    let directory = Directory::new();
    let fake = Fake::default();
    fake.script.lock().unwrap().down = Some("refused".into());
    let mut sink = on_disk(&directory);
    sink.buffer.memory_bytes_max = 20 * numbered(0, 0).bytes();
    sink.buffer.batch_records_max = 7;
    let mut world = with_fake(&fake, sink, Confirm::Delivered);
    for round in 0..20 {
        world.push(0, 0, round * 50..round * 50 + 50);
    }
    wait_until(|| world.status()["sinks/events/queue/records"] == "1000" && world.memory() <= 20 * numbered(0, 0).bytes());
    assert!(world.answers_now(0).is_empty());
    fake.script.lock().unwrap().down = None;
    assert_eq!(world.answers(0, 1_000).len(), 1_000);
    assert_eq!(texts(&fake), (0..1_000).collect::<Vec<_>>());
    world.assert_nothing_held();
}

#[test]
fn a_disk_that_cannot_be_written_closes_the_gate_and_nothing_is_accepted_until_it_can() {
    let directory = Directory::new();
    let blocked = directory.path("buffer/00000000000000000000.segment");
    fs::create_dir_all(&blocked).unwrap();
    // A directory of that name is no segment, and none can be made. The scan at the start must not see it.
    fs::rename(&blocked, directory.path("aside")).unwrap();
    let fake = Fake::default();
    let mut world = with_fake(&fake, on_disk(&directory), Confirm::Queued);
    fs::rename(directory.path("aside"), &blocked).unwrap();
    world.push(0, 0, 0..5);
    wait_until(|| !world.globals.gates[0].has_room(1));
    assert!(world.answers_now(0).is_empty());
    assert!(world.status()["sinks/events/last_error"].starts_with("the disk buffer: "));
    fs::remove_dir(&blocked).unwrap();
    assert_eq!(world.answers(0, 5).len(), 5);
    wait_until(|| world.globals.gates[0].has_room(1) && texts(&fake).len() == 5);
}

#[test]
fn a_flush_that_does_not_get_through_says_so_in_time() {
    let fake = Fake::default();
    fake.script.lock().unwrap().down = Some("refused".into());
    let mut world = with_fake(&fake, options("events"), Confirm::Queued);
    world.push(0, 0, 0..4);
    world.answers(0, 4);
    let start = Instant::now();
    assert!(!world.handle.flush(Duration::from_millis(200)));
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    world.handle.stop();
    assert_eq!(world.status()["sinks/events/dropped/lost"], "4");
}

#[test]
fn an_idle_core_sleeps() {
    let fake = Fake::default();
    let mut world = with_fake(&fake, options("events"), Confirm::Delivered);
    world.push(0, 0, 0..10);
    world.answers(0, 10);
    std::thread::sleep(Duration::from_millis(100));
    let before = world.thread_ticks();
    std::thread::sleep(Duration::from_secs(1));
    // In hundredths of a second.
    let ticks = world.thread_ticks() - before;
    assert!(ticks <= 1, "{ticks} ticks in a second of nothing");
}

#[test]
fn lines_reach_their_file() {
    let directory = Directory::new();
    let path = directory.path("lines");
    let sink = SinkOptions { kind: SinkKind::File(FileOptions { path: path.to_str().unwrap().to_owned() }), ..options("lines") };
    let mut world = World::start(1, vec![sink], &[(0, Confirm::Delivered)], |_| None);
    world.push(0, 0, 0..1_000);
    world.answers(0, 1_000);
    let lines = fs::read_to_string(path).unwrap();
    assert!(lines.lines().eq((0..1_000).map(|number| format!("{number:06}"))));
    world.assert_nothing_held();
}

#[test]
fn a_sink_that_cannot_be_opened_is_named() {
    let directory = Directory::new();
    let fake = Fake::default();
    let _world = with_fake(&fake, on_disk(&directory), Confirm::Queued);
    let error = World::try_start(1, vec![on_disk(&directory)], &[(0, Confirm::Queued)], |_| None).err().unwrap();
    let path = directory.path("buffer");
    assert_eq!(error.to_string(), format!("sink events: disk buffer {}: another broker uses it", path.display()));
}

#[test]
fn a_sink_whose_dead_letters_could_never_be_written_is_an_error_at_the_start() {
    let directory = Directory::new();
    let mut sink = on_disk(&directory);
    sink.buffer.dead_letter_path = directory.path("none/letters").display().to_string();
    let error = World::try_start(1, vec![sink], &[], |_| None).err().unwrap().to_string();
    assert!(error.starts_with("sink events: dead_letter_path ") && error.contains("no such directory"), "{error}");
}

#[test]
fn gates_of_all_sinks_come_back_to_zero_whatever_becomes_of_records() {
    let directory = Directory::new();
    let fake = Fake { batches_max: 3, records_max: 11, ..Fake::default() };
    fake.script.lock().unwrap().refuses = Some(b"3".to_vec());
    fake.script.lock().unwrap().reports = (0..30)
        .map(|round| Report {
            verdicts: (0..11).map(|n| if (n + round) % 3 == 0 { Verdict::Again } else { Verdict::Delivered }).collect(),
            error: None,
        })
        .collect();
    let mut memory = options("memory");
    memory.buffer.dead_letter_path = directory.path("letters").to_str().unwrap().to_owned();
    let mut disk = SinkOptions { name: "disk".into(), ..on_disk(&directory) };
    disk.buffer.dead_letter_path = directory.path("letters").to_str().unwrap().to_owned();
    disk.buffer.memory_bytes_max = 30 * numbered(0, 0).bytes();
    let actions = [(0, Confirm::Delivered), (1, Confirm::Queued)];
    let mut world = World::start(2, vec![memory, disk], &actions, move |_| Some(Arc::new(fake.clone())));
    for round in 0..30 {
        for shard in 0..2 {
            world.push(shard, (round % 2) as u16, round * 10..round * 10 + 10);
        }
    }
    for shard in 0..2 {
        let answers = world.answers(shard, 300);
        let by_outcome = answers.iter().fold(HashMap::new(), |mut counts, (_, outcome)| {
            *counts.entry(format!("{outcome:?}")).or_insert(0) += 1;
            counts
        });
        assert!(by_outcome["Accepted"] > by_outcome["Failed"], "{by_outcome:?}");
    }
    world.assert_nothing_held();
}
