//! Writing: operations are gathered into row groups, and a file takes its name when it is whole.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::Result;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::ColumnPath;
use underlay_files::Access;
use underlay_workload::{RawOperation, RawOperations};

use crate::RawLogError;
use crate::schema::schema;

/// Rows of a group: some 20 MB of memory while it is written.
const GROUP_ROWS: usize = 1 << 19;
const TIMES: [&str; 3] = ["intended_ns", "start_ns", "end_ns"];

/// Writes all operations until the run is over, and says how many there were. The file is there when this returns;
/// while it is written its name ends in `.part`. Nothing but a regular file is replaced by it.
///
/// # Errors
/// When the file can't be written. The run goes on without its log, then.
pub fn write(operations: RawOperations, path: &Path) -> std::result::Result<u64, RawLogError> {
    underlay_files::replace_with(path, Access::Readable, |file| write_part(operations, file))
        .map_err(|source| RawLogError::Write { path: path.to_owned(), source })
}

fn properties() -> Result<WriterProperties> {
    let mut properties =
        WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::try_new(1)?));
    for time in TIMES {
        // Neighbours differ little, and no two are the same.
        let column = ColumnPath::from(time);
        properties = properties
            .set_column_dictionary_enabled(column.clone(), false)
            .set_column_encoding(column, Encoding::DELTA_BINARY_PACKED);
    }
    Ok(properties.build())
}

fn write_part(operations: RawOperations, part: File) -> Result<u64> {
    let mut writer = SerializedFileWriter::new(part, schema()?, Arc::new(properties()?))?;
    let mut rows = 0;
    let mut group: Vec<RawOperation> = Vec::with_capacity(GROUP_ROWS);
    for batch in operations {
        rows += batch.len() as u64;
        group.extend_from_slice(&batch);
        if group.len() >= GROUP_ROWS {
            write_group(&mut writer, &group)?;
            group.clear();
        }
    }
    if !group.is_empty() {
        write_group(&mut writer, &group)?;
    }
    writer.close()?;
    Ok(rows)
}

fn write_group(writer: &mut SerializedFileWriter<File>, group: &[RawOperation]) -> Result<()> {
    let mut columns = writer.next_row_group()?;
    let words = |word: fn(&RawOperation) -> &'static str| -> Vec<ByteArray> {
        group.iter().map(|one| ByteArray::from(word(one))).collect()
    };
    write_column::<ByteArrayType>(&mut columns, &words(|one| one.kind.name()))?;
    write_column::<ByteArrayType>(&mut columns, &words(|one| one.answer.name()))?;
    // Cannot overflow: a run has some thousand threads at most.
    let threads: Vec<i32> = group.iter().map(|one| one.thread as i32).collect();
    write_column::<Int32Type>(&mut columns, &threads)?;
    let times = |time: fn(&RawOperation) -> i64| -> Vec<i64> { group.iter().map(time).collect() };
    write_column::<Int64Type>(&mut columns, &times(|one| one.intended_ns))?;
    write_column::<Int64Type>(&mut columns, &times(|one| one.start_ns))?;
    write_column::<Int64Type>(&mut columns, &times(|one| one.end_ns))?;
    columns.close()?;
    Ok(())
}

fn write_column<T: DataType>(
    columns: &mut SerializedRowGroupWriter<'_, File>,
    values: &[T::T],
) -> Result<()> {
    let mut column = columns.next_column()?.expect("as many columns as the schema has");
    column.typed::<T>().write_batch(values, None, None)?;
    column.close()
}
