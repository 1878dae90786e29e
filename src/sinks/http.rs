//! Records to an HTTP server: a batch is a request for each path in it, or with [`BodyFormat::Single`] every record is.
//!
//! What an answer means: 2xx is delivered. What is about the server or the way to it is tried again: no answer, 408, 425, 429, 5xx, and
//! what the operator has to put right for every record, so that a mistake there loses nothing: 3xx (redirects are not followed), 401,
//! 403, 407. `Retry-After` is honoured. 404, 405 and 410 are about the path and refuse all its records. Every other answer is about the
//! records: a batch is halved until the one that the server will not take is alone.

use super::options::{BodyFormat, HttpOptions, Method};
use super::target::{Pending, Report, Target, Verdict};
use crate::record::Record;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url, redirect};
use serde::de::IgnoredAny;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};

/// The numbers of the parts of a record.
const PATH: usize = 0;
const BODY: usize = 1;

/// What an attempt with several requests takes, at most, beyond the request at hand.
const ATTEMPT: Duration = Duration::from_secs(10);
/// How long an attempt waits because the server said so, at most; the rest is waited in the next attempts.
const WAIT_MAX: Duration = Duration::from_secs(8);
/// The longest `Retry-After` that is believed.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);
const CONNECT: Duration = Duration::from_secs(5);
/// Of an answer's body so much is read, that the connection may be used again, and so much is shown.
const ANSWER_BYTES_MAX: usize = 64 << 10;
const SHOWN_MAX: usize = 200;

pub struct Http {
    client: Client,
    base: Url,
    method: reqwest::Method,
    headers: HeaderMap,
    body: BodyFormat,
    requests_max: usize,
    /// The server does not want to be asked before this.
    not_before: Mutex<Option<Instant>>,
}

/// Reads a header as options have it, a line `Name: value`.
pub fn parse_header(line: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = line.split_once(':').ok_or_else(|| format!("the header {:?} has no colon", line.trim()))?;
    let name = HeaderName::try_from(name.trim()).map_err(|_| format!("{:?} is no name of a header", name.trim()))?;
    let value = HeaderValue::try_from(value.trim())
        .map_err(|_| format!("the value of the header {name} has a control character in it"))?;
    Ok((name, value))
}

/// Reads the URL that options have.
pub fn parse_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("{:?} is neither http nor https", url.scheme()));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("it ends with a query or fragment, behind which no path can be appended".into());
    }
    Ok(url)
}

/// Whether a path may be appended to a URL. Tabs and line breaks are taken out of URLs, so that it would be another path.
pub fn check_path(path: &str) -> Result<(), String> {
    if path.contains(['\t', '\n', '\r']) {
        return Err(format!("the path {path:?} has a tab or a line break in it"));
    }
    let levels = path.split_once('?').map_or(path, |(levels, _)| levels);
    let is_step = |level: &str| matches!(level.to_ascii_lowercase().replace("%2e", ".").as_str(), "." | "..");
    if levels.split(['/', '\\']).any(is_step) {
        return Err(format!("the path {levels:?} leads out of the URL"));
    }
    Ok(())
}

/// The crate for HTTP takes its cryptography from the process.
fn install_cryptography() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Who came first has installed one, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}

impl Http {
    /// Says what is wrong with the options.
    pub fn new(options: &HttpOptions) -> Result<Self, String> {
        install_cryptography();
        let mut headers = HeaderMap::new();
        for line in options.headers.lines().filter(|line| !line.trim().is_empty()) {
            let (name, value) = parse_header(line)?;
            headers.append(name, value);
        }
        let limit = Duration::from_millis(u64::from(options.timeout_ms));
        let requests_max = options.requests_max.max(1) as usize;
        let client = Client::builder()
            .user_agent(concat!("corelane/", env!("CARGO_PKG_VERSION")))
            .timeout(limit)
            .connect_timeout(CONNECT.min(limit))
            .redirect(redirect::Policy::none())
            .no_proxy()
            .pool_max_idle_per_host(requests_max)
            .build()
            .map_err(|error| chain(&error))?;
        Ok(Self {
            client,
            base: parse_url(&options.url)?,
            method: match options.method {
                Method::Post => reqwest::Method::POST,
                Method::Put => reqwest::Method::PUT,
            },
            headers,
            body: options.body,
            requests_max,
            not_before: Mutex::new(None),
        })
    }

