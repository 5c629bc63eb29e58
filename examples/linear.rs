//! The main idea on one screen: linear regression on 4 replicas in lockstep, from trace to run.
//!
//!     cargo run --release --example linear
//!
//! Batch: 32 = 8 per replica * 4 replicas. The gradient's all_reduce is the derivative of `vary`.

use std::sync::Arc;

use hlo::passes::simplify;
use hlo::{Axis, DType, Literal, Mesh, Reduction, TensorType, grad, lower, trace, verify};
use lockstep::pjrt::{Arg, Client, CompileOptions, InstallOptions, Plugin, find_or_install};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = Axis::Data;
    let traced = trace(Mesh::data(4), |t| {
        let w = t.input("w", TensorType::new(DType::F32, &[3]));
        let x = t.input("x", TensorType::new(DType::F32, &[8, 3]).varying(data.into()));
        let y = t.input("y", TensorType::new(DType::F32, &[8]).varying(data.into()));
        // Written for one device: the sum of squared errors of 8 examples.
        let error = x.dot(w.vary(data)) - y;
        let loss = (error * error).sum();
        // The same as on one machine with all 32 examples.
        let gradient = grad(loss, &[w])[0];
        t.next_state("w", w - gradient * (0.1 / 32.0));
        t.output("loss", loss.all_reduce(Reduction::Sum, data) / 32.0);
    })?;
    verify(&traced)?; // An error if `w` could lose lockstep, as it would without the all_reduce.
    let program = lower(&simplify(&traced), "linear");
    println!("{}", program.text_without_locations());

    let found = find_or_install("cpu", &InstallOptions::from_env()?, |text| eprintln!("{text}"))?;
    let client = Client::cpu(&Plugin::load(found.path)?, 4)?;
    let step = client.compile(&program, &CompileOptions::default())?;

    // Inputs on a grid; the true function is y = 1 x0 - 2 x1 + 3 x2.
    let x = |replica: usize, i: usize, j: usize| {
        (((replica * 8 + i) * (2 * j + 3)) % 7) as f32 / 3.0 - 1.0
    };
    let shards = |f: &dyn Fn(usize, usize) -> Vec<f32>, dims: &[usize]| -> Vec<Arc<Literal>> {
        let shard = |r| (0..8).flat_map(|i| f(r, i)).collect::<Vec<_>>();
        (0..4).map(|r| Arc::new(Literal::from_slice(dims, &shard(r)))).collect()
    };
    let row = |r: usize, i: usize| [0, 1, 2].map(|j| x(r, i, j));
    let xs = client.upload(&shards(&|r, i| row(r, i).to_vec(), &[8, 3]))?;
    let truth = |r, i| {
        let [a, b, c] = row(r, i);
        vec![a - 2.0 * b + 3.0 * c]
    };
    let ys = client.upload(&shards(&truth, &[8]))?;
    let mut w = client.upload_replicated(Arc::new(Literal::zeros(DType::F32, &[3])))?;
    for index in 0..100 {
        let args = vec![Arg::Donate(w), Arg::Borrow(&xs), Arg::Borrow(&ys)];
        // `w` is moved: its memory holds the next `w`.
        let mut outputs = step.execute(args)?.outputs;
        let loss = outputs.remove(1);
        w = outputs.remove(0);
        if index % 20 == 0 {
            println!("step {index}: loss {:.6}", loss.read(0)?.to_f64()[0]);
        }
    }
    for replica in 0..4 {
        println!("w on replica {replica}: {:?}", w.read(replica)?.as_slice::<f32>());
    }
    Ok(())
}
