//! Batches on any number of replicas, evaluation that covers everything once, and the data thread.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hlo::{DType, Literal};
use lockstep::config::{self, BatchSize, BatchSplit, Config, Microbatches};
use lockstep::data::{
    Error, EvalBatches, Field, HostBatch, Prefetch, PrefetchError, Purpose, Source, Synthetic,
    TrainBatches, open, open_for,
};
use lockstep::train;

/// As another source, but for one read of many that takes long.
struct Slow {
    source: Arc<dyn Source>,
    num_reads: AtomicUsize,
    slow_read: usize,
    time: Duration,
}

impl Source for Slow {
    fn num_examples(&self) -> u64 {
        self.source.num_examples()
    }

    fn num_outputs(&self) -> usize {
        self.source.num_outputs()
    }

    fn fields(&self) -> &[Field] {
        self.source.fields()
    }

    fn read(&self, example: u64, epoch: Option<u64>, out: &mut [&mut [u8]]) -> Result<(), Error> {
        if self.num_reads.fetch_add(1, Ordering::Relaxed) == self.slow_read {
            sleep(self.time);
        }
        self.source.read(example, epoch, out)
    }
}

#[test]
fn a_slow_read_is_a_delay_of_the_launch_that_needs_it() {
    let text = r#"
        model = { name = "mlp", hidden = [8] }
        data = { source = "synthetic", image = [1, 2, 2] }
        train = { global_batch = 8, steps = 40 }
        optimizer = { name = "sgd" }
        schedule = { name = "constant", peak = 0.1 }
        mesh = { data = 1 }
    "#;
    let dir = tempfile::tempdir().unwrap();
    let config = Config::parse(text, Path::new("/runs/test.toml"), &[]).unwrap();
    let mut splits = open(&config).unwrap();
    // The loop is several launches ahead of the metrics that it records, so that nothing but the
    // end of each step tells where the time went.
    let time = Duration::from_millis(600);
    let (source, num_reads) = (splits.train, AtomicUsize::new(0));
    splits.train = Arc::new(Slow { source, num_reads, slow_read: 8 * 20, time });
    let model = config.model.build(splits.train.num_outputs());
    let job = train::Job { config: &config, model: &*model, splits: &splits };
    let out = Some(dir.path().join("run"));
    let options = train::Options { out, ..train::Options::default() };
    let outcome = train::train(&job, &options).unwrap().success().unwrap();
    let lines = fs::read_to_string(dir.path().join("run/metrics.jsonl")).unwrap();
    let read = |line| serde_json::from_str::<serde_json::Value>(line).unwrap();
    let lines: Vec<_> = lines.lines().map(read).collect();
    let ms = |line: &serde_json::Value, field: &str| line[field].as_f64().unwrap();
    let waited = lines.iter().skip(1).find(|line| ms(line, "data_wait_ms") > 300.0).unwrap();
    assert!(ms(waited, "launch_delay_ms") > 300.0, "{waited}");
    assert!(ms(waited, "step_ms") > 300.0, "{waited}");
    assert!(outcome.summary.totals["launch_delay_secs"] > 0.3);
}

fn source(num_examples: usize) -> Arc<dyn Source> {
    Arc::new(Synthetic::splits(3, num_examples, &[2], 4).0)
}

/// The values of a field over all replicas, in order.
fn whole(batch: &HostBatch, field: &str) -> Vec<f64> {
    let pieces = batch.fields.get(field).unwrap();
    pieces.iter().flat_map(|literal| literal.to_f64()).collect()
}

#[test]
fn the_global_batch_is_the_same_on_any_number_of_replicas() {
    let source = source(100);
    let batches = |n| TrainBatches::new(source.clone(), 7, 16, n).unwrap();
    for k in [0, 1, 5, 6, 1000] {
        let one = batches(1).get(k).unwrap();
        assert_eq!(one.index, k);
        for n in [2, 4, 8] {
            let cut = batches(n).get(k).unwrap();
            let x = cut.fields.get("x").unwrap();
            assert_eq!((x.len(), x[0].dims(), x[0].dtype()), (n, &[16 / n, 2][..], DType::F32));
            let y = cut.fields.get("y").unwrap();
            assert_eq!((y.len(), y[0].dims(), y[0].dtype()), (n, &[16 / n][..], DType::I32));
            for field in ["x", "y"] {
                assert_eq!(whole(&cut, field), whole(&one, field), "{field}, batch {k}, {n}");
            }
        }
    }
}

