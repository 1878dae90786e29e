use super::super::testing::{Directory, record};
use super::*;

fn numbered(number: u64) -> Record {
    let mut record = record(0, &[format!("{number:04}").as_bytes()]);
    record.ticket = Some(TicketId { slot: number as u32, generation: 1 });
    record
}

fn bytes_each() -> u64 {
    numbered(0).bytes()
}

fn options(directory: Option<&Directory>, memory: u64, disk: u64, when_full: WhenFull) -> BufferOptions {
    BufferOptions {
        memory_bytes_max: memory * bytes_each(),
        disk_path: directory.map_or(String::new(), |directory| directory.path("buffer").to_str().unwrap().to_owned()),
        disk_bytes_max: disk * bytes_each(),
        when_full,
        ..BufferOptions::default()
    }
}

fn push(buffer: &mut Buffer, numbers: std::ops::Range<u64>) {
    for number in numbers {
        buffer.push((number % 3) as u16, numbered(number), false);
        assert!(matches!(buffer.commit(), Commit::Done));
    }
}

fn refill(buffer: &mut Buffer) {
    let (mut endings, mut lines) = (Vec::new(), Vec::new());
    while buffer.refill(&mut endings, &mut lines).unwrap() && buffer.waiting_bytes < buffer.memory_bytes_max / 2 {}
    assert_eq!((endings.len(), lines.len()), (0, 0));
}

/// Sends and ends everything that there is; the texts of the records, checking that each kept its shard and ticket.
fn drain(buffer: &mut Buffer, tickets: bool) -> Vec<u64> {
    let mut numbers = Vec::new();
    loop {
        refill(buffer);
        let Some((number, record)) = buffer.lend() else { return numbers };
        let (ending, _) = buffer.end(number, End::Delivered);
        let text: u64 = str::from_utf8(record.part(0)).unwrap().parse().unwrap();
        if tickets {
            assert_eq!((u64::from(ending.shard), ending.ticket.unwrap().slot), (text % 3, text as u32));
        }
        numbers.push(text);
    }
}

#[test]
fn the_gate_of_a_buffer_holds_what_its_disk_or_else_its_memory_holds() {
    let directory = Directory::new();
    assert_eq!(gate_bytes_max(&options(None, 2, 9, WhenFull::Hold)), 2 * bytes_each());
    assert_eq!(gate_bytes_max(&options(Some(&directory), 2, 9, WhenFull::Hold)), 9 * bytes_each());
}

#[test]
fn records_leave_in_the_order_of_their_arrival_and_end_in_any() {
    let (mut buffer, _) = Buffer::open(&options(None, 100, 0, WhenFull::Hold), "file").unwrap();
    push(&mut buffer, 0..5);
    for _ in 0..4 {
        buffer.send();
    }
    assert_eq!((buffer.in_flight(), buffer.waiting()), (4, 1));
    let (ending, record) = buffer.end(2, End::Delivered);
    assert_eq!((ending.ticket.unwrap().slot, ending.shard, record.unwrap().part(0)), (2, 2, &b"0002"[..]));
    buffer.end(0, End::DeadLetter);
    buffer.again(1);
    assert_eq!((buffer.in_flight(), buffer.waiting(), buffer.front().unwrap().number), (1, 2, 1));
    buffer.send();
    assert_eq!(buffer.front().unwrap().number, 4);
    buffer.end(1, End::Delivered);
    buffer.end(3, End::Delivered);
    assert_eq!(buffer.in_flight_bytes(), 0);
    assert_eq!(drain(&mut buffer, true), [4]);
    assert!(buffer.is_empty());
    assert_eq!(buffer.take_memory_change(), -5 * bytes_each() as i64);
}

