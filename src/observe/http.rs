//! As much of HTTP/1.1 as answers to fixed addresses need, with limits on what a client can cost.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

/// Connections at a time. One more closes the oldest, so that clients that say nothing keep nobody
/// out.
pub(super) const MAX_CONNECTIONS: usize = 32;
/// The bytes of a request. Scrapers and browsers send a few hundred to a few thousand.
const MAX_REQUEST: usize = 8 << 10;
/// The wait after an error such as too many open files.
const PAUSE: Duration = Duration::from_millis(50);

/// A request for something that can be read, with `GET` or `HEAD`. All of it is the client's.
#[derive(Clone, Copy, Debug)]
pub struct HttpRequest<'a> {
    /// Where: what stands before a `?`, as it was sent.
    pub path: &'a str,
    /// What stands after it.
    pub query: &'a str,
    /// The server as the client calls it.
    pub host: Option<&'a str>,
}

/// What a client is told. The connection is closed after it.
#[derive(Clone, Debug)]
pub struct HttpAnswer {
    status: &'static str,
    /// Lines of the head.
    fields: String,
    body: Arc<str>,
}

impl HttpAnswer {
    /// What was asked for. `kind` is the value of `Content-Type`.
    pub fn found(kind: &str, body: impl Into<Arc<str>>) -> Self {
        let fields = format!("Content-Type: {kind}\r\n");
        Self { status: "200 OK", fields, body: body.into() }
    }

    /// There is nothing there.
    pub fn not_found(text: &'static str) -> Self {
        Self { status: "404 Not Found", ..Self::found(TEXT, text) }
    }

    /// It is not for this client.
    pub fn forbidden(text: &'static str) -> Self {
        Self { status: "403 Forbidden", ..Self::found(TEXT, text) }
    }

    /// With one more line of the head.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.fields += &format!("{name}: {value}\r\n");
        self
    }

    fn refused(status: &'static str) -> Self {
        Self { status, fields: String::new(), body: "".into() }
    }
}

/// A text without markup.
const TEXT: &str = "text/plain; charset=utf-8";

/// Makes an answer. It should do so at once: no other client is served meanwhile.
type Answerer = Arc<dyn Fn(HttpRequest<'_>) -> HttpAnswer + Send + Sync>;

/// A thread that answers until this is dropped.
pub struct HttpServer {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Answers on `listener`. A connection may take `max_time`.
    ///
    /// # Errors
    /// If there is no thread.
    pub fn start(
        listener: net::TcpListener,
        max_time: Duration,
        answer: impl Fn(HttpRequest<'_>) -> HttpAnswer + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        listener.set_nonblocking(true)?;
        let listener = {
            let _guard = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let (stop, stopped) = oneshot::channel();
        let run = move || runtime.block_on(serve(listener, max_time, Arc::new(answer), stopped));
        let thread = thread::Builder::new().name("http".to_owned()).spawn(run)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Serves connections until `stopped` is.
async fn serve(
    listener: TcpListener,
    max_time: Duration,
    answerer: Answerer,
    mut stopped: oneshot::Receiver<()>,
) {
    let mut connections = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            _ = &mut stopped => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            sleep(PAUSE).await;
            continue;
        };
        connections.retain(|connection: &tokio::task::JoinHandle<_>| !connection.is_finished());
        if connections.len() == MAX_CONNECTIONS
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort();
        }
        let answerer = answerer.clone();
        // What goes wrong with a connection is its client's loss.
        let answered = async move { timeout(max_time, converse(&stream, &answerer)).await };
        connections.push_back(tokio::spawn(answered));
    }
}

/// Reads a request, and answers it.
async fn converse(stream: &TcpStream, answerer: &Answerer) -> io::Result<()> {
    let (mut request, mut part) = (vec![], [0; 1024]);
    let (answer, has_body) = loop {
        if request.windows(4).any(|end| end == b"\r\n\r\n") {
            break answer(&request, answerer);
        }
        if request.len() > MAX_REQUEST {
            break (HttpAnswer::refused("431 Request Header Fields Too Large"), true);
        }
        stream.readable().await?;
        match stream.try_read(&mut part) {
            Ok(0) => return Ok(()),
            Ok(num_bytes) => request.extend(&part[..num_bytes]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    };
    let HttpAnswer { status, fields, body } = answer;
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\n{fields}Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    send(stream, head.as_bytes()).await?;
    if has_body {
        send(stream, body.as_bytes()).await?;
    }
    Ok(())
}

async fn send(stream: &TcpStream, mut rest: &[u8]) -> io::Result<()> {
    while !rest.is_empty() {
        stream.writable().await?;
        match stream.try_write(rest) {
            Ok(num_bytes) => rest = &rest[num_bytes..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The answer to a request, and whether its body is sent.
fn answer(request: &[u8], answerer: &Answerer) -> (HttpAnswer, bool) {
    let bad = || (HttpAnswer::refused("400 Bad Request"), true);
    let Ok(text) = std::str::from_utf8(request) else { return bad() };
    let mut lines = text.split("\r\n");
    let words: Vec<_> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, target, "HTTP/1.1" | "HTTP/1.0"] = words[..] else { return bad() };
    let has_body = match method {
        "GET" => true,
        "HEAD" => false,
        _ => {
            let refused = HttpAnswer::refused("405 Method Not Allowed");
            return (refused.with("Allow", "GET, HEAD"), true);
        }
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let host = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("host").then_some(value.trim())
    });
    (answerer(HttpRequest { path, query, host }), has_body)
}
