//! Pseudo-random numbers that the Python scripts compute too, so that fixtures need not contain
//! them. `drawn.py` has the same formulas.

use hlo::{DType, Literal};
use serde_json::Value;

/// Well-mixed 32-bit words: FNV-1a of the name, a Weyl sequence, MurmurHash3's last step.
fn words(name: &str) -> impl Iterator<Item = u32> + use<> {
    let fnv = |stream: u32, byte: u8| (stream ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let stream = name.bytes().fold(0x811c_9dc5, fnv);
    (0u32..).map(move |index| {
        let mut h = index.wrapping_mul(0x9e37_79b1).wrapping_add(stream);
        h = (h ^ (h >> 16)).wrapping_mul(0x85eb_ca6b);
        h = (h ^ (h >> 13)).wrapping_mul(0xc2b2_ae35);
        h ^ (h >> 16)
    })
}

/// Multiples of 2^-15 in `[-1, 1)`.
pub fn uniform(name: &str) -> impl Iterator<Item = f64> + use<> {
    words(name).map(|word| f64::from(word >> 16) / 32768.0 - 1.0)
}

/// Integers from 0 to below `below`.
pub fn integers(name: &str, below: u32) -> impl Iterator<Item = f64> + use<> {
    words(name).map(move |word| f64::from(word % below))
}

/// Last path components of scales and variances.
const AROUND_ONE: [&str; 3] = [".weight", ".variance", ".running_var"];

/// A parameter or running mean: matrices and kernels are scaled to preserve the variance; scales
/// and variances are around 1, the rest around 0.
pub fn leaf(path: &str, dtype: DType, dims: &[usize]) -> Literal {
    let count = dims.iter().product();
    let (around, scale) = match dims {
        [_, rest @ .., _] => {
            let fan_in: usize = rest.iter().product::<usize>() * dims[dims.len() - 1];
            (0.0, (-((fan_in.ilog2() / 2) as f64)).exp2())
        }
        _ if AROUND_ONE.iter().any(|name| path.ends_with(name)) => (1.0, 0.25),
        _ => (0.0, 0.25),
    };
    let values: Vec<_> = uniform(path).take(count).map(|u| around + u * scale).collect();
    Literal::from_f64(dtype, dims, &values)
}

/// Compares a leaf with a fixture, which contains its norm, its product with a fixed direction, and
/// some of its elements. The tolerance is relative to the value or to the leaf's root mean square,
/// whichever is larger.
pub fn assert_digest(what: &str, path: &str, got: &Literal, digest: &Value, tolerance: f64) {
    let number = |key: &str| digest[key].as_f64().unwrap();
    let dims: Vec<_> = got.dims().iter().map(|dim| Value::from(*dim)).collect();
    assert_eq!(Value::from(dims), digest["dims"], "{what}");
    let got = got.to_f64();
    let norm = got.iter().map(|x| x * x).sum::<f64>().sqrt();
    let direction = uniform(&format!("direction of {path}"));
    let product: f64 = got.iter().zip(direction).map(|(x, u)| x * u).sum();
    let expected_norm = number("norm");
    // The gradient of keys' biases is zero but for rounding.
    if expected_norm < 1e-12 {
        assert!(norm <= tolerance, "{what}: norm {norm}");
        return;
    }
    assert!((norm - expected_norm).abs() <= tolerance * expected_norm, "{what}: norm {norm}");
    let expected = number("product");
    assert!((product - expected).abs() <= tolerance * expected_norm, "{what}: product {product}");

    let root_mean_square = expected_norm / (got.len() as f64).sqrt();
    let expected = digest["values"].as_array().unwrap();
    let stride = digest["stride"].as_u64().unwrap() as usize;
    assert_eq!(expected.len(), got.len().div_ceil(stride), "{what}");
    for (got, expected) in got.iter().step_by(stride).zip(expected) {
        let expected = expected.as_f64().unwrap();
        let close = (got - expected).abs() <= tolerance * expected.abs().max(root_mean_square);
        assert!(close, "{what}: {got}, not {expected}");
    }
}