#[test]
fn everything_in_flight_can_be_sent_again_in_its_order() {
    let (mut buffer, _) = Buffer::open(&options(None, 100, 0, WhenFull::Hold), "file").unwrap();
    push(&mut buffer, 0..6);
    (0..5).for_each(|_| buffer.send());
    buffer.end(1, End::Delivered);
    buffer.end(3, End::Delivered);
    buffer.all_again();
    assert_eq!((buffer.in_flight(), buffer.in_flight_bytes(), buffer.waiting_bytes()), (0, 0, 4 * bytes_each()));
    assert_eq!(drain(&mut buffer, true), [0, 2, 4, 5]);
    assert!(buffer.is_empty());
}

#[test]
fn what_has_no_room_in_memory_comes_back_from_disk_with_its_ticket_and_in_order() {
    let directory = Directory::new();
    let (mut buffer, _) = Buffer::open(&options(Some(&directory), 4, 100, WhenFull::Hold), "file").unwrap();
    push(&mut buffer, 0..10);
    assert_eq!((buffer.waiting(), buffer.unsaved()), (4, 0));
    assert_eq!(buffer.take_memory_change(), -6 * bytes_each() as i64);
    for expected in 0..2 {
        let (number, _) = buffer.lend().unwrap();
        assert_eq!(number, expected);
        buffer.end(number, End::Delivered);
    }
    // What comes now is behind what is on disk, though there is room in memory.
    push(&mut buffer, 10..11);
    assert_eq!(drain(&mut buffer, true), (2..11).collect::<Vec<_>>());
    assert!(buffer.is_empty());
    buffer.take_memory_change();
    push(&mut buffer, 11..12);
    assert_eq!(buffer.waiting(), 1);
}

#[test]
fn a_crash_replays_all_that_had_not_ended_and_little_that_had() {
    let directory = Directory::new();
    let options = options(Some(&directory), 4, 100, WhenFull::Hold);
    let (mut buffer, _) = Buffer::open(&options, "file").unwrap();
    push(&mut buffer, 0..10);
    let (first, _) = buffer.lend().unwrap();
    let (second, _) = buffer.lend().unwrap();
    let (third, _) = buffer.lend().unwrap();
    buffer.end(first, End::Delivered);
    buffer.end(third, End::Delivered);
    buffer.checkpoint().unwrap();
    buffer.end(second, End::Delivered);
    drop(buffer);
    let (mut buffer, replay) = Buffer::open(&options, "file").unwrap();
    assert_eq!((replay.records, replay.bytes, replay.corrupt.len()), (9, 9 * bytes_each(), 0));
    push(&mut buffer, 10..12);
    assert_eq!(drain(&mut buffer, false), (1..12).collect::<Vec<_>>());
    buffer.checkpoint().unwrap();
    drop(buffer);
    assert_eq!(Buffer::open(&options, "file").unwrap().1.records, 0);
}

