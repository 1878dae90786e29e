//! The MongoDB sink against a server that speaks its protocol: `CORELANE_MONGO_URI` names one (`scripts/mongo.sh start` runs one). Without
//! it these tests say so and pass. Each makes a database of its own and drops it.

use corelane::record::{ActionId, Parts, Record, RecordIds};
use corelane::sinks::mongodb::Mongodb;
use corelane::sinks::options::MongodbOptions;
use corelane::sinks::target::{Report, Target, Verdict};
use mongodb::bson::{Bson, DateTime, Document, doc};
use mongodb::options::IndexOptions;
use mongodb::{Client, Database, IndexModel};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

struct Bench {
    target: Mongodb,
    /// What the tests look with.
    database: Database,
    ids: RecordIds,
}

/// Runs a test against the server, if there is one.
fn with_server<F: Future<Output = ()>>(ordered: bool, test: impl FnOnce(Bench) -> F) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let Ok(uri) = std::env::var("CORELANE_MONGO_URI") else {
        println!("skipped: CORELANE_MONGO_URI names no server");
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let name = format!("corelane-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let database = Client::with_uri_str(&uri).await.unwrap().database(&name);
        let target = Mongodb::new(&MongodbOptions { uri, database: name, ordered, ..MongodbOptions::default() }).unwrap();
        assert_eq!(target.probe().await, Ok(()));
        test(Bench { target, database: database.clone(), ids: RecordIds::new(u64::from(std::process::id())) }).await;
        database.drop().await.unwrap();
    });
}

impl Bench {
    fn record(&mut self, collection: &str, document: &str, filter: &str) -> Record {
        let id = self.ids.next(1_700_000_000);
        let mut parts = Parts::default();
        for part in [collection.as_bytes(), document.as_bytes(), filter.as_bytes(), &id] {
            parts.part().extend_from_slice(part);
            parts.end();
        }
        Record::new(ActionId(0), 0, false, &mut parts)
    }

    fn records(&mut self, documents: &[&str]) -> Vec<Record> {
        documents.iter().map(|document| self.record("c", document, "")).collect()
    }

    /// What becomes of records that come again as long as the server takes too long, as the sink core has it.
    async fn deliver(&self, records: &[Record]) -> Vec<Verdict> {
        let mut verdicts = vec![Verdict::Again; records.len()];
        for _ in 0..10 {
            let again: Vec<usize> = (0..records.len()).filter(|at| verdicts[*at] == Verdict::Again).collect();
            if again.is_empty() {
                break;
            }
            let batch: Vec<Record> = again.iter().map(|at| records[*at].clone()).collect();
            let report = self.target.deliver(&batch).await;
            for (at, verdict) in again.into_iter().zip(report.verdicts) {
                verdicts[at] = verdict;
            }
        }
        verdicts
    }

    /// A collection's documents in the order of a field.
    async fn stored(&self, collection: &str, by: &str) -> Vec<Document> {
        let mut found = self.database.collection::<Document>(collection).find(doc! {}).sort(doc! { by: 1 }).await.unwrap();
        let mut documents = Vec::new();
        while found.advance().await.unwrap() {
            documents.push(found.deserialize_current().unwrap());
        }
        documents
    }
}

fn refused(verdict: &Verdict) -> &str {
    if let Verdict::Refused(reason) = verdict { reason } else { panic!("{verdict:?} is no refusal") }
}

