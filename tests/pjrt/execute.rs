//! Compiling and running.

use std::sync::Arc;

use hlo::Literal;
use lockstep::pjrt::{Arg, Client, Code, CompileOptions, Error, OverrideValue};

use crate::programs::{accumulate, all_reduce, client, program};

fn f32s(values: &[f32]) -> Arc<Literal> {
    Arc::new(Literal::from_slice(&[values.len()], values))
}

#[test]
fn an_all_reduce_meets_on_four_replicas() {
    let client = client(4);
    let executable = client.compile(&all_reduce(4, 2), &CompileOptions::default()).unwrap();
    let inputs: Vec<_> = (0..4).map(|replica| f32s(&[replica as f32, 1.0])).collect();
    let x = client.upload(&inputs).unwrap();
    let launch = executable.execute(vec![Arg::Borrow(&x)]).unwrap();
    for replica in 0..4 {
        assert_eq!(launch.outputs[0].read(replica).unwrap(), *f32s(&[6.0, 4.0]));
    }
    launch.done.wait().unwrap();
    assert!(launch.done.is_ready().unwrap());
    // Lent, so still there.
    assert_eq!(x.read(3).unwrap(), *inputs[3]);
}

#[test]
fn a_donated_argument_gives_its_memory_to_the_result_and_a_lent_one_does_not() {
    let client = client(2);
    let executable = client.compile(&accumulate(2, 8), &CompileOptions::default()).unwrap();
    let x = client.upload_replicated(f32s(&[1.0; 8])).unwrap();
    let zeros = client.upload_replicated(f32s(&[0.0; 8])).unwrap();

    let lent = executable.execute(vec![Arg::Borrow(&zeros), Arg::Borrow(&x)]).unwrap();
    lent.done.wait().unwrap();
    assert_eq!(lent.outputs[0].read(1).unwrap(), *f32s(&[2.0; 8]));
    assert_eq!(zeros.read(1).unwrap(), *f32s(&[0.0; 8]), "lent, though the program donates it");

    let state = lent.outputs.into_iter().next().unwrap();
    let address = state.address(1).unwrap();
    let given = executable.execute(vec![Arg::Donate(state), Arg::Borrow(&x)]).unwrap();
    given.done.wait().unwrap();
    assert_eq!(given.outputs[0].address(1).unwrap(), address, "updated in place");
    assert_eq!(given.outputs[0].read(1).unwrap(), *f32s(&[4.0; 8]));
    assert!(executable.memory().unwrap().alias_bytes >= 32, "{:?}", executable.memory());
}

#[test]
fn an_argument_given_to_a_program_that_does_not_donate_it_is_only_freed() {
    let client = client(2);
    let executable = client.compile(&all_reduce(2, 2), &CompileOptions::default()).unwrap();
    for _ in 0..20 {
        let x = client.upload_replicated(f32s(&[1.0, 2.0])).unwrap();
        let launch = executable.execute(vec![Arg::Donate(x)]).unwrap();
        assert_eq!(launch.outputs[0].read(0).unwrap(), *f32s(&[2.0, 4.0]));
    }
}

#[test]
fn hundreds_of_launches_may_be_queued_without_waiting() {
    for num_replicas in [1, 2, 4, 8] {
        let client = client(num_replicas);
        let executable =
            client.compile(&accumulate(num_replicas, 64), &CompileOptions::default()).unwrap();
        let mut state = client.upload_replicated(f32s(&[0.0; 64])).unwrap();
        let x = client.upload_replicated(f32s(&[1.0; 64])).unwrap();
        for _ in 0..300 {
            let launch = executable.execute(vec![Arg::Donate(state), Arg::Borrow(&x)]).unwrap();
            state = launch.outputs.into_iter().next().unwrap();
        }
        let expected = f32s(&[(300 * num_replicas) as f32; 64]);
        for replica in 0..num_replicas {
            assert_eq!(state.read(replica).unwrap(), *expected);
        }
    }
}

#[test]
fn lent_host_memory_lasts_through_a_launch_that_outlives_its_buffers() {
    let client = client(2);
    let executable = client.compile(&all_reduce(2, 100_000), &CompileOptions::default()).unwrap();
    let mut results = Vec::new();
    for step in 0..30 {
        let literal = Arc::new(Literal::from_slice(&[100_000], &vec![step as f32; 100_000]));
        let x = client.upload_replicated(literal).unwrap();
        results.push(executable.execute(vec![Arg::Donate(x)]).unwrap());
    }
    for (step, launch) in results.into_iter().enumerate() {
        let expected = vec![2.0 * step as f32; 100_000];
        assert_eq!(launch.outputs[0].read(1).unwrap().as_slice::<f32>(), expected);
    }
}