#[test]
fn records_that_cannot_be_read_end_with_their_tickets_and_all_their_bytes() {
    let directory = Directory::new();
    let (mut buffer, _) = Buffer::open(&options(Some(&directory), 1, 100, WhenFull::Hold), "file").unwrap();
    push(&mut buffer, 0..4);
    std::fs::remove_file(directory.path("buffer/00000000000000000000.segment")).unwrap();
    let (mut endings, mut lines) = (Vec::new(), Vec::new());
    buffer.lend().unwrap();
    buffer.end(0, End::Delivered);
    buffer.refill(&mut endings, &mut lines).unwrap();
    assert_eq!(endings.iter().map(|ending| ending.ticket.unwrap().slot).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(endings.iter().map(|ending| ending.bytes).sum::<u64>(), 3 * bytes_each());
    assert!(lines[0].starts_with("3 records are lost: "), "{lines:?}");
    assert!(buffer.is_empty());
}

#[test]
fn a_full_buffer_drops_the_oldest_that_is_not_in_flight() {
    let (mut buffer, _) = Buffer::open(&options(None, 3, 0, WhenFull::DropOldest), "file").unwrap();
    push(&mut buffer, 0..2);
    buffer.send();
    assert_eq!(buffer.drop_oldest(), None);
    push(&mut buffer, 2..5);
    let dropped: Vec<u32> = std::iter::from_fn(|| buffer.drop_oldest()).map(|ending| ending.ticket.unwrap().slot).collect();
    assert_eq!(dropped, [1, 2]);
    assert_eq!(drain(&mut buffer, true), [3, 4]);
    let (mut holding, _) = Buffer::open(&options(None, 1, 0, WhenFull::Hold), "file").unwrap();
    push(&mut holding, 0..5);
    assert_eq!(holding.drop_oldest(), None);
}

#[test]
fn a_full_disk_buffer_drops_the_oldest_on_disk_as_well() {
    let directory = Directory::new();
    let (mut buffer, _) = Buffer::open(&options(Some(&directory), 2, 5, WhenFull::DropOldest), "file").unwrap();
    push(&mut buffer, 0..2);
    // What is in flight stays and takes all of memory.
    buffer.send();
    buffer.send();
    push(&mut buffer, 2..9);
    let mut dropped = Vec::new();
    loop {
        while let Some(ending) = buffer.drop_oldest() {
            dropped.push(ending.ticket.unwrap().slot);
        }
        if !buffer.must_refill() {
            break;
        }
        assert!(buffer.refill(&mut Vec::new(), &mut Vec::new()).is_ok() && buffer.waiting() > 0);
    }
    assert_eq!(dropped, [2, 3, 4, 5]);
    buffer.end(0, End::Delivered);
    buffer.end(1, End::Delivered);
    assert_eq!(drain(&mut buffer, true), [6, 7, 8]);
}

#[test]
fn a_ticket_that_asks_for_no_more_is_given_back_once_its_record_is_in_the_buffer() {
    let directory = Directory::new();
    for directory in [None, Some(&directory)] {
        let (mut buffer, _) = Buffer::open(&options(directory, 1, 100, WhenFull::Hold), "file").unwrap();
        buffer.push(1, numbered(7), true);
        assert!(matches!(buffer.commit(), Commit::Done));
        assert_eq!(buffer.take_queued().map(|(shard, ticket)| (shard, ticket.slot)).collect::<Vec<_>>(), [(1, 7)]);
        let (number, _) = buffer.lend().unwrap();
        assert_eq!(buffer.end(number, End::Delivered).0.ticket, None);
    }
}

#[test]
fn what_cannot_be_written_stays_incoming_until_it_can() {
    let directory = Directory::new();
    let (mut buffer, _) = Buffer::open(&options(Some(&directory), 100, 100, WhenFull::Hold), "file").unwrap();
    // Nobody can begin a segment where a directory has its name.
    let name = directory.path("buffer/00000000000000000000.segment");
    std::fs::create_dir(&name).unwrap();
    buffer.push(0, numbered(0), false);
    assert!(matches!(buffer.commit(), Commit::Failed(_)));
    buffer.push(1, numbered(1), false);
    assert!(matches!(buffer.commit(), Commit::Failed(_)));
    assert_eq!((buffer.waiting(), buffer.unsaved()), (0, 2));
    std::fs::remove_dir(&name).unwrap();
    assert!(matches!(buffer.commit(), Commit::Done));
    assert!(matches!(buffer.commit(), Commit::Nothing));
    assert_eq!(drain(&mut buffer, true), [0, 1]);
}

#[test]
fn what_cannot_be_written_is_dropped_past_the_memory_that_it_may_take() {
    let directory = Directory::new();
    let (mut buffer, _) = Buffer::open(&options(Some(&directory), 2, 100, WhenFull::DropOldest), "file").unwrap();
    std::fs::create_dir(directory.path("buffer/00000000000000000000.segment")).unwrap();
    for number in 0..5 {
        buffer.push((number % 3) as u16, numbered(number), false);
        assert!(matches!(buffer.commit(), Commit::Failed(_)));
    }
    let dropped: Vec<u32> = std::iter::from_fn(|| buffer.drop_oldest()).map(|ending| ending.ticket.unwrap().slot).collect();
    assert_eq!(dropped, [0, 1, 2]);
    assert_eq!(buffer.take_memory_change(), -3 * bytes_each() as i64);
}
