use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::sync::Mutex;
use std::thread::ScopedJoinHandle;

use super::super::tests::{Random, TestCall, TestSite, launch_everywhere};
use super::*;

const LONG: Duration = Duration::from_secs(60);

type Lines = Arc<Mutex<Vec<String>>>;

/// Listeners for the processes of a job, and the options of each.
fn job(num_processes: usize) -> (Vec<TcpListener>, Vec<LinkOptions>, Lines) {
    let listener = |_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let listeners: Vec<_> = (0..num_processes).map(listener).collect();
    let addresses: Vec<_> = listeners.iter().map(|x| x.local_addr().unwrap()).collect();
    let lines = Lines::default();
    let secret = Secret::random().unwrap();
    let options = (0..num_processes).map(|process_index| {
        let lines = lines.clone();
        LinkOptions {
            job: "digits".to_owned(),
            generation: 3,
            process_index,
            addresses: addresses.clone(),
            secret: secret.clone(),
            is_plain: false,
            deadline: LONG,
            report: Arc::new(move |line| lines.lock().unwrap().push(line.to_owned())),
        }
    });
    (listeners, options.collect(), lines)
}

/// Connects all processes of a job, each after a delay.
fn connect_all(
    listeners: Vec<TcpListener>,
    options: &[LinkOptions],
    delay: impl Fn(usize) -> Duration + Sync,
) -> Vec<Links> {
    thread::scope(|scope| {
        let connect = |(listener, options): (TcpListener, _)| {
            let delay = &delay;
            scope.spawn(move || {
                let options: &LinkOptions = options;
                thread::sleep(delay(options.process_index));
                Links::connect(listener, options).unwrap()
            })
        };
        let connecting: Vec<_> = listeners.into_iter().zip(options).map(connect).collect();
        connecting.into_iter().map(|links| links.join().unwrap()).collect()
    })
}

fn start_all(links: Vec<Links>) -> Vec<Arc<Exchange<TestCall>>> {
    links.into_iter().map(|links| links.start(LONG, &Arc::default()).unwrap()).collect()
}

fn program(num_replicas: usize) -> [TestSite; 2] {
    [TestSite::all_reduce(0, num_replicas, 10), TestSite::all_reduce(1, num_replicas, 100_003)]
}

#[test]
fn a_mesh_forms_in_any_order_of_starts_and_carries_collectives() {
    for seed in 0..4 {
        let (listeners, mut options, lines) = job(4);
        options.iter_mut().for_each(|options| options.is_plain = seed % 2 == 1);
        let delays: Vec<_> = {
            let mut random = Random::new(seed);
            (0..4).map(|_| Duration::from_millis(random.below(60) as u64)).collect()
        };
        let exchanges = start_all(connect_all(listeners, &options, |process| delays[process]));
        for number in 0..3 {
            let results = launch_everywhere(&exchanges, number, 8, &program(8), seed);
            let first = results[0].clone();
            assert!(first.iter().all(Result::is_ok), "{first:?}");
            assert!(results.iter().all(|found| *found == first));
        }
        for exchange in &exchanges {
            assert!(exchange.say_goodbye(LONG));
            exchange.close();
        }
        assert_eq!(*lines.lock().unwrap(), [""; 0]);
    }
}

/// Reads until the other side closes the connection, which must not take long.
fn assert_closed(mut stream: TcpStream) {
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut rest = vec![];
    match stream.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
}

/// Connects through a middleman that records what process 1 says in its handshake.
fn record(options: &LinkOptions, listener: &TcpListener, middle: &TcpListener) -> Vec<u8> {
    let through = LinkOptions {
        addresses: vec![middle.local_addr().unwrap(), options.addresses[1]],
        ..options.clone()
    };
    let listening = LinkOptions { process_index: 0, ..options.clone() };
    let keys = LinkKeys::new(options).unwrap();
    thread::scope(|scope| {
        let sender = keys.clone();
        let connecting = scope.spawn(move || handshake::connect(&through, &sender, 0).map(drop));
        let mut client = middle.accept().unwrap().0;
        let mut server = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, address) = listener.accept().unwrap();
        let mut guest = Guest::new(&keys, stream, address).unwrap();
        client.set_nonblocking(true).unwrap();
        server.set_nonblocking(true).unwrap();
        let (mut recorded, mut buffer) = (vec![], [0; 4096]);
        while !connecting.is_finished() {
            if let Ok(num_bytes @ 1..) = client.read(&mut buffer) {
                server.write_all(&buffer[..num_bytes]).unwrap();
                recorded.extend_from_slice(&buffer[..num_bytes]);
            }
            if let HandshakeProgress::Refused(reason) = guest.advance(&listening) {
                assert_eq!(reason, "closed the connection");
            }
            if let Ok(num_bytes @ 1..) = server.read(&mut buffer) {
                client.write_all(&buffer[..num_bytes]).unwrap();
            }
        }
        connecting.join().unwrap().unwrap();
        recorded
    })
}