/// Microbatches of 4: surplus ones are copies of the last of their batch, and each example of an
/// epoch is in one that counts.
#[test]
fn an_epoch_of_microbatches_is_the_same_on_any_number_of_replicas() {
    let source = source(100);
    for num_microbatches in [4, 5, 6] {
        let size = 4 * num_microbatches;
        let one = TrainBatches::new(source.clone(), 7, size, 1).unwrap();
        for num_replicas in [1, 2, 3, 4, 5, 8] {
            let batch = BatchSize::Global(size);
            let split = BatchSplit::new(batch, Microbatches::Size(4), num_replicas).unwrap();
            let batches = TrainBatches::split(source.clone(), 7, split).unwrap();
            let launch = batches.launch(3..5).unwrap();
            let mut shards = vec![vec![]; num_replicas];
            let mut seen = vec![];
            for k in 0..100 / size as u64 {
                let batch = batches.get(k).unwrap();
                let places = whole(&batch, "x");
                let (counts, surplus) = places.split_at(2 * size);
                assert_eq!(counts, whole(&one.get(k).unwrap(), "x"));
                let last = &counts[2 * (size - 4)..];
                assert!(surplus.chunks(8).all(|microbatch| microbatch == last));
                seen.extend(counts.chunks(2).map(|x| x.iter().map(|x| x.to_bits()).collect()));
                if (3..5).contains(&k) {
                    let x = &batch.fields["x"];
                    shards.iter_mut().zip(x).for_each(|(all, x)| all.extend(x.to_f64()));
                }
            }
            let num_seen = seen.len();
            assert_eq!(seen.into_iter().collect::<BTreeSet<Vec<u64>>>().len(), num_seen);
            if 100 / size >= 5 {
                let of_launch = launch.fields["x"].iter().map(|x| x.to_f64());
                assert!(of_launch.eq(shards), "{num_replicas}");
            }
            // A process reads its own shards.
            let last = num_replicas - 1;
            let own = batches.clone().of_shards([last].into()).get(2).unwrap();
            assert_eq!(own.fields["x"][0], batches.get(2).unwrap().fields["x"][last]);
        }
    }
}

#[test]
fn a_resumed_run_continues_with_the_same_batches() {
    let batches = |n| TrainBatches::new(source(100), 7, 16, n).unwrap();
    let all: Vec<_> = batches(4).range(0, 20).map(Result::unwrap).collect();
    let rest: Vec<_> = batches(4).range(13, 20).map(Result::unwrap).collect();
    assert_eq!(all[13..], rest);
    let elsewhere: Vec<_> =
        batches(2).range(13, 20).map(|batch| whole(&batch.unwrap(), "x")).collect();
    assert_eq!(rest.iter().map(|batch| whole(batch, "x")).collect::<Vec<_>>(), elsewhere);
}

/// Random augmentation depends on the example and the epoch, not on the replica or where a run
/// resumed.
#[test]
fn augmented_pixels_are_the_same_on_any_number_of_replicas_and_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    for (index, name) in ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4"]
        .into_iter()
        .chain(["data_batch_5", "test_batch"])
        .enumerate()
    {
        let bytes: Vec<_> = (0..4 * 3073)
            .map(|place| if place % 3073 == 0 { index as u8 } else { (place * 7 + index) as u8 })
            .collect();
        std::fs::write(dir.path().join(format!("{name}.bin")), bytes).unwrap();
    }
    let config =
        config::Cifar10Config { path: dir.path().to_owned(), augment: true, num_examples: None };
    let splits =
        open_for(&config::DataConfig::Cifar10(config), Purpose { seed: 5, ..Purpose::default() })
            .unwrap();
    let batches = |n| TrainBatches::new(splits.train.clone(), 5, 8, n).unwrap();
    // Two batches per epoch: epochs 0 to 3.
    let all: Vec<_> = batches(1).range(0, 8).map(|batch| whole(&batch.unwrap(), "x")).collect();
    for n in [2, 4, 8] {
        let rest: Vec<_> =
            batches(n).range(3, 8).map(|batch| whole(&batch.unwrap(), "x")).collect();
        assert!(all[3..] == rest, "{n}");
    }
    let plain = EvalBatches::new(splits.train.clone(), 4, 1).unwrap();
    let plain: Vec<_> = plain.iter().flat_map(|batch| whole(&batch.unwrap(), "x")).collect();
    let images: Vec<_> = plain.chunks(3072).collect();
    let seen = all.iter().flat_map(|batch| batch.chunks(3072));
    let num_unchanged = seen.filter(|image| images.contains(image)).count();
    assert!(num_unchanged <= 4, "{num_unchanged} of 64 images are as in the file");
}

