use std::time::{Duration, Instant};

use super::slow::SlowTest;
use super::stuck::{Reported, Standstill, standstill};
use super::{DEAD_AFTER, Limits, Verdict, Watchdog, WorkerName};
use crate::cluster::report::{Phase, ProbeTime, Report, SlowCause, StepTimes};

/// Seeded random numbers (SplitMix64, Steele et al. 2014).
struct Random(u64);

impl Random {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// How the own times of undisturbed processes vary.
#[derive(Clone, Copy, Debug)]
struct Noise {
    /// Standard deviation of the logarithm of a step.
    sigma: f64,
    /// Correlation of this noise from step to step.
    memory: f64,
    /// Probability and factor of a pause.
    pauses: (f64, f64),
    /// Probability that pairs of processes compete for a core in a step: one of them takes twice as
    /// long.
    shared_core: f64,
}

const CALM: Noise = Noise { sigma: 0.05, memory: 0.0, pauses: (0.0, 1.0), shared_core: 0.0 };

/// Own times in seconds of processes, step by step.
struct Trace {
    random: Random,
    noise: Noise,
    drift: Vec<f64>,
}

impl Trace {
    fn new(num_processes: usize, noise: Noise, seed: u64) -> Self {
        Self { random: Random(seed), noise, drift: vec![0.0; num_processes] }
    }