#[test]
fn strangers_are_refused_while_a_process_gets_in() {
    let (mut listeners, options, lines) = job(2);
    let listener = listeners.remove(0);
    let address = listener.local_addr().unwrap();
    let middle = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let recorded = record(&options[1], &listener, &middle);
    thread::scope(|scope| {
        let options = &options;
        let listening = scope.spawn(move || Links::connect(listener, &options[0]).unwrap());
        // Silent ones, more than may be in the lobby at once.
        let silent: Vec<_> =
            (0..MAX_GUESTS + 20).map(|_| TcpStream::connect(address).unwrap()).collect();
        let refused = |impostor: &LinkOptions| {
            let error = handshake::connect(impostor, &LinkKeys::new(impostor).unwrap(), 0).err();
            token_tls::describe(&error.unwrap())
        };
        for stranger in [
            LinkOptions { secret: Secret::random().unwrap(), ..options[1].clone() },
            LinkOptions { job: "other".to_owned(), ..options[1].clone() },
        ] {
            assert_eq!(refused(&stranger), "does not have the token of this job");
        }
        for impostor in [
            LinkOptions { generation: 2, ..options[1].clone() },
            LinkOptions { process_index: 2, ..options[1].clone() },
            LinkOptions { is_plain: true, ..options[1].clone() },
        ] {
            let error = refused(&impostor);
            assert!(error.contains("refused the connection"), "{error}");
        }
        // A recorded handshake, a request of another protocol, and a flood of bytes.
        let mut record_of_tls = vec![0x16, 3, 1, 0x3f, 0xff];
        record_of_tls.resize(1 << 16, 1);
        for bytes in [
            &recorded[..],
            b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: everything\r\n\r\n",
            &[0xff; 1 << 16],
            &record_of_tls,
        ] {
            let mut stream = TcpStream::connect(address).unwrap();
            let _ = stream.write_all(bytes);
            assert_closed(stream);
        }
        let mut random = Random::new(1);
        for _ in 0..200 {
            let mut stream = TcpStream::connect(address).unwrap();
            let bytes: Vec<u8> = (0..random.below(100)).map(|_| random.next() as u8).collect();
            let _ = stream.write_all(&bytes);
        }
        let listener = listeners.remove(0);
        let links = Links::connect(listener, &options[1]).unwrap();
        let exchanges = start_all(vec![listening.join().unwrap(), links]);
        let results = launch_everywhere(&exchanges, 0, 2, &program(2), 0);
        assert!(results.iter().flatten().all(Result::is_ok));
        drop(silent);
    });
    let lines = lines.lock().unwrap();
    for expected in [
        "it has another token, or belongs to another job",
        "it is of generation 2, this is 3",
        "it says that it is process 2, which does not connect to this one",
        "it has cluster.links = \"plain\", this process \"tls\"",
        "it is not a process of this program",
        "it gave way to newer ones",
    ] {
        assert!(lines.iter().any(|line| line.contains(expected)), "{expected}: {lines:?}");
    }
    // The recorded handshake.
    let without_token = lines.iter().filter(|line| line.contains("it does not have the token"));
    assert_eq!(without_token.count(), 1, "{lines:?}");
}

/// What a stranger sees of a connection: a value that it carries is not among it, unless links are
/// plain.
#[test]
fn only_plain_links_show_what_they_carry() {
    for is_plain in [false, true] {
        let (listeners, mut options, _) = job(2);
        options.iter_mut().for_each(|options| options.is_plain = is_plain);
        let middle = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = options[0].addresses[0];
        options[1].addresses[0] = middle.local_addr().unwrap();
        let seen = thread::spawn(move || {
            let client = middle.accept().unwrap().0;
            let server = TcpStream::connect(to).unwrap();
            let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut &back.0, &mut &back.1));
            let (mut seen, mut buffer) = (vec![], [0; 4096]);
            while let Ok(num_bytes @ 1..) = (&client).read(&mut buffer) {
                seen.extend_from_slice(&buffer[..num_bytes]);
                (&server).write_all(&buffer[..num_bytes]).unwrap();
            }
            seen
        });
        let mut links = connect_all(listeners, &options, |_| Duration::ZERO);
        let value = b"a value that is for members only";
        let mut link = links.remove(1).peers.remove(0).unwrap();
        link.outgoing.stream.write_all(value).unwrap();
        link.outgoing.stream.flush().unwrap();
        let mut found = [0; 32];
        links[0].peers[1].as_mut().unwrap().incoming.stream.read_exact(&mut found).unwrap();
        assert_eq!(&found, value);
        drop(link);
        let seen = seen.join().unwrap();
        assert_eq!(seen.windows(32).any(|window| window == value), is_plain);
    }
}