#[test]
fn threads_may_launch_at_once() {
    let client = client(2);
    let executable = client.compile(&accumulate(2, 16), &CompileOptions::default()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let x = client.upload_replicated(f32s(&[1.0; 16])).unwrap();
                let mut state = client.upload_replicated(f32s(&[0.0; 16])).unwrap();
                for _ in 0..100 {
                    let launch =
                        executable.execute(vec![Arg::Donate(state), Arg::Borrow(&x)]).unwrap();
                    state = launch.outputs.into_iter().next().unwrap();
                }
                assert_eq!(state.read(1).unwrap(), *f32s(&[200.0; 16]));
            });
        }
    });
}

#[test]
fn a_device_assignment_places_the_replicas() {
    let client = client(3);
    let options =
        CompileOptions { device_assignment: Some(vec![2, 0]), ..CompileOptions::default() };
    let executable = client.compile(&all_reduce(2, 1), &options).unwrap();
    assert_eq!(executable.placement().pairs(), [(0, 2), (1, 0)]);
    let x = client.upload_on(executable.placement(), &[f32s(&[1.0]), f32s(&[5.0])]).unwrap();
    let launch = executable.execute(vec![Arg::Borrow(&x)]).unwrap();
    assert_eq!(launch.outputs[0].read(0).unwrap(), *f32s(&[6.0]));

    for wrong in [vec![0], vec![1, 1], vec![7, 8], vec![0, 9]] {
        let options =
            CompileOptions { device_assignment: Some(wrong), ..CompileOptions::default() };
        let error = client.compile(&all_reduce(2, 1), &options).unwrap_err();
        assert!(matches!(error, Error::DeviceAssignment { .. }), "{error}");
    }
}

#[test]
fn executables_on_equal_devices_take_each_others_results() {
    let client = client(3);
    let on = |assignment: Vec<i32>| CompileOptions {
        device_assignment: Some(assignment),
        ..CompileOptions::default()
    };
    let program = accumulate(2, 4);
    let first = client.compile(&program, &on(vec![2, 0])).unwrap();
    let bytes = first.serialize().unwrap();
    let second = client.deserialize(&program, &on(vec![2, 0]), &bytes).unwrap();
    assert_eq!(first.placement(), second.placement());
    let ones = f32s(&[1.0; 4]);
    let x = client.upload_on(first.placement(), &[ones.clone(), ones.clone()]).unwrap();
    let state = client.upload_on(second.placement(), &[ones.clone(), ones]).unwrap();
    let mut launch = first.execute(vec![Arg::Donate(state), Arg::Borrow(&x)]).unwrap();
    let state = Arg::Donate(launch.outputs.remove(0));
    let launch = second.execute(vec![state, Arg::Borrow(&x)]).unwrap();
    assert_eq!(launch.outputs[0].read(1).unwrap(), *f32s(&[5.0; 4]));
    // Other devices, and the same devices with the replicas swapped.
    for other in [vec![0, 1], vec![0, 2]] {
        let error = client.deserialize(&program, &on(other), &bytes).unwrap_err();
        assert!(matches!(error, Error::DeviceAssignment { .. }), "{error}");
    }
}

#[test]
fn overrides_reach_the_compiler_and_unknown_ones_are_errors() {
    let client = client(1);
    let with = |name: &str, value| {
        let overrides = [(name.to_owned(), value)].into();
        client
            .compile(&all_reduce(1, 4), &CompileOptions { overrides, ..CompileOptions::default() })
    };
    with("xla_allow_excess_precision", OverrideValue::Bool(false)).unwrap();
    let error = with("xla_no_such_option", OverrideValue::Bool(true)).unwrap_err();
    assert!(matches!(error, Error::Pjrt { code: Code::InvalidArgument, .. }), "{error}");
    assert!(error.to_string().contains("xla_no_such_option"), "{error}");
}

#[test]
fn a_program_that_does_not_compile_says_why_and_too_many_replicas_is_an_error() {
    let client = client(2);
    let broken = program(1, &[&[2]], &[&[2]], &[], "  return %nothing : tensor<2xf32>");
    let error = client.compile(&broken, &CompileOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Pjrt { .. }), "{error}");
    assert!(error.to_string().contains("undeclared SSA value"), "{error}");
    let error = client.compile(&all_reduce(3, 2), &CompileOptions::default()).unwrap_err();
    assert!(matches!(error, Error::TooFewDevices { needed: 3, available: 2 }), "{error}");
}

