//! Records to MongoDB: documents are inserted in batches by collection, or replace the one that their filter finds.
//!
//! A document has its `_id` before it is sent for the first time, so that a batch sent again after a lost answer finds its own: what is
//! already there, with the `_id` that the record brought along or as the very same document, is delivered. Errors of a document (it
//! breaks a validation or a unique index, is too large, is no document) refuse it alone; a command that fails as a whole because of what
//! is in it is halved until the culprit is alone. Everything else (no server, no primary, no permission, a write concern that is not
//! met) is tried again and loses nothing.

use super::options::MongodbOptions;
use super::target::{Pending, Report, Target, Verdict};
use crate::record::Record;
use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, Document, RawDocumentBuf, doc, serialize_to_bson};
use mongodb::error::{Error, ErrorKind, IndexedWriteError};
use mongodb::options::{Acknowledgment, ClientOptions, ConnectionString};
use mongodb::{Client, Collection, Database};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::sync::OnceCell;
use tokio::time::timeout;

/// The numbers of the parts of a record.
const COLLECTION: usize = 0;
const DOCUMENT: usize = 1;
const FILTER: usize = 2;
const ID: usize = 3;

/// Time for an attempt.
const ATTEMPT: Duration = Duration::from_secs(10);
/// How long the driver looks for a server that takes writes, if the URI does not say: short, so that an outage is seen.
const SELECT: Duration = Duration::from_secs(2);
const CONNECT: Duration = Duration::from_secs(5);
/// What MongoDB takes for a document.
const DOCUMENT_BYTES_MAX: usize = 16 << 20;
/// Documents of a batch, documents of a command, and bytes of a command that carries them inside it.
const BATCH_MAX: usize = 100_000;
const COMMAND_MAX: usize = 10_000;
const COMMAND_BYTES_MAX: usize = 8 << 20;
/// Values of one `$in`.
const IDS_MAX: usize = 1_000;
const SHOWN_MAX: usize = 300;

const DUPLICATE_KEY: i32 = 11_000;
/// MaxTimeMSExpired
const TOO_LATE: i32 = 50;

/// Codes of errors that are about what is in a command; what it was sent to would never take it.
const PERMANENT: [i32; 17] = [
    2,      // BadValue
    9,      // FailedToParse
    14,     // TypeMismatch
    22,     // InvalidBSON
    52,     // DollarPrefixedFieldName
    53,     // InvalidIdField
    54,     // NotSingleValueField
    56,     // EmptyFieldName
    57,     // DottedFieldName
    66,     // ImmutableField
    72,     // InvalidOptions
    73,     // InvalidNamespace
    121,    // DocumentValidationFailure
    166,    // CommandNotSupportedOnView
    10_003, // CannotGrowDocumentInCappedNamespace
    10_334, // BSONObjectTooLarge
    DUPLICATE_KEY,
];

/// Codes of errors of one document that are about the server: a conflict, a step-down, a shutdown, a time limit.
const TRANSIENT: [i32; 16] = [6, 7, 24, 46, 50, 89, 91, 112, 189, 262, 9_001, 10_107, 11_600, 11_602, 13_435, 13_436];

pub struct Mongodb {
    uri: String,
    database: String,
    ordered: bool,
    batches_max: usize,
    /// Documents that a command may have: fewer when the server does not get done with so many in time, or nothing would ever be.
    together: AtomicUsize,
    /// Made when first needed: with some URIs it takes a look into the DNS, which may be down.
    server: OnceCell<Server>,
}

struct Server {
    database: Database,
    /// As the URI has it, for commands that the driver sends as they are.
    write_concern: Option<Bson>,
}

/// Says what is wrong with a connection string.
pub fn check_uri(uri: &str) -> Result<(), String> {
    let parsed = ConnectionString::parse(uri).map_err(|error| error.to_string())?;
    match parsed.write_concern.and_then(|concern| concern.w) {
        Some(Acknowledgment::Nodes(0)) => {
            Err("w=0 has the server confirm nothing, so that nothing would ever be known to be there".into())
        }
        _ => Ok(()),
    }
}

