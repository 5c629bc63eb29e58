//! Arguments that XLA's CPU client would answer with a hang of the next launch are refused before
//! it sees them.

use std::sync::Arc;

use hlo::{DType, Literal};
use lockstep::pjrt::{Arg, Client, CompileOptions, Error, Executable};

use crate::programs::{all_reduce, client};

fn setup() -> (Client, Executable) {
    let client = client(2);
    let executable = client.compile(&all_reduce(2, 2), &CompileOptions::default()).unwrap();
    (client, executable)
}

fn still_works(client: &Client, executable: &Executable) {
    let x = client.upload_replicated(Arc::new(Literal::from_slice(&[2], &[1f32, 2.0]))).unwrap();
    for _ in 0..3 {
        let launch = executable.execute(vec![Arg::Borrow(&x)]).unwrap();
        assert_eq!(launch.outputs[0].read(1).unwrap().to_f64(), [2.0, 4.0]);
    }
}

#[test]
fn wrong_argument_count() {
    let (client, executable) = setup();
    let x = client.upload_replicated(Arc::new(Literal::zeros(DType::F32, &[2]))).unwrap();
    for arguments in [vec![], vec![Arg::Borrow(&x), Arg::Borrow(&x)]] {
        let error = executable.execute(arguments).unwrap_err();
        assert!(matches!(error, Error::ArgumentCount { expected: 1, .. }), "{error}");
    }
    still_works(&client, &executable);
}

#[test]
fn wrong_dtype_or_shape() {
    let (client, executable) = setup();
    for literal in [
        Literal::zeros(DType::I32, &[2]),
        Literal::zeros(DType::F32, &[3]),
        Literal::zeros(DType::F32, &[1, 2]),
        Literal::zeros(DType::F32, &[]),
    ] {
        let x = client.upload_replicated(Arc::new(literal)).unwrap();
        let error = executable.execute(vec![Arg::Donate(x)]).unwrap_err();
        assert!(matches!(error, Error::ArgumentType { index: 0, .. }), "{error}");
        assert!(error.to_string().contains("in.0"), "{error}");
    }
    still_works(&client, &executable);
}

#[test]
fn another_clients_value() {
    let (client, executable) = setup();
    let other = crate::programs::client(2);
    let x = other.upload_replicated(Arc::new(Literal::zeros(DType::F32, &[2]))).unwrap();
    let error = executable.execute(vec![Arg::Borrow(&x)]).unwrap_err();
    assert!(matches!(error, Error::ArgumentClient { index: 0, .. }), "{error}");
    still_works(&client, &executable);
}

#[test]
fn other_devices() {
    let client = client(3);
    let executable = client.compile(&all_reduce(2, 2), &CompileOptions::default()).unwrap();
    let x = client.upload_replicated(Arc::new(Literal::zeros(DType::F32, &[2]))).unwrap();
    let error = executable.execute(vec![Arg::Borrow(&x)]).unwrap_err();
    assert!(matches!(error, Error::ArgumentDevices { index: 0, .. }), "{error}");
    let ones = Arc::new(Literal::from_slice(&[2], &[1f32, 2.0]));
    let y = client.upload_on(executable.placement(), &[ones.clone(), ones]).unwrap();
    let launch = executable.execute(vec![Arg::Borrow(&y)]).unwrap();
    assert_eq!(launch.outputs[0].read(1).unwrap().to_f64(), [2.0, 4.0]);
}