#[test]
fn a_declaration_that_does_not_fit_its_text_is_an_error() {
    let client = client(2);
    let mismatch = |change: &dyn Fn(&mut hlo::Program)| {
        let mut program = accumulate(2, 4);
        change(&mut program);
        match client.compile(&program, &CompileOptions::default()) {
            Err(Error::SignatureMismatch { what, .. }) => what,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(mismatch(&|p| drop(p.inputs.pop())), "inputs");
    assert_eq!(mismatch(&|p| p.inputs[0].donated = false), "inputs");
    assert_eq!(mismatch(&|p| p.inputs[1].ty.dims = vec![5]), "inputs");
    assert_eq!(mismatch(&|p| drop(p.outputs.pop())), "outputs");
    assert_eq!(mismatch(&|p| p.outputs[0].ty.dims = vec![2, 2]), "outputs");
    assert_eq!(mismatch(&|p| p.num_replicas = 1), "replicas");
}

/// Each of these ends the process, hangs, or lets the replicas drift apart.
#[test]
fn programs_that_the_plugin_must_not_see_are_errors() {
    let client = client(2);
    let refused = |program: &hlo::Program| match client.compile(program, &CompileOptions::default())
    {
        Err(Error::ForbiddenProgram { reason }) => reason,
        other => panic!("{other:?}"),
    };
    let permute = r#"  %r = "stablehlo.collective_permute"(%a0) <{source_target_pairs = dense<[[0,1],[1,0]]> : tensor<2x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>}> : (tensor<2xf32>) -> tensor<2xf32>
  return %r : tensor<2xf32>"#;
    assert!(refused(&program(2, &[&[2]], &[&[2]], &[], permute)).contains("channel"));
    let rng = r#"  %s = stablehlo.constant dense<2> : tensor<1xi64>
  %l = stablehlo.constant dense<0.0> : tensor<f32>
  %r = stablehlo.rng %l, %l, %s, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<2xf32>
  return %r : tensor<2xf32>"#;
    assert!(refused(&program(2, &[&[2]], &[&[2]], &[], rng)).contains("rng"));
    let mut partitioned = all_reduce(2, 2);
    partitioned.text = partitioned.text.replace("num_partitions = 1", "num_partitions = 2");
    assert!(refused(&partitioned).contains("partition"));
}

#[test]
fn an_executable_answers_questions() {
    let client = client(2);
    let body = "  %r = stablehlo.dot_general %a0, %a1, contracting_dims = [1] x [0] : \
                (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>\n  return %r : \
                tensor<8x4xf32>";
    let program = program(2, &[&[8, 16], &[16, 4]], &[&[8, 4]], &[], body);
    let executable = client.compile(&program, &CompileOptions::default()).unwrap();
    let flops = executable.cost_analysis().unwrap()["flops"];
    assert!((1024.0..1100.0).contains(&flops), "{flops}");
    let memory = executable.memory().unwrap();
    assert_eq!((memory.argument_bytes, memory.output_bytes), (4 * (128 + 64), 4 * 32));
    let (format, bytes) = executable.optimized_program().unwrap();
    assert_eq!(format, "hlo_with_config");
    assert!(!bytes.is_empty());
    let again = client.compile(&program, &CompileOptions::default()).unwrap();
    assert_eq!(executable.fingerprint().unwrap(), again.fingerprint().unwrap());
}

#[test]
fn a_serialized_executable_runs_the_same_and_in_its_own_program_only() {
    let first = client(2);
    let program = accumulate(2, 4);
    let bytes = first.compile(&program, &CompileOptions::default()).unwrap().serialize().unwrap();
    let run = |client: &Client| {
        let executable = client.deserialize(&program, &CompileOptions::default(), &bytes).unwrap();
        let x = client.upload_replicated(f32s(&[1.0; 4])).unwrap();
        let state = client.upload_replicated(f32s(&[0.5; 4])).unwrap();
        let launch = executable.execute(vec![Arg::Donate(state), Arg::Borrow(&x)]).unwrap();
        let state = launch.outputs.into_iter().next().unwrap();
        let address = state.address(0).unwrap();
        let launch = executable.execute(vec![Arg::Donate(state), Arg::Borrow(&x)]).unwrap();
        assert_eq!(launch.outputs[0].address(0).unwrap(), address, "donation is kept");
        launch.outputs[0].read(1).unwrap()
    };
    assert_eq!(run(&first), *f32s(&[4.5; 4]));
    assert_eq!(run(&client(2)), *f32s(&[4.5; 4]));
    let other =
        first.deserialize(&accumulate(2, 5), &CompileOptions::default(), &bytes).unwrap_err();
    assert!(matches!(other, Error::Serialized { .. }), "{other}");
    let mut flipped = bytes.clone();
    flipped[bytes.len() / 2] ^= 1;
    for damaged in [b"neither", &bytes[..bytes.len() - 1], &flipped] {
        let error = first.deserialize(&program, &CompileOptions::default(), damaged).unwrap_err();
        assert!(matches!(error, Error::Serialized { .. }), "{error}");
    }
}
