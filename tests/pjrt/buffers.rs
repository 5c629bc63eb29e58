//! Values on devices.

use std::sync::Arc;

use hlo::{DType, Literal};
use lockstep::pjrt::{Arg, CompileOptions, Error};

use crate::programs::{accumulate, client};

#[test]
fn every_dtype_and_rank_comes_back_as_it_went() {
    let client = client(2);
    for dtype in DType::ALL {
        for dims in [&[][..], &[5], &[2, 3], &[2, 1, 3, 4], &[0, 4]] {
            let count = dims.iter().product::<usize>();
            let values: Vec<f64> = (0..count)
                .map(|k| if dtype == DType::Pred { (k % 2) as f64 } else { k as f64 })
                .collect();
            let literal = Arc::new(Literal::from_f64(dtype, dims, &values));
            let buffers = client.upload_replicated(literal.clone()).unwrap();
            assert_eq!((buffers.dtype(), buffers.dims()), (dtype, dims));
            assert_eq!(buffers.num_bytes(), literal.num_bytes());
            for replica in 0..2 {
                assert_eq!(buffers.read(replica).unwrap(), *literal, "{dtype}{dims:?}");
            }
        }
    }
}

#[test]
fn replicas_may_hold_different_values() {
    let client = client(4);
    let literals: Vec<_> =
        (0..4).map(|replica| Arc::new(Literal::from_slice(&[2], &[replica as f32, 0.5]))).collect();
    let buffers = client.upload(&literals).unwrap();
    let pending: Vec<_> = (0..4).map(|replica| buffers.to_host(replica).unwrap()).collect();
    // Copies under way outlive the value they are of.
    drop(buffers);
    for (pending, literal) in pending.into_iter().zip(&literals) {
        assert_eq!(pending.wait().unwrap(), **literal);
    }
}

#[test]
fn literals_are_lent_and_given_back() {
    let client = client(2);
    let literal = Arc::new(Literal::from_slice(&[4096], &vec![1.5f32; 4096]));
    let buffers = client.upload_replicated(literal.clone()).unwrap();
    let address = literal.bytes().as_ptr() as usize;
    assert_eq!(buffers.address(0).unwrap(), address, "the CPU backend uses the literal's memory");
    assert_eq!(buffers.address(1).unwrap(), address);
    assert!(Arc::strong_count(&literal) > 1, "kept while lent");
    drop(buffers);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while Arc::strong_count(&literal) > 1 && std::time::Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(Arc::strong_count(&literal), 1, "given back once the buffers are gone");
}

/// Lent memory is the caller's: a program that updates its argument in place must copy it first.
#[test]
fn a_lent_literal_survives_being_donated() {
    let client = client(2);
    let executable = client.compile(&accumulate(2, 4096), &CompileOptions::default()).unwrap();
    let literal = Arc::new(Literal::from_slice(&[4096], &vec![1.5f32; 4096]));
    for _ in 0..10 {
        let state = client.upload_replicated(literal.clone()).unwrap();
        let x = client.upload_replicated(literal.clone()).unwrap();
        let launch = executable.execute(vec![Arg::Donate(state), Arg::Donate(x)]).unwrap();
        assert_eq!(launch.outputs[0].read(1).unwrap().as_slice::<f32>(), vec![4.5; 4096]);
        assert_eq!(launch.outputs[0].read(0).unwrap().as_slice::<f32>(), vec![4.5; 4096]);
    }
    assert_eq!(literal.as_slice::<f32>(), vec![1.5; 4096]);
}

#[test]
fn values_keep_their_client_alive() {
    let buffers = client(1).upload_replicated(Arc::new(Literal::scalar(7i32))).unwrap();
    assert_eq!(buffers.read(0).unwrap(), Literal::scalar(7i32));
    buffers.wait().unwrap();
    assert!(buffers.is_ready().unwrap());
}

#[test]
fn what_cannot_be_uploaded_or_read_is_an_error() {
    let client = client(2);
    let (one, other) = (Arc::new(Literal::scalar(1.0f32)), Arc::new(Literal::scalar(1i32)));
    for literals in [vec![], vec![one.clone()], vec![one.clone(), other], vec![one.clone(); 3]] {
        let error = client.upload(&literals).unwrap_err();
        assert!(matches!(error, Error::Upload { .. }), "{error}");
    }
    let buffers = client.upload_replicated(one).unwrap();
    assert!(matches!(
        buffers.to_host(2),
        Err(Error::NoSuchReplica { replica: 2, num_replicas: 2 })
    ));
    assert!(buffers.address(2).is_err());
}
