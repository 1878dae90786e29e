use super::super::segment::READ_BYTES;
use super::super::testing::{Directory, record};
use super::*;

const MANY: u64 = 1 << 30;

fn open(directory: &Directory) -> (Disk, Found) {
    Disk::open(&directory.path(""), "file", MANY).unwrap()
}

fn open_with(directory: &Directory, segment_bytes: u64) -> (Disk, Found) {
    Disk::open_with(&directory.path(""), "file", segment_bytes).unwrap()
}

/// Changes one byte of a file.
fn damage(file: &Path, at: usize) {
    let mut bytes = fs::read(file).unwrap();
    bytes[at] ^= 0x55;
    fs::write(file, &bytes).unwrap();
}

/// Where the records of a segment begin, and where the last ends.
fn places(numbers: std::ops::Range<u64>) -> Vec<usize> {
    let mut ends = vec![0];
    let mut bytes = Vec::new();
    for number in numbers {
        encode(&numbered(number), 0, &mut bytes);
        ends.push(bytes.len());
    }
    ends
}

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
    let (mut disk, found) = open(&directory);
    assert_eq!(found, Found::default());
    append(&mut disk, 0..10);
    append(&mut disk, 10..20);
    (0..13).for_each(|number| disk.end(number));
    disk.set_checkpoint(13).unwrap();
    drop(disk);
    let (mut disk, found) = open(&directory);
    let bytes = (13..20).map(|number| numbered(number).bytes()).sum();
    assert_eq!(found, Found { records: 7, bytes, ..Found::default() });
    assert_eq!((disk.first_unread(), disk.next), (13, 20));
    append(&mut disk, 20..22);
    assert_eq!(read_all(&mut disk), ((13..22).collect(), vec![]));
    assert_eq!(disk.first_unread(), 22);
    (13..22).for_each(|number| disk.end(number));
    disk.set_checkpoint(22).unwrap();
    drop(disk);
    let (disk, found) = open(&directory);
    assert_eq!((found, disk.next, disk.bytes()), (Found::default(), 22, 0));
    assert!(segments(&directory).is_empty());
}

#[test]
fn segments_go_in_order_when_their_last_record_has_ended() {
    let directory = Directory::new();
    let (mut disk, _) = open_with(&directory, 1);
    for number in 0..4 {
        append(&mut disk, 3 * number..3 * number + 3);
    }
    assert_eq!(segments(&directory), [0, 3, 6, 9]);
    read_all(&mut disk);
    [4, 3, 5].into_iter().for_each(|number| disk.end(number));
    assert_eq!(segments(&directory), [0, 3, 6, 9]);
    (0..3).for_each(|number| disk.end(number));
    assert_eq!(segments(&directory), [6, 9]);
    (9..12).for_each(|number| disk.end(number));
    append(&mut disk, 12..13);
    assert_eq!(segments(&directory), [6, 9, 12]);
    drop(disk);
    let (mut disk, found) = open_with(&directory, 1);
    assert_eq!((found.records, found.corrupt), (7, vec![]));
    let len = |first| fs::metadata(path(&directory.path(""), first)).unwrap().len();
    assert_eq!(disk.bytes(), len(6) + len(9) + len(12));
    assert_eq!(read_all(&mut disk).0, (6..13).collect::<Vec<_>>());
}

#[test]
fn a_tail_torn_at_any_byte_costs_nothing_before_it_and_numbers_go_on() {
    let whole = Directory::new();
    let (mut disk, _) = open(&whole);
    append(&mut disk, 0..3);
    drop(disk);
    let bytes = fs::read(path(&whole.path(""), 0)).unwrap();
    let ends = places(0..3);
    assert_eq!(ends[3], bytes.len());
    for len in 0..=bytes.len() {
        let directory = Directory::new();
        drop(open(&directory));
        fs::write(path(&directory.path(""), 0), &bytes[..len]).unwrap();
        let (mut disk, found) = open(&directory);
        let records = ends[1..].iter().filter(|end| **end <= len).count() as u64;
        assert_eq!((found.records, found.corrupt.len()), (records, 0), "{len}");
        append(&mut disk, records..records + 1);
        assert_eq!(read_all(&mut disk), ((0..=records).collect(), vec![]), "{len}");
        drop(disk);
        let (_, found) = open(&directory);
        assert_eq!((found.records, found.corrupt.len()), (records + 1, 0), "{len}: nor is it missed later");
    }
}

