//! What the MongoDB sink makes of records and answers; the rest is tested against a server, in `tests/mongodb.rs`.

use super::super::testing::record;
use super::*;
use mongodb::bson::{DateTime, doc};

const ID_PART: &[u8] = b"0123456789ab";

fn write(collection: &str, document: &str, filter: &str) -> Result<Write, String> {
    Write::new(0, &record(0, &[collection.as_bytes(), document.as_bytes(), filter.as_bytes(), ID_PART]))
}

fn written(write: &Write) -> Document {
    Document::try_from(&*write.document).unwrap()
}

#[test]
fn json_becomes_a_document_whose_fields_keep_order_and_type_with_an_id_in_front() {
    let json = r#"{"z":1,"a":-2,"big":9007199254740993,"half":0.5,"t":{"$date":1700000000000},"list":[null,true,{"x":"é"}]}"#;
    let write = write("c", json, "").unwrap();
    let id = ObjectId::from_bytes(ID_PART.try_into().unwrap());
    let expected = doc! {
        "_id": id, "z": 1_i32, "a": -2_i64, "big": 9_007_199_254_740_993_i64, "half": 0.5,
        "t": DateTime::from_millis(1_700_000_000_000), "list": [Bson::Null, true, { "x": "é" }],
    };
    assert_eq!(written(&write), expected);
    assert_eq!(written(&write).keys().collect::<Vec<_>>(), ["_id", "z", "a", "big", "half", "t", "list"]);
    assert_eq!((write.own_id, &write.id), (true, &Bson::ObjectId(id)));
}