impl Mongodb {
    /// Says what is wrong with the options.
    pub fn new(options: &MongodbOptions) -> Result<Self, String> {
        check_uri(&options.uri)?;
        Ok(Self {
            uri: options.uri.clone(),
            database: options.database.clone(),
            ordered: options.ordered,
            batches_max: if options.ordered { 1 } else { options.batches_max.max(1) as usize },
            together: AtomicUsize::new(COMMAND_MAX),
            server: OnceCell::new(),
        })
    }

    async fn server(&self) -> Result<&Server, Error> {
        self.server
            .get_or_try_init(|| async {
                let mut options = ClientOptions::parse(&self.uri).await?;
                options.app_name.get_or_insert_with(|| "corelane".into());
                options.server_selection_timeout.get_or_insert(SELECT);
                options.connect_timeout.get_or_insert(CONNECT);
                let write_concern = options.write_concern.as_ref().map(serialize_to_bson).transpose()?;
                Ok(Server { database: Client::with_options(options)?.database(&self.database), write_concern })
            })
            .await
    }

    async fn attempt(&self, records: &[Record]) -> Report {
        let verdicts = vec![Verdict::Again; records.len()];
        let mut attempt =
            Attempt { verdicts, error: None, begun: Instant::now(), together: &self.together, sent: 0, is_late: false };
        let mut writes = Vec::new();
        for (at, record) in records.iter().enumerate() {
            match Write::new(at, record) {
                Ok(write) => writes.push(write),
                Err(reason) => attempt.verdicts[at] = Verdict::Refused(reason),
            }
        }
        let sent = async {
            let server = match self.server().await {
                Ok(server) => server,
                Err(error) => return attempt.fail(&error),
            };
            for run in runs(writes, self.ordered) {
                if run.upserts {
                    attempt.upsert(server, &run).await
                } else {
                    attempt.insert(server, &run, self.ordered).await
                }
                // What comes behind keeps its place behind what is to come again.
                if attempt.error.is_some() {
                    return;
                }
            }
        };
        if timeout(ATTEMPT, sent).await.is_err() {
            attempt.error = Some(format!("no answer within {} s", ATTEMPT.as_secs()));
            attempt.is_late = true;
        }
        if attempt.is_late {
            self.together.store((attempt.sent / 4).max(1), Relaxed);
        }
        Report { verdicts: attempt.verdicts, error: attempt.error }
    }

    async fn ping(&self) -> Result<(), String> {
        let ping = async { self.server().await?.database.run_command(doc! { "ping": 1 }).await };
        match timeout(ATTEMPT, ping).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(said(&error)),
            Err(_) => Err(format!("no answer within {} s", ATTEMPT.as_secs())),
        }
    }
}

impl Target for Mongodb {
    fn batches_max(&self) -> usize {
        self.batches_max
    }

    fn records_max(&self) -> usize {
        BATCH_MAX
    }

    fn probe(&self) -> Pending<'_, Result<(), String>> {
        Box::pin(self.ping())
    }

    fn deliver<'a>(&'a self, records: &'a [Record]) -> Pending<'a, Report> {
        Box::pin(self.attempt(records))
    }
}

/// What is to be done with a record.
struct Write {
    /// Its number in the batch.
    at: usize,
    collection: String,
    /// Of an upsert.
    filter: Option<RawDocumentBuf>,
    document: RawDocumentBuf,
    /// Of an insertion.
    id: Bson,
    /// The `_id` is not the author's.
    own_id: bool,
}