#[test]
fn a_damaged_record_costs_itself_wherever_the_damage_is() {
    let place = places(3..5);
    let len = place[2] - place[1];
    // Length, CRC of the record, place, CRC of the head, record.
    for at in [0, 3, 5, 9, 12, 16, len - 1] {
        let directory = Directory::new();
        let (mut disk, _) = open_with(&directory, 1);
        append(&mut disk, 0..3);
        append(&mut disk, 3..6);
        append(&mut disk, 6..9);
        drop(disk);
        damage(&path(&directory.path(""), 3), place[1] + at);
        let (mut disk, found) = open_with(&directory, 1);
        assert_eq!((found.records, found.lost, found.corrupt.len()), (8, 1, 1), "{at}");
        assert!(
            found.corrupt[0].contains(&format!("3.segment at byte {}: {len} bytes are no record; records missing: 1", place[1]))
        );
        append(&mut disk, 9..10);
        assert_eq!(read_all(&mut disk), (vec![0, 1, 2, 3, 5, 6, 7, 8, 9], vec![]), "{at}");
        [0, 1, 2, 3, 5, 6, 7, 8, 9].into_iter().for_each(|number| disk.end(number));
        assert_eq!(segments(&directory), [9]);
        assert!(directory.path("00000000000000000003.corrupt").exists());
    }
}

#[test]
fn damage_at_the_end_of_a_segment_is_counted_by_where_the_next_begins() {
    let directory = Directory::new();
    let (mut disk, _) = open_with(&directory, 1);
    append(&mut disk, 0..4);
    append(&mut disk, 4..6);
    (0..2).for_each(|number| disk.end(number));
    disk.set_checkpoint(2).unwrap();
    drop(disk);
    let first = path(&directory.path(""), 0);
    let bytes = fs::read(&first).unwrap();
    // All of it: two had ended, two are missing.
    fs::write(&first, vec![0xFF; bytes.len()]).unwrap();
    let (mut disk, found) = open_with(&directory, 1);
    assert_eq!((found.records, found.lost), (2, 2));
    assert_eq!(read_all(&mut disk), (vec![4, 5], vec![]));
    drop(disk);
    fs::write(&first, &bytes[..places(0..3)[3]]).unwrap();
    let (mut disk, found) = open_with(&directory, 1);
    assert_eq!((found.records, found.lost), (3, 1));
    assert!(found.corrupt[0].contains("it ends too early"), "{found:?}");
    assert_eq!(read_all(&mut disk), (vec![2, 4, 5], vec![]));
}

#[test]
fn damage_at_the_very_end_is_no_torn_tail_and_numbers_go_on() {
    for at in [0, 5, 12, 20] {
        let directory = Directory::new();
        let (mut disk, _) = open(&directory);
        append(&mut disk, 0..3);
        drop(disk);
        damage(&path(&directory.path(""), 0), places(0..3)[2] + at);
        let (mut disk, found) = open(&directory);
        assert_eq!((found.records, found.lost, found.corrupt.len()), (2, 1, 1), "{at}: {found:?}");
        append(&mut disk, 2..3);
        assert_eq!(read_all(&mut disk), (vec![0, 1, 2], vec![]));
        drop(disk);
        assert_eq!(open(&directory).1.lost, 0, "it is counted once");
        assert!(directory.path("00000000000000000000.corrupt").exists());
    }
}