    fn step(&mut self) -> Vec<f64> {
        let Noise { sigma, memory, pauses, shared_core } = self.noise;
        let random = &mut self.random;
        let mut owns: Vec<f64> = self
            .drift
            .iter_mut()
            .map(|drift| {
                *drift = memory * *drift + (1.0 - memory * memory).sqrt() * random.normal();
                let pause = if random.uniform() < pauses.0 { pauses.1 } else { 1.0 };
                0.1 * (sigma * *drift).exp() * pause
            })
            .collect();
        for pair in owns.chunks_exact_mut(2) {
            if random.uniform() < shared_core {
                let loser = usize::from(random.uniform() < 0.5);
                pair[loser] *= 2.0;
            }
        }
        owns
    }
}

fn report_step(test: &mut SlowTest, step: u64, owns: &[f64]) {
    for (index, own) in owns.iter().enumerate() {
        let own = Duration::from_secs_f64(*own);
        test.receive(index, &[StepTimes { step, own, ..StepTimes::default() }]);
    }
}

const NOISES: [Noise; 8] = [
    CALM,
    Noise { sigma: 0.05, pauses: (0.005, 10.0), ..CALM },
    Noise { sigma: 0.1, pauses: (0.02, 5.0), ..CALM },
    Noise { sigma: 0.2, pauses: (0.01, 20.0), ..CALM },
    Noise { sigma: 0.3, ..CALM },
    Noise { sigma: 0.5, ..CALM },
    Noise { sigma: 0.1, memory: 0.6, ..CALM },
    Noise { sigma: 0.05, shared_core: 0.5, ..CALM },
];

#[test]
fn noise_is_no_alarm() {
    let seeds = std::env::var("LOCKSTEP_TEST_SEEDS").map_or(3, |seeds| seeds.parse().unwrap());
    for num_processes in [2, 3, 4, 8, 64] {
        for noise in NOISES {
            for seed in 0..seeds {
                let mut trace = Trace::new(num_processes, noise, seed);
                let mut test = SlowTest::new(num_processes, Limits::default().slow_factor);
                for step in 0..2000 {
                    report_step(&mut test, step, &trace.step());
                    let slow: Vec<_> = test.slow().collect();
                    assert!(
                        slow.is_empty(),
                        "{num_processes} processes, {noise:?}, seed {seed}, step {step}: {slow:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_process_slowed_by_half_is_named_within_20_steps_and_cleared_later() {
    for num_processes in [2, 3, 4, 8, 64] {
        for noise in [CALM, NOISES[1]] {
            for seed in 0..40 {
                let mut trace = Trace::new(num_processes, noise, seed);
                let mut test = SlowTest::new(num_processes, Limits::default().slow_factor);
                let culprit = seed as usize % num_processes;
                // From the start, and after undisturbed steps.
                let start = if seed < 10 { 0 } else { 70 + 7 * seed };
                let mut named = None;
                for step in 0..start + 110 {
                    let mut owns = trace.step();
                    if (start..start + 70).contains(&step) {
                        owns[culprit] *= 1.5;
                    }
                    report_step(&mut test, step, &owns);
                    for (index, slowness) in test.slow() {
                        let case = format!("{num_processes} {noise:?} {seed} {step} {slowness:?}");
                        assert_eq!(index, culprit, "{case}");
                        assert!(slowness.since_step + 8 >= start, "{case}");
                        if named.is_none() {
                            assert!((1.3..1.8).contains(&slowness.factor), "{case}");
                            named = Some(step);
                        }
                    }
                }
                let named = named.map(|step| step + 1 - start);
                assert!(
                    named.is_some_and(|steps| steps <= 20),
                    "{num_processes} processes, {noise:?}, seed {seed}: {named:?}"
                );
                assert_eq!(test.slow().count(), 0, "{num_processes} {noise:?} {seed}");
            }
        }
    }
}

/// A pause in every third step, or in fewer, hides from medians.
#[test]
fn a_process_that_pauses_again_and_again_is_named_and_cleared_later() {
    for num_processes in [2, 3, 4, 8] {
        for every in [3, 4, 7, 12] {
            for start in [0, 150] {
                let mut trace = Trace::new(num_processes, CALM, every);
                let mut test = SlowTest::new(num_processes, Limits::default().slow_factor);
                let case = format!("{num_processes} processes, every {every} steps from {start}");
                let mut named = None;
                for step in 0..start + 400 {
                    let mut owns = trace.step();
                    if (start..start + 300).contains(&step) && step % every == 0 {
                        owns[1] *= 12.0;
                    }
                    report_step(&mut test, step, &owns);
                    for (index, slowness) in test.slow() {
                        assert_eq!(index, 1, "{case}");
                        assert!(slowness.since_step + 16 >= start, "{case}: {slowness:?}");
                        named.get_or_insert(step - start);
                    }
                }
                assert!(named.is_some_and(|steps| steps <= 230), "{case}: {named:?}");
                assert_eq!(test.slow().count(), 0, "{case}");
            }
        }
    }
}

#[test]
fn in_much_noise_a_slowed_process_is_named_later() {
    for num_processes in [3, 4, 8, 64] {
        for sigma in [0.3, 0.4] {
            for seed in 0..10 {
                let noise = Noise { sigma, ..CALM };
                let mut trace = Trace::new(num_processes, noise, seed);
                let mut test = SlowTest::new(num_processes, Limits::default().slow_factor);
                let named = (0..500).find(|&step| {
                    let mut owns = trace.step();
                    if step >= 100 {
                        owns[1] *= 1.5;
                    }
                    report_step(&mut test, step, &owns);
                    let named = test.slow().next();
                    named.is_some_and(|(index, _)| {
                        assert!(index == 1 && step >= 100, "{num_processes} {sigma} {seed} {step}");
                        true
                    })
                });
                assert!(named.is_some(), "{num_processes} processes, {sigma}, seed {seed}");
            }
        }
    }
}

#[test]
fn of_two_processes_the_one_that_changed_is_named() {
    let run = |change: [f64; 2]| {
        let mut trace = Trace::new(2, CALM, 7);
        let mut test = SlowTest::new(2, Limits::default().slow_factor);
        for step in 0..200 {
            let mut owns = trace.step();
            if step >= 100 {
                owns[0] *= change[0];
                owns[1] *= change[1];
            }
            report_step(&mut test, step, &owns);
        }
        test.slow().map(|(index, _)| index).collect::<Vec<_>>()
    };
    assert_eq!(run([1.0, 1.5]), [1]);
    assert_eq!(run([1.5, 1.0]), [0]);
    // The other has become faster, or both have longer batches.
    assert_eq!(run([1.0, 0.6]), [0; 0]);
    assert_eq!(run([1.5, 1.5]), [0; 0]);
}

#[test]
fn a_slow_host_is_named_with_all_of_its_processes() {
    let mut trace = Trace::new(8, CALM, 3);
    let mut test = SlowTest::new(8, Limits::default().slow_factor);
    for step in 0..60 {
        let mut owns = trace.step();
        owns[4..].iter_mut().for_each(|own| *own *= 1.5);
        report_step(&mut test, step, &owns);
    }
    assert_eq!(test.slow().map(|(index, _)| index).collect::<Vec<_>>(), [4, 5, 6, 7]);
}

#[test]
fn uneven_hosts_are_no_alarm() {
    let mut trace = Trace::new(16, CALM, 5);
    let mut test = SlowTest::new(16, Limits::default().slow_factor);
    for step in 0..300 {
        let mut owns = trace.step();
        owns.iter_mut().enumerate().for_each(|(index, own)| *own *= 1.0 + index as f64 / 20.0);
        report_step(&mut test, step, &owns);
        assert_eq!(test.slow().count(), 0);
    }
}

#[test]
fn steps_that_some_processes_do_not_report_are_left_out() {
    let mut trace = Trace::new(4, CALM, 9);
    let mut test = SlowTest::new(4, Limits::default().slow_factor);
    for step in 0..3000 {
        let mut owns = trace.step();
        owns[2] *= 1.5;
        for (index, own) in owns.iter().enumerate() {
            if step % 4 == 0 || index != 3 {
                let own = Duration::from_secs_f64(*own);
                test.receive(index, &[StepTimes { step, own, ..StepTimes::default() }]);
            }
        }
    }
    assert_eq!(test.slow().map(|(index, _)| index).collect::<Vec<_>>(), [2]);
}

/// Times of a step of 100 ms where the plugin computes the collectives: all take as long, and each
/// knows only by how much it was late, for its input and otherwise.
fn report_late(test: &mut SlowTest, step: u64, late: &[[f64; 2]]) {
    let secs = Duration::from_secs_f64;
    let whole = 0.1 + late.iter().map(|[input, host]| input + host).fold(0.0, f64::max);
    for (index, [input, host]) in late.iter().enumerate() {
        let times = StepTimes {
            step,
            own: secs(input + host),
            waited: secs(whole - input - host),
            input: secs(*input),
            host: secs(*host),
            hides_devices: true,
            probe: None,
        };
        test.receive(index, &[times]);
    }
}

/// Launches that are a little late now and then, and with pauses of several steps by chance.
fn hardly_late(random: &mut Random, num_processes: usize) -> Vec<[f64; 2]> {
    let mut late = |_| match random.uniform() {
        ..0.01 => [0.0, 0.5 * random.uniform()],
        ..0.02 => [0.5 * random.uniform(), 0.0],
        ..0.5 => [0.002 * random.uniform(), 0.003 * random.normal().exp()],
        _ => [0.0, 0.0],
    };
    (0..num_processes).map(&mut late).collect()
}

#[test]
fn who_is_late_is_named_with_the_cause_within_20_steps() {
    use SlowCause::{Host, Input};
    type Delay = fn(u64) -> [f64; 2];
    let delays: [(Delay, SlowCause); 3] = [
        (|_| [0.05, 0.0], Input),
        (|_| [0.0, 0.05], Host),
        (|step| [0.0, if step % 4 == 3 { 0.2 } else { 0.0 }], Host),
    ];
    for num_processes in [2, 3, 4, 8, 64] {
        for (delay, cause) in delays {
            for start in [0, 40, 202] {
                let mut random = Random(start);
                let mut test = SlowTest::new(num_processes, Limits::default().slow_factor);
                let case = format!("{num_processes} processes, {cause:?} from {start}");
                let mut named = None;
                for step in 0..start + 120 {
                    let mut late: Vec<_> =
                        (0..num_processes).map(|_| [0.0, 0.002 * random.uniform()]).collect();
                    if (start..start + 80).contains(&step) {
                        let more = delay(step);
                        late[1] = [late[1][0] + more[0], late[1][1] + more[1]];
                    }
                    report_late(&mut test, step, &late);
                    for (index, slowness) in test.slow() {
                        assert_eq!((index, slowness.cause), (1, cause), "{case}: {slowness:?}");
                        named.get_or_insert((step + 1 - start, slowness.factor));
                    }
                }
                let is_right = |(steps, factor)| steps <= 20 && (1.3..1.6).contains(&factor);
                assert!(named.is_some_and(is_right), "{case}: {named:?}");
                assert_eq!(test.slow().count(), 0, "{case}");
            }
        }
    }
}

#[test]
fn who_is_late_now_and_then_is_no_alarm() {
    for num_processes in [2, 3, 4, 8, 64] {
        for seed in 0..5 {
            let mut random = Random(seed);
            let mut test = SlowTest::new(num_processes, Limits::default().slow_factor);
            for step in 0..2000 {
                let late = hardly_late(&mut random, num_processes);
                report_late(&mut test, step, &late);
                let slow: Vec<_> = test.slow().collect();
                assert!(slow.is_empty(), "{num_processes}, seed {seed}, step {step}: {slow:?}");
            }
        }
    }
}

/// The probes of all processes, each of seven launches.
fn report_probes(test: &mut SlowTest, step: u64, launches: &[Vec<f64>]) {
    for index in 0..launches[0].len() {
        let times = launches.iter().map(|launch| launch[index]);
        let mean = times.clone().sum::<f64>() / 7.0;
        let square = times.map(|time| (time - mean).powi(2)).sum::<f64>() / 6.0;
        let [mean, error] = [mean, (square / 7.0).sqrt()].map(Duration::from_secs_f64);
        let probe = Some(ProbeTime { mean, error });
        test.receive(
            index,
            &[StepTimes { step, hides_devices: true, probe, ..StepTimes::default() }],
        );
    }
}

#[test]
fn two_probes_name_slow_devices_and_one_clears_them() {
    for num_processes in [2, 3, 4, 8, 64] {
        for start in [0, 1, 40] {
            let mut trace = Trace::new(num_processes, CALM, start);
            let mut test = SlowTest::new(num_processes, Limits::default().slow_factor);
            for probe in 0..start + 6 {
                let mut launches: Vec<_> = (0..7).map(|_| trace.step()).collect();
                if (start..start + 5).contains(&probe) {
                    launches.iter_mut().for_each(|times| times[1] *= 1.6);
                }
                report_probes(&mut test, 100 * probe, &launches);
                let case = format!("{num_processes} processes, probe {probe} of {start}");
                let slow: Vec<_> = test.slow().collect();
                match slow[..] {
                    [(1, slowness)] => {
                        assert!((start + 1..start + 5).contains(&probe), "{case}");
                        assert_eq!(slowness.cause, SlowCause::Device);
                        assert_eq!(slowness.since_step, 100 * start, "{case}");
                    }
                    _ => assert!(
                        slow.is_empty() && !(start + 1..start + 5).contains(&probe),
                        "{case}"
                    ),
                }
            }
        }
    }
}

#[test]
fn probes_on_busy_processors_are_no_alarm() {
    let cases = NOISES.into_iter().flat_map(|noise| [2, 3, 4, 8, 64].map(|num| (noise, num)));
    for (noise, num_processes) in cases {
        for seed in 0..5 {
            let mut trace = Trace::new(num_processes, noise, seed);
            let mut test = SlowTest::new(num_processes, Limits::default().slow_factor);
            for probe in 0..200 {
                let launches: Vec<_> = (0..7).map(|_| trace.step()).collect();
                report_probes(&mut test, probe, &launches);
                let slow: Vec<_> = test.slow().collect();
                assert!(slow.is_empty(), "{num_processes}, {noise:?}, {seed}, {probe}: {slow:?}");
            }
        }
    }
}

fn reported(process_index: usize, phase: Phase, step: u64, secs: u64) -> Reported {
    let in_phase = Duration::from_secs(secs);
    Reported { process_index, phase, step, in_phase, waits_for: vec![] }
}

fn waiting(process_index: usize, step: u64, secs: u64, waits_for: &[usize]) -> Reported {
    let waits_for = waits_for.to_vec();
    Reported { waits_for, ..reported(process_index, Phase::Collective, step, secs) }
}

#[test]
fn the_stuck_are_those_for_whom_others_wait() {
    use Phase::{Checkpoint, Collective, Compute, Coordinator, Data, Evaluate};
    let limit = |phase| Limits::default().of(phase, Some(Duration::from_secs(1)));
    let stuck = |processes: &[usize]| Some(Standstill::Stuck(processes.to_vec()));
    let r = reported;
    let rows = [
        ("all is well", vec![r(0, Compute, 5, 1), r(1, Collective, 5, 1)], None),
        ("data", vec![r(0, Collective, 5, 31), r(1, Data, 5, 31)], stuck(&[1])),
        ("others wait only a moment", vec![r(0, Collective, 5, 1), r(1, Data, 5, 31)], stuck(&[1])),
        ("nobody waits", vec![r(0, Compute, 5, 1), r(1, Data, 5, 31)], None),
        ("a device may wait", vec![r(0, Compute, 5, 31), r(1, Data, 5, 31)], stuck(&[1])),
        ("compute", vec![r(0, Collective, 5, 31), r(1, Compute, 5, 31)], stuck(&[1])),
        ("a slow step", vec![r(0, Collective, 5, 31), r(1, Compute, 5, 20)], None),
        ("a long checkpoint", vec![r(0, Collective, 5, 300), r(1, Checkpoint, 5, 300)], None),
        ("a dead disk", vec![r(0, Checkpoint, 5, 901), r(1, Checkpoint, 5, 901)], stuck(&[0, 1])),
        ("one evaluates", vec![r(0, Evaluate, 5, 40), r(1, Collective, 5, 40)], None),
        ("waits name it", vec![waiting(0, 5, 31, &[1]), waiting(1, 5, 31, &[])], stuck(&[1])),
        (
            "waits name it through another",
            vec![waiting(0, 5, 31, &[1]), waiting(1, 5, 31, &[2]), waiting(2, 5, 31, &[])],
            stuck(&[2]),
        ),
        ("one came late", vec![waiting(0, 5, 31, &[1]), waiting(1, 5, 2, &[])], None),
        (
            "the step tells",
            vec![r(0, Collective, 6, 31), r(1, Collective, 5, 31), r(2, Collective, 6, 31)],
            stuck(&[1]),
        ),
        (
            "waits in a circle, and the step tells",
            vec![waiting(0, 6, 31, &[1]), waiting(1, 5, 31, &[0])],
            stuck(&[1]),
        ),
        ("no answer", vec![r(0, Collective, 5, 31), r(1, Coordinator, 5, 31)], stuck(&[1])),
        (
            "devices at different steps",
            vec![r(0, Compute, 6, 31), r(1, Compute, 5, 31)],
            stuck(&[1]),
        ),
        (
            "nothing tells",
            vec![r(0, Compute, 5, 31), r(1, Compute, 5, 31)],
            Some(Standstill::Unexplained),
        ),
        ("alone", vec![r(0, Compute, 5, 31)], stuck(&[0])),
        ("alone, with data", vec![r(0, Data, 5, 31)], stuck(&[0])),
        ("nobody", vec![], None),
    ];
    for (case, processes, expected) in rows {
        assert_eq!(standstill(&processes, limit), expected, "{case}");
    }
}

fn report(reported: Reported) -> Report {
    let Reported { process_index, phase, step, in_phase, waits_for } = reported;
    let replicas = 2 * process_index..2 * process_index + 2;
    let (steps, changes) = (vec![], vec![]);
    let machine = String::new();
    Report { process_index, replicas, phase, step, in_phase, waits_for, steps, changes, machine }
}

fn names(num_processes: usize) -> Vec<WorkerName> {
    let name = |index: usize| WorkerName {
        host: format!("node{}", index / 4),
        pid: 1000 + index as u32,
        // They come with the reports.
        replicas: 0..0,
    };
    (0..num_processes).map(name).collect()
}

/// A watchdog that has seen a second of every process in every step, and the time of the last
/// report.
fn watchdog(num_processes: usize) -> (Watchdog, Instant) {
    let start = Instant::now();
    let mut watchdog = Watchdog::new(names(num_processes), Limits::default(), start);
    let secs = Duration::from_secs;
    for index in 0..num_processes {
        let times = |step| StepTimes { step, own: secs(1), ..StepTimes::default() };
        let steps = (0..5).map(times).collect();
        let report = Report { steps, ..report(reported(index, Phase::Compute, 5, 0)) };
        watchdog.receive(&report, start + secs(5));
    }
    assert_eq!(watchdog.median_step(), Some(secs(1)));
    (watchdog, start + secs(5))
}

#[test]
fn the_silent_are_dead_and_nobody_else_is_blamed() {
    let (mut watchdog, now) = watchdog(4);
    let later = now + Duration::from_secs(40);
    for index in [0, 1, 2] {
        watchdog.receive(&report(waiting(index, 5, 40, &[3])), later);
    }
    let verdicts = watchdog.verdicts(later);
    let texts: Vec<String> = verdicts.iter().map(Verdict::to_string).collect();
    assert_eq!(
        texts,
        ["process 3 (host node0, pid 1003, replicas 6 to 7) is dead: no heartbeat for 40 s, last \
          seen in compute at step 5"]
    );
    assert!(verdicts[0].is_fatal());
    assert_eq!(verdicts[0].who().unwrap().process_index, 3);
    watchdog.left(3);
    assert_eq!(watchdog.verdicts(later).len(), 1, "the others still wait");
    // An unknown process changes nothing.
    watchdog.receive(&report(reported(17, Phase::Data, 5, 900)), later);
    watchdog.left(17);
}

#[test]
fn a_process_that_never_reports_is_dead_too() {
    let start = Instant::now();
    let mut watchdog = Watchdog::new(names(2), Limits::default(), start);
    watchdog.receive(&report(reported(0, Phase::Compile, 0, 0)), start + Duration::from_secs(7));
    assert_eq!(watchdog.verdicts(start + DEAD_AFTER), []);
    let verdicts = watchdog.verdicts(start + Duration::from_secs(9));
    assert_eq!(verdicts.len(), 1);
    assert!(matches!(&verdicts[0], Verdict::Dead { who, .. } if who.process_index == 1));
}

#[test]
fn slow_processes_are_named_but_not_fatal() {
    let start = Instant::now();
    let mut watchdog = Watchdog::new(names(4), Limits::default(), start);
    let millis = Duration::from_millis;
    for index in 0..4 {
        let own = if index == 2 { millis(152) } else { millis(100) };
        let waited = millis(152) - own;
        let times = |step| StepTimes { step, own, waited, ..StepTimes::default() };
        let steps = (0..40).map(times);
        let report =
            Report { steps: steps.collect(), ..report(reported(index, Phase::Collective, 40, 0)) };
        watchdog.receive(&report, start);
    }
    let verdicts = watchdog.verdicts(start);
    assert_eq!(verdicts.len(), 1);
    assert!(!verdicts[0].is_fatal());
    assert_eq!(
        verdicts[0].to_string(),
        "process 2 (host node0, pid 1002, replicas 4 to 5) is slow: 1.52 times the others' own \
         time since step 2; its devices take longer"
    );
}

#[test]
fn a_screen_of_four_processes() {
    let (mut watchdog, now) = watchdog(4);
    let later = now + Duration::from_secs(33);
    for index in [0, 2, 3] {
        watchdog.receive(&report(waiting(index, 512, 31, &[1])), later);
    }
    watchdog.receive(&report(reported(1, Phase::Data, 512, 33)), later);
    let screen = watchdog.screen(later + Duration::from_secs(1), "stopping all processes");
    assert_eq!(
        screen,
        "process 1 (host node0, pid 1001, replicas 2 to 3) is stuck: in data at step 512 for 33 s, \
         limit 30 s; 3 processes wait for it\n\
         now: stopping all processes\n\
         \x20      1 process  data                     step 512      for 33 s         1\n\
         \x20    3 processes  wait in a collective     step 512      for 31 s         0, 2 to 3\n"
    );
}

#[test]
fn a_screen_of_2000_processes_is_a_screen() {
    let (mut watchdog, now) = watchdog(2000);
    let later = now + Duration::from_secs(33);
    let stuck = [7, 700, 701, 1999];
    for index in 0..2000 {
        let reported = match stuck.contains(&index) {
            true => reported(index, Phase::Upload, 512, 32),
            false => reported(index, Phase::Collective, 512, 31),
        };
        watchdog.receive(&report(reported), later);
    }
    let screen = watchdog.screen(later, "restarting from step 500");
    let tail = "now: restarting from step 500\n\x20    4 processes  upload                   step \
                512      for 32 s         7, 700 to 701, 1999\n\x201,996 processes  wait in a \
                collective     step 512      for 31 s         0 to 6, 8 to 699, 702 to 1998\n";
    assert!(screen.ends_with(tail), "{screen}");
    assert_eq!(screen.lines().count(), 7);
    // All dead, or each at another step.
    let dead = watchdog.screen(later + Duration::from_secs(3600), "ending");
    assert!(dead.contains("and 1,990 more: processes 10 to 1999\n"), "{dead}");
    for index in 0..2000 {
        let reported = reported(index, Phase::Compute, 512 + index as u64, 1);
        watchdog.receive(&report(reported), later);
    }
    for now in [later, later + Duration::from_secs(3600)] {
        let screen = watchdog.screen(now, "waiting");
        assert!(screen.lines().count() <= 25, "{screen}");
    }
    assert!(
        watchdog.screen(later, "waiting").contains("1,991 processes  in other phases or steps")
    );
}