#[test]
fn evaluation_covers_each_example_once_on_any_number_of_replicas() {
    for num_examples in [1, 15, 16, 17, 100] {
        let source = source(num_examples);
        let expected = TrainBatches::new(source.clone(), 0, 1, 1).unwrap();
        let mut expected: Vec<_> = expected
            .range(0, num_examples as u64)
            .map(|batch| whole(&batch.unwrap(), "x"))
            .collect();
        expected.sort_by(|a, b| a.partial_cmp(b).unwrap());
        for n in [1, 2, 4, 8] {
            let batches = EvalBatches::new(source.clone(), 16, n).unwrap();
            let mut seen = vec![];
            let mut num_read = 0;
            for (k, batch) in batches.iter().enumerate() {
                let batch = batch.unwrap();
                assert_eq!(batch.index, k as u64);
                let weight = batch.fields.get("weight").unwrap();
                assert_eq!((weight[0].dims(), weight[0].dtype()), (&[16 / n][..], DType::F32));
                let names: Vec<_> = batch.fields.paths().collect();
                assert_eq!(names, batches.fields().iter().map(|f| f.name).collect::<Vec<_>>());
                for (x, weight) in whole(&batch, "x").chunks(2).zip(whole(&batch, "weight")) {
                    assert!(weight == 0.0 || weight == 1.0);
                    if weight == 1.0 {
                        seen.push(x.to_vec());
                    }
                }
                num_read += 1;
            }
            assert_eq!(num_read, batches.num_batches());
            seen.sort_by(|a, b| a.partial_cmp(b).unwrap());
            assert_eq!(seen, expected, "{num_examples} examples on {n} replicas");
        }
    }
}