    /// Where records with this path go. Values in a path come from clients: whatever they are, they lead nowhere outside the URL.
    fn url(&self, path: &str) -> Result<Url, String> {
        let mut url = self.base.clone();
        if path.is_empty() {
            return Ok(url);
        }
        check_path(path)?;
        let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
        if !path.is_empty() {
            let whole = format!("{}/{}", url.path().trim_end_matches('/'), path.trim_start_matches('/'));
            url.set_path(&whole);
        }
        url.set_query(query);
        Ok(url)
    }

    /// The records of a batch by where they go, in the order of the first of each; what cannot be sent is refused.
    fn sort(&self, records: &[Record], verdicts: &mut [Verdict]) -> Vec<Group> {
        let mut groups: Vec<(&[u8], Group)> = Vec::new();
        for (at, record) in records.iter().enumerate() {
            let path = record.part(PATH);
            let fault = match self.body {
                BodyFormat::JsonArray if !is_json(record.part(BODY)) => Some("the body is not JSON".to_owned()),
                _ => None,
            };
            if let Some(fault) = fault {
                verdicts[at] = Verdict::Refused(fault);
                continue;
            }
            if self.body != BodyFormat::Single
                && let Some((_, group)) = groups.iter_mut().find(|(other, _)| *other == path)
            {
                group.records.push(at);
                continue;
            }
            match str::from_utf8(path).map_err(|_| "the path is not UTF-8".to_owned()).and_then(|path| self.url(path)) {
                Ok(url) => groups.push((path, Group { url, records: vec![at] })),
                Err(fault) => verdicts[at] = Verdict::Refused(fault),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    /// The body of a request and what is in it.
    fn body(&self, bodies: &[&[u8]]) -> (Vec<u8>, &'static str) {
        let mut body = Vec::with_capacity(bodies.iter().map(|body| body.len() + 1).sum::<usize>() + 2);
        match self.body {
            BodyFormat::JsonArray => {
                body.push(b'[');
                body.extend_from_slice(&bodies.join(&b','));
                body.push(b']');
                (body, "application/json")
            }
            BodyFormat::JsonLines => {
                for one in bodies {
                    // In JSON a line break is never part of a value.
                    body.extend(one.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }));
                    body.push(b'\n');
                }
                (body, "application/x-ndjson")
            }
            BodyFormat::Single => {
                body.extend_from_slice(&bodies.concat());
                let kind = if is_json(&body) { "application/json" } else { "application/octet-stream" };
                (body, kind)
            }
        }
    }

    async fn request(&self, url: &Url, bodies: &[&[u8]]) -> Answer {
        let (body, kind) = self.body(bodies);
        let mut request = self.client.request(self.method.clone(), url.clone()).headers(self.headers.clone()).body(body);
        if !self.headers.contains_key(CONTENT_TYPE) {
            request = request.header(CONTENT_TYPE, kind);
        }
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => return Answer::Again(chain(&error.without_url())),
        };
        let status = response.status();
        if let Some(wait) = retry_after(&response) {
            let until = Instant::now() + wait;
            *self.not_before.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
        }
        let text = answer_text(response).await;
        let shown = if text.is_empty() { status.to_string() } else { format!("{status}: {text}") };
        match meaning(status) {
            Meaning::Delivered => Answer::Delivered,
            Meaning::Again => Answer::Again(shown),
            Meaning::NoSuchPath => Answer::NoSuchPath(shown),
            Meaning::BadRecord => Answer::BadRecord(shown),
        }
    }