impl Write {
    /// Says what is wrong with a record that no server would take.
    fn new(at: usize, record: &Record) -> Result<Self, String> {
        let collection = str::from_utf8(record.part(COLLECTION)).map_err(|_| "the collection's name is not UTF-8")?;
        if collection.is_empty() || collection.contains(['$', '\0']) {
            return Err(format!("{collection:?} is no name of a collection"));
        }
        let filter = match record.part(FILTER) {
            [] => None,
            filter => Some(document(filter, "filter")?),
        };
        let mut document = document(record.part(DOCUMENT), "document")?;
        let mut own_id = false;
        let mut id = document.get("_id").cloned().unwrap_or_default();
        if filter.is_none() && !document.contains_key("_id") {
            let bytes = record.part(ID).try_into();
            id = Bson::ObjectId(bytes.map_or_else(|_| ObjectId::new(), ObjectId::from_bytes));
            own_id = true;
            let mut with_id = doc! { "_id": id.clone() };
            with_id.extend(document);
            document = with_id;
        }
        let raw = |document: &Document| RawDocumentBuf::try_from(document).map_err(|error| one_line(&error.to_string()));
        let write = Self {
            at,
            collection: collection.to_owned(),
            filter: filter.as_ref().map(raw).transpose()?,
            document: raw(&document)?,
            id,
            own_id,
        };
        match write.bytes() {
            0..=DOCUMENT_BYTES_MAX => Ok(write),
            bytes => Err(format!("the document has {bytes} bytes, of {DOCUMENT_BYTES_MAX} at most")),
        }
    }

    fn bytes(&self) -> usize {
        self.document.as_bytes().len() + self.filter.as_ref().map_or(0, |filter| filter.as_bytes().len())
    }
}

/// JSON, extended JSON included, as a document whose fields keep their order.
pub fn document(json: &[u8], what: &str) -> Result<Document, String> {
    match serde_json::from_slice(json) {
        Ok(Bson::Document(document)) => Ok(document),
        Ok(_) => Err(format!("the {what} is no JSON object")),
        Err(error) => Err(format!("the {what} is no JSON: {}", one_line(&error.to_string()))),
    }
}

/// Writes to one collection that may be sent together.
struct Run {
    collection: String,
    upserts: bool,
    writes: Vec<Write>,
}

/// Writes by collection; where their order counts, only neighbours come together.
fn runs(writes: Vec<Write>, ordered: bool) -> Vec<Run> {
    let ordered = ordered || writes.iter().any(|write| write.filter.is_some());
    let mut runs: Vec<Run> = Vec::new();
    for write in writes {
        let upserts = write.filter.is_some();
        let fits = |run: &&mut Run| run.collection == write.collection && run.upserts == upserts;
        let found = if ordered { runs.last_mut().filter(fits) } else { runs.iter_mut().find(fits) };
        match found {
            Some(run) => run.writes.push(write),
            None => runs.push(Run { collection: write.collection.clone(), upserts, writes: vec![write] }),
        }
    }
    runs
}

/// A batch on its way.
struct Attempt<'a> {
    verdicts: Vec<Verdict>,
    /// The server is in trouble: nothing more is sent.
    error: Option<String>,
    begun: Instant,
    together: &'a AtomicUsize,
    /// Documents of the command at hand.
    sent: usize,
    /// It took the server too long.
    is_late: bool,
}