#[test]
fn documents_are_found_in_their_collections_with_the_types_that_json_gave_them() {
    with_server(false, async |mut bench| {
        let records = [
            bench.record("a", r#"{"n":1,"big":9007199254740993,"x":0.5,"at":{"$date":1700000000000},"s":"é","none":null}"#, ""),
            bench.record("b", r#"{"n":2}"#, ""),
            bench.record("a", r#"{"n":3,"list":[true,{"y":-1}]}"#, ""),
        ];
        assert_eq!(bench.target.deliver(&records).await, Report::delivered(3));
        let a = bench.stored("a", "n").await;
        assert_eq!((a.len(), bench.stored("b", "n").await.len()), (2, 1));
        let fields = ["n", "big", "x", "at", "s", "none"].map(|name| a[0].get(name).cloned().unwrap());
        let at = Bson::DateTime(DateTime::from_millis(1_700_000_000_000));
        assert_eq!(fields, [1.into(), 9_007_199_254_740_993_i64.into(), 0.5.into(), at, "é".into(), Bson::Null]);
        assert_eq!(a[1].get_array("list").unwrap().len(), 2);
    });
}

#[test]
fn a_batch_that_comes_twice_is_there_once_and_delivered_both_times() {
    for ordered in [false, true] {
        with_server(ordered, async |mut bench| {
            let mut records = bench.records(&[r#"{"n":0}"#, r#"{"n":1,"_id":"own"}"#, r#"{"n":2}"#]);
            assert_eq!(bench.target.deliver(&records[..2]).await, Report::delivered(2));
            records.push(bench.record("c", r#"{"n":3}"#, ""));
            assert_eq!(bench.target.deliver(&records).await, Report::delivered(4));
            assert_eq!(bench.target.deliver(&records).await, Report::delivered(4));
            assert_eq!(bench.stored("c", "n").await.len(), 4);
        });
    }
}

#[test]
fn a_refused_document_is_refused_alone() {
    for ordered in [false, true] {
        with_server(ordered, async |mut bench| {
            let unique =
                IndexModel::builder().keys(doc! { "u": 1 }).options(IndexOptions::builder().unique(true).build()).build();
            bench.database.collection::<Document>("c").create_index(unique).await.unwrap();
            let records = bench.records(&[
                r#"{"n":0,"u":0}"#,
                r#"{"n":1,"u":1,"_id":"x"}"#,
                r#"{"n":2,"u":2,"_id":"x"}"#,
                "no JSON",
                r#"{"n":4,"u":0}"#,
                r#"{"n":5,"u":5}"#,
            ]);
            let report = bench.target.deliver(&records).await;
            assert_eq!(report.error, None);
            for delivered in [0, 1, 5] {
                assert_eq!(report.verdicts[delivered], Verdict::Delivered, "{delivered}");
            }
            assert!(refused(&report.verdicts[2]).contains("11000"), "{report:?}");
            assert!(refused(&report.verdicts[3]).contains("no JSON"), "{report:?}");
            assert!(refused(&report.verdicts[4]).contains("11000"), "{report:?}");
            let stored: Vec<i32> = bench.stored("c", "n").await.iter().map(|document| document.get_i32("n").unwrap()).collect();
            assert_eq!(stored, [0, 1, 5]);
        });
    }
}

#[test]
fn an_upsert_replaces_what_its_filter_finds_and_the_last_one_stays() {
    with_server(false, async |mut bench| {
        let mut records = Vec::new();
        for round in 0..3 {
            for key in 0..30 {
                let document = format!(r#"{{"_id":{key},"round":{round}}}"#);
                records.push(bench.record("last", &document, &format!(r#"{{"_id":{key}}}"#)));
            }
        }
        records.insert(50, bench.record("last", r#"{"_id":1000,"round":9}"#, r#"{"$nonsense":1}"#));
        let mut verdicts = bench.deliver(&records).await;
        refused(&verdicts.remove(50));
        assert_eq!(verdicts, vec![Verdict::Delivered; 90]);
        let stored = bench.stored("last", "_id").await;
        assert_eq!(stored.len(), 30);
        assert!(stored.iter().all(|document| document.get("round") == Some(&Bson::Int32(2))), "{stored:?}");
        // Once more from the start, as after a lost answer: the last one stays.
        records.remove(50);
        assert_eq!(bench.deliver(&records).await, vec![Verdict::Delivered; 90]);
        let stored = bench.stored("last", "_id").await;
        assert!(stored.iter().all(|document| document.get("round") == Some(&Bson::Int32(2))), "{stored:?}");
    });
}

#[test]
fn many_documents_go_in_one_batch() {
    with_server(false, async |mut bench| {
        let documents: Vec<String> = (0..5_000).map(|n| format!(r#"{{"n":{n}}}"#)).collect();
        let documents: Vec<&str> = documents.iter().map(String::as_str).collect();
        let records = bench.records(&documents);
        assert_eq!(bench.target.deliver(&records).await, Report::delivered(5_000));
        assert_eq!(bench.stored("c", "n").await.len(), 5_000);
    });
}

#[test]
fn a_server_that_is_not_there_is_noticed_within_seconds_and_nothing_is_refused() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let uri = format!("mongodb://127.0.0.1:{port}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let target = Mongodb::new(&MongodbOptions { uri, ..MongodbOptions::default() }).unwrap();
        let mut parts = Parts::default();
        for part in ["c", "{}"] {
            parts.part().extend_from_slice(part.as_bytes());
            parts.end();
        }
        let records = [Record::new(ActionId(0), 0, false, &mut parts)];
        let begun = Instant::now();
        let report = target.deliver(&records).await;
        assert_eq!(report.verdicts, [Verdict::Again]);
        assert!(report.error.is_some_and(|error| error.contains("Server selection")));
        assert!(target.probe().await.is_err());
        assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    });
}