    async fn attempt(&self, records: &[Record]) -> Report {
        if let Some(error) = self.wait_as_told().await {
            return Report::again(records.len(), error);
        }
        let mut verdicts = vec![Verdict::Again; records.len()];
        let groups = self.sort(records, &mut verdicts);
        let until = Instant::now() + ATTEMPT;
        for Group { url, records: members } in groups {
            // Parts of the group that are to be sent, the first one last.
            let mut left: Vec<Range<usize>> = std::iter::once(0..members.len()).collect();
            while let Some(range) = left.pop() {
                let bodies: Vec<&[u8]> = members[range.clone()].iter().map(|at| records[*at].part(BODY)).collect();
                match self.request(&url, &bodies).await {
                    Answer::Delivered => settle(&mut verdicts, &members[range], &Verdict::Delivered),
                    Answer::NoSuchPath(reason) => settle(&mut verdicts, &members[range], &Verdict::Refused(reason)),
                    Answer::BadRecord(reason) if range.len() == 1 => {
                        settle(&mut verdicts, &members[range], &Verdict::Refused(reason));
                    }
                    Answer::BadRecord(_) => {
                        let middle = range.start + range.len() / 2;
                        left.extend([middle..range.end, range.start..middle]);
                    }
                    // What comes behind keeps its place behind it.
                    Answer::Again(error) => return Report { verdicts, error: Some(error) },
                }
                if Instant::now() >= until {
                    let error = verdicts.contains(&Verdict::Again).then(|| "the requests of a batch take too long".to_owned());
                    return Report { verdicts, error };
                }
            }
        }
        Report { verdicts, error: None }
    }

    /// Waits until the server wants to be asked again, or returns that it does not want to yet.
    async fn wait_as_told(&self) -> Option<String> {
        let not_before = *self.not_before.lock().unwrap_or_else(PoisonError::into_inner);
        let not_before = not_before?;
        let now = Instant::now();
        sleep_until(not_before.min(now + WAIT_MAX)).await;
        (not_before > now + WAIT_MAX).then(|| format!("Retry-After: {} s more", (not_before - now - WAIT_MAX).as_secs() + 1))
    }

    async fn connect(&self) -> Result<(), String> {
        let port = self.base.port_or_known_default().unwrap_or(80);
        let host = self.base.host_str().unwrap_or_default();
        // A literal IPv6 address stands in brackets.
        let address = host.trim_start_matches('[').trim_end_matches(']');
        let connected = match address.parse::<IpAddr>() {
            Ok(address) => timeout(CONNECT, tokio::net::TcpStream::connect(SocketAddr::new(address, port))).await,
            Err(_) => timeout(CONNECT, tokio::net::TcpStream::connect((host, port))).await,
        };
        match connected {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(format!("{host}:{port}: {error}")),
            Err(_) => Err(format!("{host}:{port}: no connection within {} s", CONNECT.as_secs())),
        }
    }
}

impl Target for Http {
    fn batches_max(&self) -> usize {
        self.requests_max
    }

    fn records_max(&self) -> usize {
        if self.body == BodyFormat::Single { 1 } else { usize::MAX }
    }

    fn probe(&self) -> Pending<'_, Result<(), String>> {
        Box::pin(self.connect())
    }

    fn deliver<'a>(&'a self, records: &'a [Record]) -> Pending<'a, Report> {
        Box::pin(self.attempt(records))
    }
}

/// Records that go to one URL, by their numbers in the batch.
struct Group {
    url: Url,
    records: Vec<usize>,
}

/// What became of a request, with the server's words.
enum Answer {
    Delivered,
    Again(String),
    NoSuchPath(String),
    BadRecord(String),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meaning {
    Delivered,
    Again,
    NoSuchPath,
    BadRecord,
}

fn meaning(status: StatusCode) -> Meaning {
    match status.as_u16() {
        200..300 => Meaning::Delivered,
        404 | 405 | 410 => Meaning::NoSuchPath,
        401 | 403 | 407 | 408 | 425 | 429 => Meaning::Again,
        400..500 => Meaning::BadRecord,
        _ => Meaning::Again,
    }
}

fn settle(verdicts: &mut [Verdict], members: &[usize], verdict: &Verdict) {
    for at in members {
        verdicts[*at] = verdict.clone();
    }
}

pub fn is_json(bytes: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(bytes).is_ok()
}

/// How long the server asks to be left alone, in seconds as it wrote them; a date is not believed, because clocks differ.
fn retry_after(response: &Response) -> Option<Duration> {
    let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    let trouble = meaning(response.status()) == Meaning::Again;
    trouble.then(|| Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

/// The beginning of an answer's body, in one line.
async fn answer_text(mut response: Response) -> String {
    let mut bytes = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > ANSWER_BYTES_MAX {
            break;
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    text.trim().chars().take(SHOWN_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// An error with what caused it, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text.replace(char::is_control, " ")
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