#[test]
fn impossible_batches_are_rejected() {
    let cases = [
        (TrainBatches::new(source(100), 0, 10, 4).err(), "multiple"),
        (TrainBatches::new(source(100), 0, 0, 4).err(), "multiple"),
        (TrainBatches::new(source(100), 0, 128, 4).err(), "more than the data have: 100 examples"),
        (EvalBatches::new(source(100), 10, 0).err(), "multiple"),
        (EvalBatches::new(source(100), 10, 1).unwrap().get(10).err(), "example 100"),
        (
            TrainBatches::new(source(1 << 34), 0, 1 << 34, 1).unwrap().get(0).err(),
            "but the limit is 64 GiB",
        ),
        (EvalBatches::new(source(1), 1 << 40, 1).unwrap().get(0).err(), "make train.global_batch"),
    ];
    for (error, expected) in cases {
        let message = error.expect(expected).to_string();
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn the_example_opens() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits.toml");
    let config = Config::load(&path, &[]).unwrap();
    let splits = open(&config).unwrap();
    assert_eq!((splits.train.num_examples(), splits.eval.num_examples()), (1437, 360));
    let missing = config::DataConfig::Digits(config::DigitsConfig {
        path: "/no/such.csv.gz".into(),
        num_examples: None,
    });
    assert!(matches!(open_for(&missing, Purpose::default()), Err(Error::Read { .. })));
}

fn endless() -> impl Iterator<Item = Result<HostBatch, Error>> + Send {
    TrainBatches::new(source(100), 0, 8, 2).unwrap().range(0, u64::MAX)
}

#[test]
fn prefetch_keeps_the_order_and_stays_within_its_depth() {
    let num_made = Arc::new(AtomicUsize::new(0));
    let counter = num_made.clone();
    let batches = TrainBatches::new(source(100), 0, 8, 2).unwrap().range(5, 25);
    let mut prefetch = Prefetch::start(batches, 3, move |batch: HostBatch| {
        counter.fetch_add(1, Ordering::SeqCst);
        Ok::<_, Infallible>(batch.index)
    })
    .unwrap();
    for index in 5..25 {
        let next = prefetch.next().unwrap().unwrap();
        assert_eq!(next.batch, index);
        if index == 7 {
            sleep(Duration::from_millis(100));
        }
        assert!(num_made.load(Ordering::SeqCst) as u64 <= index - 5 + 1 + 3);
    }
    assert!(prefetch.next().is_none());
    assert!(prefetch.next().is_none());
}

#[test]
fn prefetch_reports_how_long_the_loop_waited() {
    let slow = |batch: HostBatch| {
        sleep(Duration::from_millis(50));
        Ok::<_, Infallible>(batch)
    };
    let mut prefetch = Prefetch::start(endless(), 1, slow).unwrap();
    prefetch.next().unwrap().unwrap();
    assert!(prefetch.next().unwrap().unwrap().waited > Duration::from_millis(20));
    sleep(Duration::from_millis(300));
    assert!(prefetch.next().unwrap().unwrap().waited < Duration::from_millis(20));
}

#[test]
fn prefetch_stops_when_it_is_dropped_full() {
    struct Held(Arc<AtomicUsize>);
    impl Drop for Held {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    for depth in [0, 1, 4] {
        let num_held = Arc::new(AtomicUsize::new(0));
        let held = num_held.clone();
        let prefetch = Prefetch::start(endless(), depth, move |_| {
            held.fetch_add(1, Ordering::SeqCst);
            Ok::<_, Infallible>(Held(held.clone()))
        })
        .unwrap();
        while num_held.load(Ordering::SeqCst) < depth.max(1) {
            sleep(Duration::from_millis(1));
        }
        let start = Instant::now();
        drop(prefetch);
        assert!(start.elapsed() < Duration::from_secs(1));
        assert_eq!(num_held.load(Ordering::SeqCst), 0, "everything prefetched is freed");
    }
}

#[test]
fn prefetch_passes_errors_and_panics_on() {
    let failing = |batch: HostBatch| match batch.index {
        2 => Err(std::fmt::Error),
        index => Ok(index),
    };
    let mut prefetch = Prefetch::start(endless(), 2, failing).unwrap();
    assert_eq!(prefetch.next().unwrap().unwrap().batch, 0);
    assert_eq!(prefetch.next().unwrap().unwrap().batch, 1);
    assert!(matches!(prefetch.next(), Some(Err(PrefetchError::Transfer(_)))));
    assert!(prefetch.next().is_none());

    let broken = [Err(Error::NoSuchExample { example: 9, num_examples: 5 })];
    let transfer = |_| Ok::<(), Infallible>(());
    let mut prefetch = Prefetch::start(broken.into_iter(), 2, transfer).unwrap();
    let message = prefetch.next().unwrap().err().unwrap().to_string();
    assert!(message.contains("example 9"), "{message}");

    let panicking = |_| -> Result<Literal, Infallible> { panic!("on purpose") };
    let mut prefetch = Prefetch::start(endless(), 2, panicking).unwrap();
    let message = prefetch.next().unwrap().err().unwrap().to_string();
    assert!(message.contains("panicked: on purpose"), "{message}");
    assert!(prefetch.next().is_none());
}

#[test]
fn prefetch_thread_ends_with_its_batches() {
    let dropped = Arc::new(AtomicBool::new(false));
    struct Flag(Arc<AtomicBool>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let flag = Flag(dropped.clone());
    let batches = TrainBatches::new(source(100), 0, 8, 2).unwrap().range(0, 1);
    let mut prefetch = Prefetch::start(batches, 2, move |_| {
        let _kept = &flag;
        Ok::<_, Infallible>(())
    })
    .unwrap();
    prefetch.next().unwrap().unwrap();
    assert!(prefetch.next().is_none());
    drop(prefetch);
    assert!(dropped.load(Ordering::SeqCst));
}
