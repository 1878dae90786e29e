//! The HTTP sink against a server of this file, which notes what it is asked and answers as it is told.

use super::super::testing::record;
use super::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

#[derive(Clone, PartialEq, Eq, Debug)]
struct Request {
    /// Counts connections.
    connection: usize,
    /// The first line without the version.
    line: String,
    headers: Vec<(String, String)>,
    body: String,
}

impl Request {
    fn header(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(other, _)| other == name).map(|(_, value)| value.as_str()).collect()
    }
}

/// An answer without its length: status and headers, and the body.
type Reply = (&'static str, &'static str);

struct Server {
    port: u16,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    fn start(reply: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (noted, reply) = (Arc::clone(&requests), Arc::new(reply));
        thread::spawn(move || {
            for (connection, stream) in listener.incoming().enumerate() {
                let (noted, reply) = (Arc::clone(&noted), Arc::clone(&reply));
                thread::spawn(move || serve(connection, stream.unwrap(), &noted, &*reply));
            }
        });
        Self { port, requests }
    }

    fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    fn options(&self) -> HttpOptions {
        HttpOptions { url: format!("http://127.0.0.1:{}/in", self.port), ..HttpOptions::default() }
    }
}

fn serve(connection: usize, mut stream: TcpStream, noted: &Mutex<Vec<Request>>, reply: &dyn Fn(&Request) -> Reply) {
    let mut bytes = Vec::new();
    let more = |bytes: &mut Vec<u8>, stream: &mut TcpStream| {
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).unwrap_or(0);
        bytes.extend_from_slice(&buffer[..read]);
        read > 0
    };
    loop {
        let end = loop {
            match bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                Some(end) => break end,
                None if more(&mut bytes, &mut stream) => {}
                None => return,
            }
        };
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let mut lines = head.lines();
        let line = lines.next().unwrap().trim_end_matches(" HTTP/1.1").to_owned();
        let header = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned())).unwrap();
        let headers: Vec<(String, String)> = lines.map(header).collect();
        let length = headers.iter().find(|(name, _)| name == "content-length").map_or(0, |(_, value)| value.parse().unwrap());
        while bytes.len() < end + 4 + length {
            assert!(more(&mut bytes, &mut stream), "the body is short");
        }
        let body = String::from_utf8(bytes[end + 4..end + 4 + length].to_vec()).unwrap();
        bytes.drain(..end + 4 + length);
        let request = Request { connection, line, headers, body };
        noted.lock().unwrap().push(request.clone());
        let (head, body) = reply(&request);
        if head.is_empty() {
            return;
        }
        write!(stream, "HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    }
}

fn deliver(target: &Http, records: &[Record]) -> Report {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(target.deliver(records))
}

/// Records with this path and these bodies.
fn records(path: &str, bodies: &[&str]) -> Vec<Record> {
    bodies.iter().map(|body| record(0, &[path.as_bytes(), body.as_bytes()])).collect()
}

const OK: Reply = ("200 OK", "");

#[test]
fn a_batch_is_a_request_for_each_path_in_the_order_of_its_records() {
    for (format, expected, content_type) in [
        (BodyFormat::JsonArray, ["[{\"a\":1},[2]]", "[3]"], "application/json"),
        (BodyFormat::JsonLines, ["{\"a\":1}\n[2]\n", "3\n"], "application/x-ndjson"),
    ] {
        let server = Server::start(|_| OK);
        let target = Http::new(&HttpOptions { body: format, ..server.options() }).unwrap();
        let mut batch = records("/x", &["{\"a\":1}", "[2]"]);
        batch.insert(1, record(0, &[b"y?k=v", b"3"]));
        assert_eq!(deliver(&target, &batch), Report::delivered(3));
        let requests = server.requests();
        let seen: Vec<_> = requests.iter().map(|request| (request.line.as_str(), request.body.as_str())).collect();
        assert_eq!(seen, [("POST /in/x", expected[0]), ("POST /in/y?k=v", expected[1])]);
        assert_eq!(requests[0].header("content-type"), [content_type]);
        assert_eq!(requests[1].connection, 0, "the connection is kept");
    }
}