impl Attempt<'_> {
    /// The next command's part of what is left.
    fn next(&mut self, left: &mut Vec<Range<usize>>) -> Option<Range<usize>> {
        let mut range = left.pop()?;
        let together = self.together.load(Relaxed);
        if range.len() > together {
            left.push(range.start + together..range.end);
            range.end = range.start + together;
        }
        self.sent = range.len();
        Some(range)
    }

    /// A command was done in time: the next may be larger.
    fn may_send_more(&self) {
        let together = self.together.load(Relaxed);
        if self.sent >= together && together < COMMAND_MAX {
            self.together.store((2 * together).min(COMMAND_MAX), Relaxed);
        }
    }

    fn settle(&mut self, writes: &[Write], verdict: &Verdict) {
        for write in writes {
            self.verdicts[write.at] = verdict.clone();
        }
    }

    fn fail(&mut self, error: &Error) {
        self.is_late = matches!(&*error.kind, ErrorKind::Command(error) if error.code == TOO_LATE);
        self.error = Some(said(error));
    }

    async fn insert(&mut self, server: &Server, run: &Run, ordered: bool) {
        let collection: Collection<RawDocumentBuf> = server.database.collection(&run.collection);
        let mut duplicates = Vec::new();
        // Parts that are to be sent, the first one last.
        let mut left: Vec<Range<usize>> = std::iter::once(0..run.writes.len()).collect();
        while let Some(range) = self.next(&mut left) {
            let writes = &run.writes[range.clone()];
            let documents = writes.iter().map(|write| &write.document);
            let error = match collection.insert_many(documents).ordered(ordered).await {
                Ok(_) => {
                    self.settle(writes, &Verdict::Delivered);
                    self.may_send_more();
                    continue;
                }
                Err(error) => error,
            };
            match &*error.kind {
                // Written, and not yet as safe as the write concern wants it: sent again, it finds itself.
                ErrorKind::InsertMany(many) if many.write_concern_error.is_some() => {
                    self.fail(&error);
                    break;
                }
                ErrorKind::InsertMany(many) => {
                    let faults = many.write_errors.as_deref().unwrap_or_default();
                    let reached = reached(faults, writes.len(), ordered);
                    self.settle(&writes[..reached], &Verdict::Delivered);
                    for fault in faults.iter().filter(|fault| fault.index < reached) {
                        let at = range.start + fault.index;
                        let shown = shown(fault.code, &fault.message);
                        if TRANSIENT.contains(&fault.code) {
                            self.verdicts[run.writes[at].at] = Verdict::Again;
                            self.error = Some(shown);
                            continue;
                        }
                        self.verdicts[run.writes[at].at] = Verdict::Refused(shown);
                        if fault.code == DUPLICATE_KEY {
                            duplicates.push(at);
                        }
                    }
                    if self.error.is_some() {
                        break;
                    }
                    if reached == 0 {
                        self.fail(&error);
                        break;
                    }
                    if reached < writes.len() {
                        left.push(range.start + reached..range.end);
                    }
                }
                kind if is_permanent(kind) => self.halve(writes, range, &error, &mut left),
                _ => {
                    self.fail(&error);
                    break;
                }
            }
        }
        if let Err(error) = self.find_delivered(&collection, run, &duplicates).await {
            for at in duplicates {
                self.verdicts[run.writes[at].at] = Verdict::Again;
            }
            self.fail(&error);
        }
    }

    /// Which of the documents that exist already were inserted before, by an attempt whose answer was lost.
    async fn find_delivered(
        &mut self,
        collection: &Collection<RawDocumentBuf>,
        run: &Run,
        duplicates: &[usize],
    ) -> Result<(), Error> {
        for part in duplicates.chunks(IDS_MAX) {
            let ids: Vec<&Bson> = part.iter().map(|at| &run.writes[*at].id).collect();
            let mut found = collection.find(doc! { "_id": { "$in": ids } }).await?;
            while found.advance().await? {
                let stored: Document = found.current().try_into()?;
                for write in part.iter().map(|at| &run.writes[*at]).filter(|write| stored.get("_id") == Some(&write.id)) {
                    if write.own_id || Document::try_from(&*write.document).is_ok_and(|document| document == stored) {
                        self.verdicts[write.at] = Verdict::Delivered;
                    }
                }
            }
        }
        Ok(())
    }

    async fn upsert(&mut self, server: &Server, run: &Run) {
        let mut left: Vec<Range<usize>> = commands(&run.writes);
        left.reverse();
        while let Some(range) = self.next(&mut left) {
            let writes = &run.writes[range.clone()];
            let time_left = ATTEMPT.saturating_sub(self.begun.elapsed());
            match server.database.run_command(update(&run.collection, writes, server.write_concern.as_ref(), time_left)).await {
                Ok(answer) => {
                    if let Ok(concern) = answer.get_document("writeConcernError") {
                        self.error = Some(fault(concern).1);
                        return;
                    }
                    let first = answer.get_array("writeErrors").ok().and_then(|faults| faults.first()?.as_document());
                    let Some(first) = first else {
                        self.settle(writes, &Verdict::Delivered);
                        self.may_send_more();
                        continue;
                    };
                    let reached = usize::try_from(number(first, "index")).unwrap_or(0).min(writes.len() - 1);
                    self.settle(&writes[..reached], &Verdict::Delivered);
                    let (code, shown) = fault(first);
                    if TRANSIENT.contains(&code) {
                        self.error = Some(shown);
                        return;
                    }
                    self.verdicts[writes[reached].at] = Verdict::Refused(shown);
                    if reached + 1 < writes.len() {
                        left.push(range.start + reached + 1..range.end);
                    }
                }
                Err(error) if is_permanent(&error.kind) => self.halve(writes, range, &error, &mut left),
                Err(error) => return self.fail(&error),
            }
        }
    }

    /// The command failed because of one of these.
    fn halve(&mut self, writes: &[Write], range: Range<usize>, error: &Error, left: &mut Vec<Range<usize>>) {
        if let [write] = writes {
            self.verdicts[write.at] = Verdict::Refused(said(error));
        } else {
            let middle = range.start + range.len() / 2;
            left.extend([middle..range.end, range.start..middle]);
        }
    }
}