#[test]
fn a_segment_of_nothing_but_damage_is_kept_and_its_name_used_again() {
    let directory = Directory::new();
    drop(open(&directory));
    fs::write(path(&directory.path(""), 0), [7; 1000]).unwrap();
    let (mut disk, found) = open(&directory);
    assert_eq!((found.records, found.lost), (0, 1));
    append(&mut disk, 0..2);
    assert_eq!(read_all(&mut disk), (vec![0, 1], vec![]));
    assert_eq!(fs::read(directory.path("00000000000000000000.corrupt")).unwrap(), [7; 1000]);
}

#[test]
fn no_more_than_some_damaged_segments_are_kept() {
    let directory = Directory::new();
    let (mut disk, _) = open_with(&directory, 1);
    for number in 0..KEPT_MAX as u64 + 3 {
        append(&mut disk, number..number + 1);
    }
    drop(disk);
    segments(&directory).into_iter().for_each(|first| damage(&path(&directory.path(""), first), 20));
    let (_, found) = open_with(&directory, 1);
    assert_eq!(found.lost, KEPT_MAX as u64 + 3);
    assert_eq!(found.corrupt.iter().filter(|line| line.contains("the file is kept as")).count(), KEPT_MAX);
}

#[test]
fn what_is_damaged_while_the_broker_runs_is_given_up_with_its_numbers() {
    let directory = Directory::new();
    let (mut disk, _) = open_with(&directory, 1);
    append(&mut disk, 0..5);
    append(&mut disk, 5..8);
    let place = places(0..5);
    let first = path(&directory.path(""), 0);
    damage(&first, place[1] + 3);
    damage(&first, place[2] + 30);
    damage(&first, place[5] - 1);
    let (numbers, unreadable) = read_all(&mut disk);
    assert_eq!(numbers, [0, 3, 5, 6, 7]);
    let lost: Vec<_> = unreadable.iter().map(|lost| (lost.first, lost.records)).collect();
    assert_eq!(lost, [(1, 2), (4, 1)]);
    let bytes: u64 = unreadable.iter().map(|lost| lost.bytes).sum();
    assert_eq!(bytes, 3 * numbered(0).bytes(), "what they were charged is given back");
    disk.end(0);
    disk.end(3);
    assert_eq!(segments(&directory), [5]);
}

#[test]
fn damage_that_the_start_has_told_of_is_not_counted_again_when_it_is_read() {
    let directory = Directory::new();
    let (mut disk, _) = open_with(&directory, 1);
    append(&mut disk, 0..5);
    drop(disk);
    let place = places(0..5);
    let first = path(&directory.path(""), 0);
    damage(&first, place[1] + 3);
    let (mut disk, found) = open_with(&directory, 1);
    assert_eq!((found.records, found.lost), (4, 1));
    damage(&first, place[3] + 3);
    let (numbers, unreadable) = read_all(&mut disk);
    assert_eq!(numbers, [0, 2, 4]);
    assert_eq!(unreadable.iter().map(|lost| lost.records).sum::<u64>(), 1);
    [0, 2, 4].into_iter().for_each(|number| disk.end(number));
    append(&mut disk, 5..6);
    assert_eq!(segments(&directory), [5]);
}

#[test]
fn a_directory_that_was_removed_fails_once_and_is_made_anew() {
    let directory = Directory::new();
    let buffer = directory.path("buffer");
    let open = || Disk::open_with(&buffer, "file", MANY).unwrap();
    let (mut disk, _) = open();
    append(&mut disk, 0..2);
    fs::remove_dir_all(&buffer).unwrap();
    let records = [numbered(2)];
    let error = disk.append(records.iter(), false).unwrap_err().to_string();
    assert!(error.contains("was removed while it was in use"), "{error}");
    append(&mut disk, 2..4);
    let (numbers, unreadable) = read_all(&mut disk);
    assert_eq!((numbers, unreadable[0].records), (vec![2, 3], 2));
    assert_eq!(Disk::open_with(&buffer, "file", MANY).err().unwrap().to_string(), "another broker uses it");
    drop(disk);
    assert_eq!(open().1.records, 2);
}

