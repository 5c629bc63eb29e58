use std::io::Write;
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use lockstep::cluster::Etcd;

use super::server::{Server, free_port};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn keys_are_set_created_listed_and_removed() {
    let server = Server::start();
    let etcd = server.client();
    assert_eq!(etcd.get(b"/a").unwrap(), None);
    etcd.put(b"/a", b"\x00\xff", 0).unwrap();
    assert_eq!(etcd.get(b"/a").unwrap().unwrap(), b"\x00\xff");
    assert!(!etcd.create(b"/a", b"2", 0).unwrap());
    assert!(etcd.create(b"/a", b"\x00\xff", 0).unwrap(), "a repeated call");
    assert!(etcd.create(b"/a/1", b"x", 0).unwrap());
    assert!(etcd.create(b"/b", b"", 0).unwrap());
    let found = etcd.list(b"/a").unwrap();
    assert_eq!(found, [(vec![], b"\x00\xff".to_vec()), (b"/1".to_vec(), b"x".to_vec())]);
    assert!(etcd.delete(b"/b").unwrap());
    assert!(!etcd.delete(b"/b").unwrap());
    etcd.delete_all(b"/a").unwrap();
    assert_eq!(etcd.list(b"/").unwrap(), []);
    let error = etcd.put(b"/large", &vec![0; 1_800_000], 0).unwrap_err().to_string();
    assert!(error.contains(&server.endpoint) && error.contains("too large"), "{error}");
}

#[test]
fn keys_end_with_their_lease() {
    let server = Server::start();
    let etcd = server.client();
    let (kept, left) = (etcd.grant(2 * SECOND, 0).unwrap(), etcd.grant(2 * SECOND, 0).unwrap());
    etcd.put(b"/kept", b"", kept).unwrap();
    etcd.put(b"/left", b"", left).unwrap();
    let began = Instant::now();
    while etcd.get(b"/left").unwrap().is_some() {
        assert!(began.elapsed() < 20 * SECOND);
        assert!(etcd.keep_alive(kept).unwrap());
        thread::sleep(SECOND / 4);
    }
    assert!(etcd.get(b"/kept").unwrap().is_some());
    assert!(!etcd.keep_alive(left).unwrap());
    let error = etcd.put(b"/left", b"", left).unwrap_err().to_string();
    assert!(error.contains("lease"), "{error}");
    etcd.revoke(kept).unwrap();
    etcd.revoke(kept).unwrap();
    assert_eq!(etcd.get(b"/kept").unwrap(), None);
}

#[test]
fn another_endpoint_and_a_restarted_server_are_found() {
    let mut server = Server::start();
    let endpoints = [format!("127.0.0.1:{}", free_port()), server.endpoint.clone()];
    let etcd = Etcd::new(&endpoints, 30 * SECOND).unwrap();
    etcd.put(b"/a", b"1", 0).unwrap();
    server.kill();
    let value = thread::spawn(move || etcd.get(b"/a"));
    thread::sleep(SECOND);
    server.restart();
    assert_eq!(value.join().unwrap().unwrap().unwrap(), b"1");
}

#[test]
fn what_is_not_etcd_is_named_within_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let garbage = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"220 mail.example SMTP\r\n");
        }
    });
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let absent = format!("127.0.0.1:{}", free_port());
    for endpoint in [absent, garbage, silent.local_addr().unwrap().to_string()] {
        let etcd = Etcd::new(std::slice::from_ref(&endpoint), 2 * SECOND).unwrap();
        let began = Instant::now();
        let error = etcd.get(b"/a").unwrap_err().to_string();
        assert!(began.elapsed() < 10 * SECOND, "{:?}", began.elapsed());
        assert!(error.contains(&endpoint) && error.contains("check that etcd runs"), "{error}");
    }
}
