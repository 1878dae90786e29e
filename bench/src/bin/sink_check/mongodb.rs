//! MongoDB as the checks see it: documents inserted by the plain driver, and a collection read to its end.

use super::found::Found;
use corelane_bench::load::stamp::Stamp;
use corelane_bench::process;
use mongodb::bson::{Document, RawBsonRef, RawDocument, doc};
use mongodb::{Client, Collection};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

pub struct Filling {
    pub uri: String,
    /// `database.collection`
    pub collection: String,
    /// Documents per insertMany, and how many of these are under way at a time.
    pub batch: u32,
    pub parallel: u32,
    pub seconds: f64,
    /// Payload bytes, had the document come as JSON.
    pub size: usize,
}

pub struct Inserted {
    pub documents: u64,
    pub seconds: f64,
    pub cpu_ns: u64,
}

impl Inserted {
    pub fn per_second(&self) -> f64 {
        self.documents as f64 / self.seconds.max(1e-9)
    }
}

impl fmt::Display for Inserted {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let cpu_us = self.cpu_ns as f64 / 1e3 / self.documents.max(1) as f64;
        let rate = self.per_second();
        write!(f, "inserted {}, {:.1} s, {rate:.0} documents/s, CPU {cpu_us:.2} µs per document", self.documents, self.seconds)
    }
}

/// Inserts as fast as the server takes it.
pub fn insert(filling: &Filling) -> Result<Inserted, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let collection: Collection<Document> = open(&filling.uri, &filling.collection).await?;
        let inserted = AtomicU64::new(0);
        let (cpu_before, began) = (process::cpu_ns(std::process::id()).map_err(|error| error.to_string())?, Instant::now());
        let until = began + Duration::from_secs_f64(filling.seconds);
        let mut tasks = tokio::task::JoinSet::new();
        let inserted = std::sync::Arc::new(inserted);
        for publisher in 0..filling.parallel {
            let (collection, inserted) = (collection.clone(), inserted.clone());
            let (batch, size) = (filling.batch, filling.size);
            tasks.spawn(async move {
                let mut sequence = 0;
                while Instant::now() < until {
                    let documents: Vec<_> =
                        (sequence..sequence + batch).map(|sequence| document(publisher, sequence, size)).collect();
                    collection.insert_many(&documents).await.map_err(|error| error.to_string())?;
                    inserted.fetch_add(u64::from(batch), Relaxed);
                    sequence += batch;
                }
                Ok::<_, String>(())
            });
        }
        while let Some(result) = tasks.join_next().await {
            result.map_err(|error| error.to_string())??;
        }
        let cpu_after = process::cpu_ns(std::process::id()).map_err(|error| error.to_string())?;
        let (documents, seconds) = (inserted.load(Relaxed), began.elapsed().as_secs_f64());
        Ok(Inserted { documents, seconds, cpu_ns: cpu_after - cpu_before })
    })
}

/// What a payload in JSON becomes.
fn document(publisher: u32, sequence: u32, size: usize) -> Document {
    let pad = "x".repeat(size.saturating_sub(corelane_bench::load::stamp::JSON_BYTES_MIN));
    doc! { "due": 0i64, "publisher": i64::from(publisher), "sequence": i64::from(sequence), "speed": i64::from(sequence % 200), "pad": pad }
}

async fn open(uri: &str, collection: &str) -> Result<Collection<Document>, String> {
    let (database, name) = collection.split_once('.').ok_or("the collection is given as DATABASE.COLLECTION")?;
    let client = Client::with_uri_str(uri).await.map_err(|error| format!("{uri}: {error}"))?;
    Ok(client.database(database).collection(name))
}

/// Reads a collection. A document has the stamp in its fields, or in those of its field `payload`, or that is the payload as text.
pub fn read(uri: &str, collection: &str, found: &mut Found) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let told = |error: mongodb::error::Error| format!("{collection} on {uri}: {error}");
        let collection = open(uri, collection).await?;
        let mut cursor = collection.find(doc! {}).batch_size(10_000).await.map_err(told)?;
        while cursor.advance().await.map_err(told)? {
            match stamp(cursor.current()) {
                Some((publisher, sequence)) => {
                    found.note(publisher, sequence, 0);
                }
                None => found.unreadable += 1,
            }
        }
        Ok(())
    })
}

fn stamp(document: &RawDocument) -> Option<(u32, u32)> {
    match document.get("payload").ok()? {
        None => Some((number(document, "publisher")?, number(document, "sequence")?)),
        Some(RawBsonRef::Document(payload)) => stamp(payload),
        Some(RawBsonRef::String(payload)) => {
            Stamp::from_payload(payload.as_bytes()).map(|stamp| (stamp.publisher, stamp.sequence))
        }
        Some(_) => None,
    }
}

fn number(document: &RawDocument, name: &str) -> Option<u32> {
    match document.get(name).ok()?? {
        RawBsonRef::Int32(number) => u32::try_from(number).ok(),
        RawBsonRef::Int64(number) => u32::try_from(number).ok(),
        RawBsonRef::Double(number) if number.fract() == 0.0 && (0.0..f64::from(u32::MAX)).contains(&number) => {
            Some(number as u32)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::RawDocumentBuf;

    #[test]
    fn a_stamp_is_found_however_the_document_holds_it() {
        let mut payload = Vec::new();
        Stamp { due_ns: 1, publisher: 2, sequence: 3 }.write_json(100, &mut payload);
        let payload = String::from_utf8(payload).unwrap();
        for (document, expected) in [
            (document(2, 3, 100), Some((2, 3))),
            (doc! { "publisher": 2i32, "sequence": 3.0 }, Some((2, 3))),
            (doc! { "payload": { "publisher": 2i32, "sequence": 3i32 } }, Some((2, 3))),
            (doc! { "payload": payload }, Some((2, 3))),
            (doc! { "payload": "hello" }, None),
            (doc! { "publisher": -1i32, "sequence": 3.5 }, None),
            (doc! { "publisher": "2" }, None),
        ] {
            let raw = RawDocumentBuf::try_from(&document).unwrap();
            assert_eq!(stamp(&raw), expected, "{document}");
        }
    }
}