#[test]
fn single_records_are_requests_of_their_own_with_the_options_headers() {
    let server = Server::start(|_| OK);
    let headers = "Authorization: Bearer x\n\nX-A: 1\nx-a: 2\n".into();
    let options = HttpOptions { body: BodyFormat::Single, method: Method::Put, headers, requests_max: 3, ..server.options() };
    let target = Http::new(&options).unwrap();
    assert_eq!((target.records_max(), target.batches_max()), (1, 3));
    assert_eq!(deliver(&target, &records("", &["{}"])), Report::delivered(1));
    assert_eq!(deliver(&target, &records("", &["no JSON"])), Report::delivered(1));
    let requests = server.requests();
    assert_eq!((requests[0].line.as_str(), requests[1].body.as_str()), ("PUT /in", "no JSON"));
    assert_eq!(requests[0].header("authorization"), ["Bearer x"]);
    assert_eq!(requests[0].header("x-a"), ["1", "2"]);
    assert_eq!(requests[0].header("content-type"), ["application/json"]);
    assert_eq!(requests[1].header("content-type"), ["application/octet-stream"]);
    let own = HttpOptions { headers: "Content-Type: text/plain".into(), ..options };
    assert_eq!(deliver(&Http::new(&own).unwrap(), &records("", &["{}"])), Report::delivered(1));
    assert_eq!(server.requests()[2].header("content-type"), ["text/plain"]);
}

#[test]
fn an_answer_means_delivered_again_or_refused() {
    for (head, expected) in [
        ("200 OK", Verdict::Delivered),
        ("202 Accepted", Verdict::Delivered),
        ("299 Odd", Verdict::Delivered),
        ("302 Found\r\nLocation: /other", Verdict::Again),
        ("308 Permanent Redirect\r\nLocation: /other", Verdict::Again),
        ("401 Unauthorized", Verdict::Again),
        ("403 Forbidden", Verdict::Again),
        ("407 Proxy Authentication Required", Verdict::Again),
        ("408 Request Timeout", Verdict::Again),
        ("425 Too Early", Verdict::Again),
        ("429 Too Many Requests", Verdict::Again),
        ("500 Internal Server Error", Verdict::Again),
        ("503 Service Unavailable", Verdict::Again),
        ("400 Bad Request", Verdict::Refused("400 Bad Request: why".into())),
        ("404 Not Found", Verdict::Refused("404 Not Found: why".into())),
        ("405 Method Not Allowed", Verdict::Refused("405 Method Not Allowed: why".into())),
        ("413 Payload Too Large", Verdict::Refused("413 Payload Too Large: why".into())),
        ("422 Unprocessable Entity", Verdict::Refused("422 Unprocessable Entity: why".into())),
    ] {
        let server = Server::start(move |_| (head, "why\n"));
        let report = deliver(&Http::new(&server.options()).unwrap(), &records("", &["1"]));
        let error = (expected == Verdict::Again).then(|| format!("{}: why", &head[..head.find('\r').unwrap_or(head.len())]));
        assert_eq!(report, Report { verdicts: vec![expected], error }, "{head}");
        assert_eq!(server.requests().len(), 1, "{head}");
    }
}

#[test]
fn a_batch_is_halved_until_the_record_that_the_server_refuses_is_alone() {
    let server = Server::start(|request| if request.body.contains('7') { ("422 Unprocessable Entity", "seven") } else { OK });
    let bodies: Vec<String> = (0..16).map(|number| number.to_string()).collect();
    let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
    let report = deliver(&Http::new(&server.options()).unwrap(), &records("", &bodies));
    let mut expected = Report::delivered(16);
    expected.verdicts[7] = Verdict::Refused("422 Unprocessable Entity: seven".into());
    assert_eq!(report, expected);
    let requests = server.requests();
    let taken: Vec<&str> = requests.iter().map(|request| request.body.as_str()).filter(|body| !body.contains('7')).collect();
    assert_eq!(taken, ["[0,1,2,3]", "[4,5]", "[6]", "[8,9,10,11,12,13,14,15]"], "each once and in order");
    assert_eq!(requests.len(), 9);
}

#[test]
fn an_unknown_path_refuses_its_records_at_once_and_no_others() {
    let server = Server::start(|request| if request.line.ends_with("/gone") { ("410 Gone", "") } else { OK });
    let batch = [records("/gone", &["1", "2", "3"]), records("/there", &["4"])].concat();
    let report = deliver(&Http::new(&server.options()).unwrap(), &batch);
    let gone = Verdict::Refused("410 Gone".into());
    assert_eq!(report.verdicts, [gone.clone(), gone.clone(), gone, Verdict::Delivered]);
    assert_eq!(server.requests().len(), 2);
}

#[test]
fn what_comes_behind_a_failure_comes_again_behind_it() {
    let server = Server::start(|request| if request.body.contains('2') { ("503 Service Unavailable", "") } else { OK });
    let batch = [records("/a", &["1"]), records("/b", &["2"]), records("/c", &["3"])].concat();
    let report = deliver(&Http::new(&server.options()).unwrap(), &batch);
    assert_eq!(report.verdicts, [Verdict::Delivered, Verdict::Again, Verdict::Again]);
    assert_eq!((report.error.as_deref(), server.requests().len()), (Some("503 Service Unavailable"), 2));
}