#[test]
fn a_disk_full_of_what_has_been_delivered_takes_records_again() {
    let directory = Directory::new();
    let (mut disk, _) = open_with(&directory, MANY);
    append(&mut disk, 0..3);
    assert!(!disk.drop_delivered(), "they have not ended");
    (0..3).for_each(|number| disk.end(number));
    assert!(disk.drop_delivered());
    assert_eq!((segments(&directory), disk.bytes()), (vec![], 0));
    append(&mut disk, 3..4);
    assert_eq!(read_all(&mut disk), (vec![3], vec![]));
}

#[test]
fn records_of_one_kind_of_sink_are_nothing_for_another() {
    let directory = Directory::new();
    let (mut disk, _) = open(&directory);
    append(&mut disk, 0..2);
    drop(disk);
    let error = Disk::open(&directory.path(""), "http", MANY).err().unwrap().to_string();
    assert!(error.contains("2 records of a sink of kind file, and this one is of kind http"), "{error}");
    let (mut disk, _) = open(&directory);
    read_all(&mut disk);
    (0..2).for_each(|number| disk.end(number));
    disk.set_checkpoint(2).unwrap();
    drop(disk);
    drop(Disk::open(&directory.path(""), "http", MANY).unwrap());
    assert!(fs::read_to_string(directory.path("format")).unwrap().ends_with("kind http\n"));
    fs::write(directory.path("format"), "corelane disk buffer 3").unwrap();
    let error = Disk::open(&directory.path(""), "http", MANY).err().unwrap().to_string();
    assert!(error.contains("format of another version"), "{error}");
}

#[test]
fn a_file_that_is_no_segment_is_named_and_left_alone() {
    for name in ["18446744073709551615.segment", "7.segment", "a.segment"] {
        let directory = Directory::new();
        drop(open(&directory));
        fs::write(directory.path(name), "x").unwrap();
        let error = Disk::open(&directory.path(""), "file", MANY).err().unwrap().to_string();
        assert!(error.contains(name) && error.contains("move it away"), "{error}");
        assert!(directory.path(name).exists());
    }
}

#[test]
fn a_segment_that_somebody_removed_is_given_up() {
    let directory = Directory::new();
    let (mut disk, _) = open_with(&directory, 1);
    append(&mut disk, 0..3);
    append(&mut disk, 3..4);
    fs::remove_file(path(&directory.path(""), 0)).unwrap();
    let (numbers, unreadable) = read_all(&mut disk);
    assert_eq!((numbers, unreadable.len(), unreadable[0].records), (vec![3], 1, 3));
}

#[test]
fn two_brokers_never_share_a_directory() {
    let directory = Directory::new();
    let (disk, _) = open(&directory);
    let error = Disk::open(&directory.path(""), "file", MANY).err().unwrap();
    assert_eq!(error.to_string(), "another broker uses it");
    drop(disk);
    assert!(Disk::open(&directory.path(""), "file", MANY).is_ok());
}

#[test]
fn one_place_of_the_checkpoint_may_be_torn() {
    let directory = Directory::new();
    let file = directory.path("checkpoint");
    let mut checkpoint = Checkpoint::open(&file).unwrap();
    assert_eq!((checkpoint.number, fs::metadata(&file).unwrap().len()), (0, 2 * PLACE_BYTES as u64));
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
    let (mut disk, _) = open(&directory);
    let long = [record(0, &[&vec![7; READ_BYTES + 1]]), record(0, &[b"short"]), record(0, &[&vec![8; 2 * READ_BYTES]])];
    disk.append(long.iter(), false).unwrap();
    let mut out = Vec::new();
    assert_eq!(disk.read(u64::MAX, &mut out).unwrap(), Read::Records);
    assert_eq!(out.into_iter().map(|(_, record)| record).collect::<Vec<_>>(), long);
    drop(disk);
    assert_eq!(open(&directory).1.records, 3);
}
