//! As much of HTTP/1.1 as a scraper needs, with limits on what a client can cost.

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
/// The bytes of a request. Scrapers send a few hundred.
const MAX_REQUEST: usize = 8 << 10;
/// How long a connection may take.
const MAX_TIME: Duration = Duration::from_secs(5);
/// The wait after an error such as too many open files.
const PAUSE: Duration = Duration::from_millis(50);

/// Makes the text of an answer.
type Render = Arc<dyn Fn() -> String + Send + Sync>;

/// A thread that answers until this is dropped.
pub(super) struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(
        listener: net::TcpListener,
        render: impl Fn() -> String + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        listener.set_nonblocking(true)?;
        let listener = {
            let _guard = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let (stop, stopped) = oneshot::channel();
        let run = move || runtime.block_on(serve(listener, Arc::new(render), stopped));
        let thread = thread::Builder::new().name("prometheus".to_owned()).spawn(run)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Serves connections until `stopped` is.
async fn serve(listener: TcpListener, render: Render, mut stopped: oneshot::Receiver<()>) {
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
        let render = render.clone();
        // What goes wrong with a connection is its client's loss.
        let answered = async move { timeout(MAX_TIME, converse(&stream, &render)).await };
        connections.push_back(tokio::spawn(answered));
    }
}

/// Reads a request, and answers it.
async fn converse(stream: &TcpStream, render: &Render) -> io::Result<()> {
    let (mut request, mut part) = (vec![], [0; 1024]);
    let answer = loop {
        if request.windows(4).any(|end| end == b"\r\n\r\n") {
            break answer(&request, render);
        }
        if request.len() > MAX_REQUEST {
            break response("431 Request Header Fields Too Large", "", "");
        }
        stream.readable().await?;
        match stream.try_read(&mut part) {
            Ok(0) => return Ok(()),
            Ok(num_bytes) => request.extend(&part[..num_bytes]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    };
    let mut rest = answer.as_bytes();
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

fn answer(request: &[u8], render: &Render) -> String {
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let words: Vec<_> = line.split(|byte| *byte == b' ').collect();
    let [method, target, b"HTTP/1.1" | b"HTTP/1.0"] = words[..] else {
        return response("400 Bad Request", "", "");
    };
    if target.split(|byte| *byte == b'?').next() != Some(b"/metrics") {
        return response("404 Not Found", "", "the numbers are at /metrics\n");
    }
    let kind = "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n";
    match method {
        b"GET" => response("200 OK", kind, &render()),
        b"HEAD" => response("200 OK", kind, ""),
        _ => response("405 Method Not Allowed", "Allow: GET, HEAD\r\n", ""),
    }
}

fn response(status: &str, fields: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\n{fields}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}