#[test]
fn a_document_that_brings_an_id_keeps_it_and_an_upsert_is_given_none() {
    let own = write("c", r#"{"a":1,"_id":"x"}"#, "").unwrap();
    assert_eq!((written(&own), own.own_id, own.id), (doc! { "a": 1, "_id": "x" }, false, Bson::String("x".into())));
    let upsert = write("c", r#"{"a":1}"#, r#"{"k":{"$oid":"656565656565656565656565"}}"#).unwrap();
    assert_eq!(written(&upsert), doc! { "a": 1 });
    let filter = Document::try_from(&**upsert.filter.as_ref().unwrap()).unwrap();
    assert_eq!(filter, doc! { "k": ObjectId::parse_str("656565656565656565656565").unwrap() });
}

#[test]
fn a_record_that_no_server_would_take_says_why() {
    for (collection, document, filter, expected) in [
        ("", "{}", "", "\"\" is no name of a collection"),
        ("a$b", "{}", "", "\"a$b\" is no name of a collection"),
        ("c", "[1]", "", "the document is no JSON object"),
        ("c", "{\"a\":", "", "the document is no JSON: EOF"),
        ("c", "{}", "x", "the filter is no JSON: "),
        ("c", "{\"$date\":1}", "", "the document is no JSON object"),
        ("c", "{\"n\":18446744073709551615}", "", "the document is no JSON: "),
        ("c", "{\"a\\u0000b\":1}", "", ""),
    ] {
        let reason = write(collection, document, filter).err().unwrap_or_else(|| panic!("{document} is taken"));
        assert!(reason.starts_with(expected) && !reason.contains('\n'), "{document}: {reason}");
    }
    let large = format!("{{\"a\":\"{}\"}}", "x".repeat(DOCUMENT_BYTES_MAX));
    assert!(write("c", &large, "").err().unwrap().starts_with("the document has 16777"));
    assert!(Write::new(0, &record(0, &[b"\xff", b"{}"])).is_err());
}

#[test]
fn writes_are_sent_by_collection_and_where_order_counts_only_with_their_neighbours() {
    let shape = |inputs: &[(&str, &str)], ordered| -> Vec<(String, bool, Vec<usize>)> {
        let writes = inputs.iter().enumerate().map(|(at, (collection, filter))| {
            Write::new(at, &record(0, &[collection.as_bytes(), b"{}", filter.as_bytes(), ID_PART])).unwrap()
        });
        let run = |run: Run| (run.collection, run.upserts, run.writes.iter().map(|write| write.at).collect());
        runs(writes.collect(), ordered).into_iter().map(run).collect()
    };
    let inserts = [("a", ""), ("b", ""), ("a", "")];
    assert_eq!(shape(&inserts, false), [("a".into(), false, vec![0, 2]), ("b".into(), false, vec![1])]);
    let apart = [("a".into(), false, vec![0]), ("b".into(), false, vec![1]), ("a".into(), false, vec![2])];
    assert_eq!(shape(&inserts, true), apart);
    let mixed = [("a", ""), ("a", "{}"), ("a", "{}"), ("a", "")];
    let expected = [("a".into(), false, vec![0]), ("a".into(), true, vec![1, 2]), ("a".into(), false, vec![3])];
    assert_eq!(shape(&mixed, false), expected);
}

#[test]
fn upserts_are_cut_to_commands_that_servers_take() {
    let text = "x".repeat(3 << 20);
    let large = |_| write("c", &format!("{{\"a\":\"{text}\"}}"), "{}").unwrap();
    let writes: Vec<Write> = (0..5).map(large).collect();
    assert_eq!(commands(&writes), [0..2, 2..4, 4..5]);
    assert_eq!(commands(&writes[..1]).iter().map(Range::len).collect::<Vec<_>>(), [1]);
    assert!(commands(&[]).is_empty());
}

#[test]
fn a_command_that_fails_is_sent_again_unless_what_is_in_it_is_wrong() {
    let command = |code: i32| {
        let error = doc! { "code": code, "codeName": "x", "errmsg": "x" };
        ErrorKind::Command(mongodb::bson::deserialize_from_document(error).unwrap())
    };
    for permanent in [2, 9, 66, 121, 10_334] {
        assert!(is_permanent(&command(permanent)), "{permanent}");
    }
    // Not allowed, not the primary, shutting down, a time limit, an error of the server's own.
    for again in [1, 13, 18, 91, 189, 50, 10_107, 11_600] {
        assert!(!is_permanent(&command(again)), "{again}");
    }
    assert!(!is_permanent(&ErrorKind::Io(std::sync::Arc::new(std::io::ErrorKind::ConnectionReset.into()))));
    assert!(!is_permanent(&ErrorKind::Shutdown));
    assert!(TRANSIENT.iter().all(|code| !PERMANENT.contains(code)));
}

#[test]
fn the_numbers_of_an_answer_have_whichever_type_the_server_likes() {
    let answer = doc! { "a": 3_i32, "b": 4_i64, "c": 5.0, "d": "x" };
    assert_eq!(["a", "b", "c", "d", "e"].map(|key| number(&answer, key)), [3, 4, 5, 0, 0]);
    let error = doc! { "index": 0, "code": 121_i64, "errmsg": "line\nbreak" };
    assert_eq!(fault(&error), (121, "line break (code 121)".into()));
}

#[test]
fn an_ordered_insertion_got_as_far_as_its_first_fault() {
    let fault = |index: i32| -> IndexedWriteError {
        mongodb::bson::deserialize_from_document(doc! { "index": index, "code": 121, "errmsg": "" }).unwrap()
    };
    assert_eq!(reached(&[fault(3)], 10, true), 4);
    assert_eq!(reached(&[fault(3), fault(5)], 10, false), 10);
    assert_eq!(reached(&[], 10, true), 10);
}

#[test]
fn commands_get_smaller_when_the_server_is_late_and_larger_when_it_is_not() {
    let together = AtomicUsize::new(25);
    let mut attempt =
        Attempt { verdicts: Vec::new(), error: None, begun: Instant::now(), together: &together, sent: 0, is_late: false };
    let mut left = vec![100..103, 0..60];
    assert_eq!(attempt.next(&mut left), Some(0..25));
    attempt.may_send_more();
    assert_eq!((attempt.next(&mut left), together.load(Relaxed)), (Some(25..60), 50));
    attempt.may_send_more();
    assert_eq!(together.load(Relaxed), 50, "it was not full");
    assert_eq!((attempt.next(&mut left), attempt.next(&mut left)), (Some(100..103), None));
    let late = doc! { "code": TOO_LATE, "codeName": "MaxTimeMSExpired", "errmsg": "" };
    attempt.fail(&ErrorKind::Command(mongodb::bson::deserialize_from_document(late).unwrap()).into());
    assert!(attempt.is_late && attempt.error.is_some());
}

#[test]
fn options_that_would_lose_documents_or_mean_nothing_are_refused() {
    assert!(check_uri("mongodb://127.0.0.1:27017").is_ok());
    assert!(check_uri("mongodb://a,b/?replicaSet=r&w=majority").is_ok());
    assert!(check_uri("mongodb://a/?w=0").unwrap_err().contains("w=0"));
    assert!(check_uri("http://a").is_err());
    let batches = |ordered| Mongodb::new(&MongodbOptions { ordered, ..MongodbOptions::default() }).unwrap().batches_max();
    assert_eq!((batches(false), batches(true)), (4, 1));
}
