//! Writing the shard of a process: a safetensors file.

use std::io::{self, Write};
use std::path::Path;

use hlo::DType;
use safetensors::tensor::Dtype;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::xxh3_128;

use super::manifest::{BLOCK_BYTES, hex};
use super::{Disk, FileRecord, HostLeaf, HostPiece, LeafRecord, PieceRecord};

/// The shard that a process has written, as the manifest describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedShard {
    pub(super) file: FileRecord,
    /// The leaves, each with its pieces in this file.
    pub(super) leaves: Vec<LeafRecord>,
}

/// The pieces of all leaves in the order in which a file holds them: wide dtypes first, so that all
/// are aligned.
fn in_order(leaves: &[HostLeaf]) -> Vec<(usize, usize)> {
    let pieces =
        |(leaf, of): (usize, &HostLeaf)| (0..of.pieces.len()).map(move |piece| (leaf, piece));
    let mut order: Vec<_> = leaves.iter().enumerate().flat_map(pieces).collect();
    order.sort_by_key(|(leaf, _)| std::cmp::Reverse(leaves[*leaf].spec.dtype.size_bytes()));
    order
}

/// Writes a shard to a new file, and waits until it is on the disk.
pub(super) fn write_shard_file<D: Disk>(
    disk: &D,
    path: &Path,
    name: &str,
    leaves: &[HostLeaf],
) -> io::Result<SavedShard> {
    let mut file = disk.create(path)?;
    let shard = write_shard(&mut file, name, leaves)?;
    disk.sync(&file).map(|()| shard)
}

/// Writes a shard. `name` is the name of its file.
pub(super) fn write_shard(
    file: &mut impl Write,
    name: &str,
    leaves: &[HostLeaf],
) -> io::Result<SavedShard> {
    let order = in_order(leaves);
    let mut tensors = Map::new();
    let mut end = 0;
    for &(leaf, piece) in &order {
        let (leaf, values) = (&leaves[leaf], &leaves[leaf].pieces[piece].values);
        let start = end;
        end += values.num_bytes() as u64;
        let tensor = json!({
            "dtype": safetensors_dtype(leaf.spec.dtype),
            "shape": values.dims(),
            "data_offsets": [start, end],
        });
        tensors.insert(tensor_name(leaf, &leaf.pieces[piece]), tensor);
    }
    let header = header(&tensors)?;
    file.write_all(&header)?;
    let mut offset = header.len() as u64;
    let mut records: Vec<_> = leaves.iter().map(|leaf| vec![None; leaf.pieces.len()]).collect();
    for &(index, place) in &order {
        let (leaf, piece) = (&leaves[index], &leaves[index].pieces[place]);
        let mut checksums = vec![];
        for block in piece.values.bytes().chunks(BLOCK_BYTES) {
            checksums.push(hex(xxh3_128(block)));
            file.write_all(block)?;
        }
        let num_bytes = piece.values.num_bytes() as u64;
        records[index][place] = Some(PieceRecord {
            file: 0,
            tensor: tensor_name(leaf, piece),
            start: piece.start.clone(),
            dims: piece.values.dims().to_vec(),
            offset,
            num_bytes,
            checksums,
        });
        offset += num_bytes;
    }
    let of_leaf = |(leaf, pieces): (&HostLeaf, Vec<Option<PieceRecord>>)| {
        LeafRecord::new(&leaf.path, &leaf.spec, pieces.into_iter().flatten().collect())
    };
    let file = FileRecord {
        name: name.to_owned(),
        num_bytes: offset,
        header_bytes: header.len() as u64,
        header_checksum: hex(xxh3_128(&header)),
        block_bytes: BLOCK_BYTES as u64,
    };
    Ok(SavedShard { file, leaves: leaves.iter().zip(records).map(of_leaf).collect() })
}

/// The header of a safetensors file: its length, then JSON, padded with spaces so that the values
/// are aligned.
fn header(tensors: &Map<String, Value>) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(tensors)?;
    text.resize(text.len().next_multiple_of(8), b' ');
    Ok([&(text.len() as u64).to_le_bytes(), &text[..]].concat())
}

/// The leaf's path, followed by the piece's ranges if it is not the whole leaf:
/// `params.weight[0:16,0:10]`.
fn tensor_name(leaf: &HostLeaf, piece: &HostPiece) -> String {
    if piece.values.dims() == leaf.spec.dims {
        return leaf.path.clone();
    }
    let ranges = piece.start.iter().zip(piece.values.dims());
    let ranges: Vec<_> = ranges.map(|(start, size)| format!("{start}:{}", start + size)).collect();
    format!("{}[{}]", leaf.path, ranges.join(","))
}

/// The dtype as safetensors files have it.
pub fn safetensors_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::Bf16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::I8 => Dtype::I8,
        DType::U64 => Dtype::U64,
        DType::U32 => Dtype::U32,
        DType::U8 => Dtype::U8,
        DType::Pred => Dtype::BOOL,
    }
}