/// How far an insertion got: with order, up to and with its first fault; otherwise to its end.
fn reached(faults: &[IndexedWriteError], writes: usize, ordered: bool) -> usize {
    match faults.iter().map(|fault| fault.index + 1).min() {
        Some(reached) if ordered => reached.min(writes),
        _ => writes,
    }
}

/// Parts that each fit into a command.
fn commands(writes: &[Write]) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (at, write) in writes.iter().enumerate() {
        if at > start && (at - start >= COMMAND_MAX || bytes + write.bytes() > COMMAND_BYTES_MAX) {
            parts.push(start..at);
            (start, bytes) = (at, 0);
        }
        bytes += write.bytes();
    }
    if start < writes.len() {
        parts.push(start..writes.len());
    }
    parts
}

/// The command that replaces or inserts, sent as it is: the driver's own way of many upserts at once needs MongoDB 8.0.
fn update(collection: &str, writes: &[Write], write_concern: Option<&Bson>, left: Duration) -> Document {
    let read = |raw: &RawDocumentBuf| Document::try_from(&**raw).unwrap_or_default();
    let updates: Vec<Document> = writes
        .iter()
        .map(
            |write| doc! { "q": write.filter.as_ref().map(read).unwrap_or_default(), "u": read(&write.document), "upsert": true },
        )
        .collect();
    // What is given up here must not go on there, and overwrite what comes later.
    let limit_ms = (left.as_millis() as i64).max(1);
    let mut command = doc! { "update": collection, "updates": updates, "ordered": true, "maxTimeMS": limit_ms };
    if let Some(concern) = write_concern {
        command.insert("writeConcern", concern.clone());
    }
    command
}

/// Whether a command that failed would fail wherever and whenever it is sent.
fn is_permanent(kind: &ErrorKind) -> bool {
    match kind {
        ErrorKind::Command(error) => PERMANENT.contains(&error.code),
        ErrorKind::InvalidArgument { .. } | ErrorKind::Bson(_) => true,
        _ => false,
    }
}

/// A number of an answer, in whichever type the server has it.
fn number(answer: &Document, key: &str) -> i32 {
    match answer.get(key) {
        Some(Bson::Int32(number)) => *number,
        Some(Bson::Int64(number)) => i32::try_from(*number).unwrap_or_default(),
        Some(Bson::Double(number)) => *number as i32,
        _ => 0,
    }
}

/// Code and text of an error in an answer.
fn fault(error: &Document) -> (i32, String) {
    let code = number(error, "code");
    (code, shown(code, error.get_str("errmsg").unwrap_or_default()))
}

fn shown(code: i32, message: &str) -> String {
    one_line(&format!("{message} (code {code})"))
}

/// What the driver says, without what only its own tests would read.
fn said(error: &Error) -> String {
    one_line(&error.kind.to_string())
}

fn one_line(text: &str) -> String {
    text.chars().take(SHOWN_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
#[path = "mongodb_tests.rs"]
mod tests;