#[test]
fn a_record_that_cannot_be_sent_is_refused_alone() {
    let server = Server::start(|_| OK);
    let batch = [
        record(0, &[b"", b"{\"a\":"]),
        record(0, &[b"../admin", b"1"]),
        record(0, &[b"/x/%2e%2E/y", b"1"]),
        record(0, &[b"\xff", b"1"]),
        record(0, &[b"a\r\nHost: x", b"1"]),
        record(0, &[b"", b"5"]),
    ];
    let report = deliver(&Http::new(&server.options()).unwrap(), &batch);
    let reasons: Vec<&str> = report.verdicts[..5]
        .iter()
        .map(|verdict| if let Verdict::Refused(reason) = verdict { reason.as_str() } else { panic!("{verdict:?}") })
        .collect();
    assert_eq!(reasons[0], "the body is not JSON");
    assert!(reasons[1].contains("leads out of the URL") && reasons[2].contains("leads out of the URL"), "{reasons:?}");
    assert!(reasons[4].contains("has a tab or a line break"), "{reasons:?}");
    assert_eq!((reasons[3], &report.verdicts[5]), ("the path is not UTF-8", &Verdict::Delivered));
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn a_path_stays_below_the_url_whatever_is_in_it() {
    let target = |url: &str| Http::new(&HttpOptions { url: url.into(), ..HttpOptions::default() }).unwrap();
    let base = target("http://h:8080/in/");
    for (path, url) in [
        ("", "http://h:8080/in/"),
        ("/a", "http://h:8080/in/a"),
        ("a/b", "http://h:8080/in/a/b"),
        ("@evil/x", "http://h:8080/in/@evil/x"),
        ("//evil/x", "http://h:8080/in/evil/x"),
        (":99/x", "http://h:8080/in/:99/x"),
        ("a#b c", "http://h:8080/in/a%23b%20c"),
        ("?q=1", "http://h:8080/in/?q=1"),
    ] {
        assert_eq!(base.url(path).unwrap().as_str(), url, "{path}");
    }
    for path in ["..", "/../x", "a/../../b", "a/%2E%2e/b", "a\\..\\b", "."] {
        assert!(base.url(path).is_err(), "{path}");
    }
    assert_eq!(target("http://h").url("@evil").unwrap().host_str(), Some("h"));
}

#[test]
fn a_server_that_is_not_there_or_does_not_answer_is_tried_again() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let options = HttpOptions { url: format!("http://127.0.0.1:{port}/"), ..HttpOptions::default() };
    let away = Http::new(&options).unwrap();
    let report = deliver(&away, &records("", &["1", "2"]));
    assert_eq!(report.verdicts, [Verdict::Again, Verdict::Again]);
    assert!(report.error.as_deref().unwrap().contains("refused"), "{report:?}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert!(runtime.block_on(away.probe()).unwrap_err().contains("refused"));

    let silent = Server::start(|_| {
        thread::sleep(Duration::from_secs(2));
        OK
    });
    let target = Http::new(&HttpOptions { timeout_ms: 100, ..silent.options() }).unwrap();
    assert_eq!(runtime.block_on(target.probe()), Ok(()));
    let begun = std::time::Instant::now();
    let report = runtime.block_on(async { target.deliver(&records("", &["1"])).await });
    assert!(report.error.as_deref().unwrap().contains("timed out"), "{report:?}");
    assert!(begun.elapsed() < Duration::from_secs(1));

    // It closes the connection in the place of an answer.
    let rude = Server::start(|_| ("", ""));
    assert_eq!(deliver(&Http::new(&rude.options()).unwrap(), &records("", &["1"])).verdicts, [Verdict::Again]);
}

#[test]
fn a_server_that_asks_for_time_is_given_it() {
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let server = Server::start(move |_| match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
        0 => ("429 Too Many Requests\r\nRetry-After: 1", ""),
        _ => OK,
    });
    let target = Http::new(&server.options()).unwrap();
    assert_eq!(deliver(&target, &records("", &["1"])).verdicts, [Verdict::Again]);
    let begun = std::time::Instant::now();
    assert_eq!(deliver(&target, &records("", &["1"])), Report::delivered(1));
    assert!((Duration::from_millis(700)..Duration::from_secs(3)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert_eq!(deliver(&target, &records("", &["1"])), Report::delivered(1));
    assert!(begun.elapsed() < Duration::from_secs(3), "once");
}
