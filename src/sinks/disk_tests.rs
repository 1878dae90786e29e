use super::super::testing::{Directory, record};
use super::*;

fn numbered(number: u64) -> Record {
    record(0, &[format!("record {number}").as_bytes()])
}

fn append(disk: &mut Disk, numbers: std::ops::Range<u64>) {
    let records: Vec<Record> = numbers.clone().map(numbered).collect();
    assert_eq!(disk.append(records.iter(), false).unwrap(), numbers.start);
}

/// Reads everything; the numbers read and what could not be.
fn read_all(disk: &mut Disk) -> (Vec<u64>, Vec<Unreadable>) {
    let (mut numbers, mut unreadable) = (Vec::new(), Vec::new());
    while disk.has_unread() {
        let mut out = Vec::new();
        if let Read::Unreadable(lost) = disk.read(100, &mut out).unwrap() {
            unreadable.push(lost);
        }
        for (number, record) in out {
            assert_eq!(record, numbered(number));
            numbers.push(number);
        }
    }
    (numbers, unreadable)
}

fn segments(directory: &Directory) -> Vec<u64> {
    let names = fs::read_dir(directory.path("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut firsts: Vec<u64> = names.filter_map(|name| name.strip_suffix(".segment")?.parse().ok()).collect();
    firsts.sort_unstable();
    firsts
}

#[test]
fn a_restart_replays_in_order_what_lies_above_the_checkpoint() {
    let directory = Directory::new();
    let (mut disk, found) = Disk::open(&directory.path("")).unwrap();
    assert_eq!(found, Found::default());
    append(&mut disk, 0..10);
    append(&mut disk, 10..20);
    (0..13).for_each(|number| disk.end(number));
    disk.set_checkpoint(13).unwrap();
    drop(disk);
    let (mut disk, found) = Disk::open(&directory.path("")).unwrap();
    let bytes = (13..20).map(|number| numbered(number).bytes()).sum();
    assert_eq!(found, Found { records: 7, bytes, corrupt: vec![] });
    assert_eq!((disk.first_unread(), disk.next), (13, 20));
    append(&mut disk, 20..22);
    assert_eq!(read_all(&mut disk), ((13..22).collect(), vec![]));
    assert_eq!(disk.first_unread(), 22);
    (13..22).for_each(|number| disk.end(number));
    disk.set_checkpoint(22).unwrap();
    drop(disk);
    let (disk, found) = Disk::open(&directory.path("")).unwrap();
    assert_eq!((found, disk.next, disk.bytes()), (Found::default(), 22, 0));
    assert!(segments(&directory).is_empty());
}

#[test]
fn segments_go_when_their_last_record_has_ended_wherever_they_are() {
    let directory = Directory::new();
    let (mut disk, _) = Disk::open_with(&directory.path(""), 1).unwrap();
    for number in 0..4 {
        append(&mut disk, 3 * number..3 * number + 3);
    }
    assert_eq!(segments(&directory), [0, 3, 6, 9]);
    read_all(&mut disk);
    [4, 3, 5].into_iter().for_each(|number| disk.end(number));
    assert_eq!(segments(&directory), [0, 6, 9]);
    (9..12).for_each(|number| disk.end(number));
    assert_eq!(segments(&directory), [0, 6, 9]);
    append(&mut disk, 12..13);
    assert_eq!(segments(&directory), [0, 6, 12]);
    drop(disk);
    let (mut disk, found) = Disk::open(&directory.path("")).unwrap();
    assert_eq!((found.records, found.corrupt), (7, vec![]));
    let len = |first| fs::metadata(path(&directory.path(""), first)).unwrap().len();
    assert_eq!(disk.bytes(), len(0) + len(6) + len(12));
    assert_eq!(read_all(&mut disk).0, [0, 1, 2, 6, 7, 8, 12]);
}

#[test]
fn a_tail_torn_at_any_byte_costs_nothing_before_it_and_numbers_go_on() {
    let whole = Directory::new();
    let (mut disk, _) = Disk::open(&whole.path("")).unwrap();
    append(&mut disk, 0..3);
    drop(disk);
    let bytes = fs::read(path(&whole.path(""), 0)).unwrap();
    let mut ends = vec![0];
    for number in 0..3 {
        let mut encoded = Vec::new();
        encode(&numbered(number), &mut encoded);
        ends.push(ends[number as usize] + encoded.len());
    }
    assert_eq!(ends[3], bytes.len());
    for len in 0..=bytes.len() {
        let directory = Directory::new();
        fs::write(path(&directory.path(""), 0), &bytes[..len]).unwrap();
        let (mut disk, found) = Disk::open(&directory.path("")).unwrap();
        let records = ends[1..].iter().filter(|end| **end <= len).count() as u64;
        assert_eq!((found.records, found.corrupt.len()), (records, 0), "{len}");
        append(&mut disk, records..records + 1);
        assert_eq!(read_all(&mut disk), ((0..=records).collect(), vec![]), "{len}");
    }
}

#[test]
fn a_corrupt_record_costs_the_rest_of_its_segment_and_is_said() {
    for at in [0, 5, 9, 12] {
        let directory = Directory::new();
        let (mut disk, _) = Disk::open_with(&directory.path(""), 1).unwrap();
        append(&mut disk, 0..3);
        append(&mut disk, 3..6);
        append(&mut disk, 6..9);
        drop(disk);
        let second = path(&directory.path(""), 3);
        let mut bytes = fs::read(&second).unwrap();
        let mut record = Vec::new();
        encode(&numbered(3), &mut record);
        bytes[record.len() + at] ^= 0x55;
        fs::write(&second, &bytes).unwrap();
        let (mut disk, found) = Disk::open_with(&directory.path(""), 1).unwrap();
        assert_eq!((found.records, found.corrupt.len()), (7, 1), "{at}");
        assert!(found.corrupt[0].contains(&format!("3.segment at byte {}", record.len())), "{found:?}");
        append(&mut disk, 9..10);
        assert_eq!(read_all(&mut disk), (vec![0, 1, 2, 3, 6, 7, 8, 9], vec![]), "{at}");
    }
}

#[test]
fn corruption_in_the_last_segment_is_said_and_numbers_are_not_used_twice() {
    let directory = Directory::new();
    let (mut disk, _) = Disk::open(&directory.path("")).unwrap();
    append(&mut disk, 0..3);
    drop(disk);
    let only = path(&directory.path(""), 0);
    let mut bytes = fs::read(&only).unwrap();
    bytes[12] ^= 0x55;
    fs::write(&only, &bytes).unwrap();
    let (disk, found) = Disk::open(&directory.path("")).unwrap();
    assert_eq!((found.records, found.corrupt.len(), disk.next), (0, 1, 0));
}

#[test]
fn what_becomes_unreadable_while_the_broker_runs_is_given_up_with_its_numbers() {
    let directory = Directory::new();
    let (mut disk, _) = Disk::open_with(&directory.path(""), 1).unwrap();
    append(&mut disk, 0..3);
    append(&mut disk, 3..6);
    let first = path(&directory.path(""), 0);
    let mut bytes = fs::read(&first).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 0x55;
    fs::write(&first, &bytes).unwrap();
    let (numbers, unreadable) = read_all(&mut disk);
    assert_eq!(numbers, [0, 1, 3, 4, 5]);
    let lost: Vec<_> = unreadable.iter().map(|lost| (lost.first, lost.records, lost.bytes)).collect();
    assert_eq!(lost, [(2, 1, numbered(2).bytes())]);
    disk.end(0);
    disk.end(1);
    assert_eq!(segments(&directory), [3]);
    fs::remove_file(path(&directory.path(""), 3)).unwrap();
}

#[test]
fn a_segment_that_somebody_removed_is_given_up() {
    let directory = Directory::new();
    let (mut disk, _) = Disk::open_with(&directory.path(""), 1).unwrap();
    append(&mut disk, 0..3);
    append(&mut disk, 3..4);
    fs::remove_file(path(&directory.path(""), 0)).unwrap();
    let (numbers, unreadable) = read_all(&mut disk);
    assert_eq!((numbers, unreadable.len(), unreadable[0].records), (vec![3], 1, 3));
}

#[test]
fn two_brokers_never_share_a_directory() {
    let directory = Directory::new();
    let (disk, _) = Disk::open(&directory.path("")).unwrap();
    let error = Disk::open(&directory.path("")).err().unwrap();
    assert_eq!(error.to_string(), "another broker uses it");
    drop(disk);
    assert!(Disk::open(&directory.path("")).is_ok());
}

#[test]
fn one_place_of_the_checkpoint_may_be_torn() {
    let directory = Directory::new();
    let file = directory.path("checkpoint");
    let mut checkpoint = Checkpoint::open(&file).unwrap();
    assert_eq!(checkpoint.number, 0);
    for number in 1..6 {
        checkpoint.write(number).unwrap();
        assert_eq!(Checkpoint::open(&file).unwrap().number, number);
    }
    let bytes = fs::read(&file).unwrap();
    for at in 0..bytes.len() {
        let mut torn = bytes.clone();
        torn[at] ^= 1;
        fs::write(&file, &torn).unwrap();
        let number = Checkpoint::open(&file).unwrap().number;
        // The fifth was written to the first place, the fourth to the second.
        assert_eq!(number, if at < PLACE_BYTES { 4 } else { 5 }, "{at}");
        let mut checkpoint = Checkpoint::open(&file).unwrap();
        checkpoint.write(6).unwrap();
        assert_eq!(Checkpoint::open(&file).unwrap().number, 6, "{at}");
    }
}

#[test]
fn records_longer_than_a_chunk_are_read_whole() {
    let directory = Directory::new();
    let (mut disk, _) = Disk::open(&directory.path("")).unwrap();
    let long = [record(0, &[&vec![7; READ_BYTES + 1]]), record(0, &[b"short"]), record(0, &[&vec![8; 2 * READ_BYTES]])];
    disk.append(long.iter(), false).unwrap();
    let mut out = Vec::new();
    assert_eq!(disk.read(u64::MAX, &mut out).unwrap(), Read::Records);
    assert_eq!(out.into_iter().map(|(_, record)| record).collect::<Vec<_>>(), long);
    drop(disk);
    assert_eq!(Disk::open(&directory.path("")).unwrap().1.records, 3);
}