#[test]
fn a_silent_connection_is_closed_after_a_while() {
    let (mut listeners, mut options, lines) = job(2);
    options[0].deadline = handshake::HANDSHAKE_TIMEOUT + Duration::from_secs(1);
    let silent = TcpStream::connect(options[0].addresses[0]).unwrap();
    let error = Links::connect(listeners.remove(0), &options[0]).unwrap_err().to_string();
    assert_closed(silent);
    // It listens, and does no more.
    let expected = format!("process 1 ({}): does not answer", options[0].addresses[1]);
    assert!(error.contains(&expected), "{error}");
    assert!(lines.lock().unwrap()[0].contains("it was silent for too long"));
}

#[test]
fn processes_that_do_not_answer_are_named() {
    let (mut listeners, mut options, _) = job(2);
    options[1].deadline = Duration::from_millis(100);
    drop(listeners.remove(0));
    let error = Links::connect(listeners.remove(0), &options[1]).unwrap_err().to_string();
    assert!(error.contains(&format!("process 0 ({})", options[0].addresses[0])), "{error}");
    options[1].process_index = 2;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let error = Links::connect(listener, &options[1]).unwrap_err().to_string();
    assert!(error.contains("only 2 processes"), "{error}");
}

/// Links of two processes, and the address of the second.
fn pair() -> (Vec<Links>, SocketAddr) {
    let (listeners, options, _) = job(2);
    let links = connect_all(listeners, &options, |_| Duration::ZERO);
    (links, options[0].addresses[1])
}

/// The error of the first process, whose program waits for the second one.
fn wait_for_failure<'s>(
    scope: &'s thread::Scope<'s, '_>,
    exchange: &'s Arc<Exchange<TestCall>>,
) -> ScopedJoinHandle<'s, String> {
    use super::super::tests::launch;
    use crate::pjrt::LaunchInfo;
    scope.spawn(move || {
        let key = LaunchInfo { id: 1, number: 0, program_digest: 5 };
        let results = launch(exchange, key, 0..1, 2, &program(2), 0);
        results[&0].last().unwrap().clone().unwrap_err()
    })
}

#[test]
fn a_broken_connection_fails_launches_and_names_the_process() {
    let (mut links, address) = pair();
    let exchange = links.remove(0).start(LONG, &Arc::default()).unwrap();
    let outgoing = links.remove(0).peers.remove(0).unwrap().outgoing;
    thread::scope(|scope| {
        let waits = wait_for_failure(scope, &exchange);
        thread::sleep(Duration::from_millis(20));
        outgoing.tcp.shutdown(Shutdown::Both).unwrap();
        let error = waits.join().unwrap();
        assert_eq!(error, format!("process 1 ({address}) closed the connection"));
    });
    // All later launches fail, too.
    thread::scope(|scope| {
        let error = wait_for_failure(scope, &exchange).join().unwrap();
        assert!(error.contains("closed the connection"), "{error}");
    });
    // What it sends is no frame, or not of TLS.
    let (mut links, address) = pair();
    let exchange = links.remove(0).start(LONG, &Arc::default()).unwrap();
    let mut link = links.remove(0).peers.remove(0).unwrap();
    link.outgoing.stream.write_all(&[7; 100]).unwrap();
    link.outgoing.stream.flush().unwrap();
    thread::scope(|scope| {
        let error = wait_for_failure(scope, &exchange).join().unwrap();
        let expected = format!("process 1 ({address}) sent something that is not a frame");
        assert_eq!(error, expected);
    });
    let (mut links, address) = pair();
    let exchange = links.remove(0).start(LONG, &Arc::default()).unwrap();
    let mut link = links.remove(0).peers.remove(0).unwrap();
    link.outgoing.tcp.write_all(&[7; 100]).unwrap();
    thread::scope(|scope| {
        let error = wait_for_failure(scope, &exchange).join().unwrap();
        let expected = format!("process 1 ({address}) cannot be reached any more");
        assert!(error.starts_with(&expected), "{error}");
    });
}

#[test]
fn a_process_that_ends_is_no_failure_unless_its_data_is_needed() {
    let (links, address) = pair();
    let exchanges = start_all(links);
    let results = launch_everywhere(&exchanges, 0, 2, &program(2), 0);
    assert!(results.iter().flatten().all(Result::is_ok));
    assert!(exchanges[1].say_goodbye(LONG));
    // A launch without collectives across processes.
    let local = [TestSite::all_reduce(0, 1, 10)];
    let local = launch_everywhere(&exchanges[..1], 1, 1, &local, 0);
    assert!(local[0][0].is_ok());
    thread::scope(|scope| {
        use super::super::tests::launch;
        use crate::pjrt::LaunchInfo;
        let run = scope.spawn(|| {
            let key = LaunchInfo { id: 1, number: 2, program_digest: 5 };
            launch(&exchanges[0], key, 0..1, 2, &program(2), 0)
        });
        let error = run.join().unwrap()[&0][0].clone().unwrap_err();
        let expected = format!(
            "process 1 ({address}) has ended, but collective 0 (all_reduce) needs its data"
        );
        assert_eq!(error, expected);
    });
}
