//! Reading a raw log back, a row group at a time.

use std::fs::File;
use std::path::Path;

use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::schema::types::{Type, TypePtr};
use underlay_workload::{OperationKind, RawAnswer, RawOperation};

use crate::RawLogError;
use crate::schema::{COLUMNS, schema};

/// Rows for which memory is reserved on the word of the file's footer, which may be anybody's; more grow with what is
/// read.
const MAX_RESERVED_ROWS: usize = 1 << 20;

/// Calls `visit` with every operation of the file, in the file's order.
///
/// # Errors
/// When the file can't be read, or holds something else.
pub fn read(path: &Path, mut visit: impl FnMut(RawOperation)) -> std::result::Result<(), RawLogError> {
    let failed = |source: ParquetError| RawLogError::Read { path: path.to_owned(), source };
    let content = |problem: String| RawLogError::Content { path: path.to_owned(), problem };
    let file = File::open(path).map_err(|error| failed(error.into()))?;
    let reader = SerializedFileReader::new(file).map_err(failed)?;
    let found = reader.metadata().file_metadata().schema_descr().root_schema_ptr();
    let columns = |schema: &Type| -> Vec<_> {
        let column = |field: &TypePtr| {
            let physical = if field.is_primitive() { Some(field.get_physical_type()) } else { None };
            (field.name().to_owned(), physical)
        };
        schema.get_fields().iter().map(column).collect()
    };
    if columns(found.as_ref()) != columns(schema().map_err(failed)?.as_ref()) {
        return Err(content("its columns are not those of a raw log".to_owned()));
    }
    for group in 0..reader.num_row_groups() {
        let group = reader.get_row_group(group).map_err(failed)?;
        let columns = RowGroupColumns::from_group(group.as_ref()).map_err(failed)?;
        for row in 0..columns.threads.len() {
            visit(columns.operation(row).map_err(content)?);
        }
    }
    Ok(())
}

/// One row group.
struct RowGroupColumns {
    words: [Vec<ByteArray>; 2],
    threads: Vec<i32>,
    times: [Vec<i64>; 3],
}

impl RowGroupColumns {
    fn from_group(group: &dyn RowGroupReader) -> Result<RowGroupColumns> {
        debug_assert_eq!(group.num_columns(), COLUMNS);
        Ok(RowGroupColumns {
            words: [column::<ByteArrayType>(group, 0)?, column::<ByteArrayType>(group, 1)?],
            threads: column::<Int32Type>(group, 2)?,
            times: [
                column::<Int64Type>(group, 3)?,
                column::<Int64Type>(group, 4)?,
                column::<Int64Type>(group, 5)?,
            ],
        })
    }

    fn operation(&self, row: usize) -> std::result::Result<RawOperation, String> {
        // In bounds: `column` fails unless it finds a value for every row of the group.
        let [kind, answer] = [&self.words[0][row], &self.words[1][row]].map(|word| word.as_utf8());
        let kind = kind.ok().and_then(|name| OperationKind::ALL.into_iter().find(|kind| kind.name() == name));
        let answer = answer.ok().and_then(|name| RawAnswer::ALL.into_iter().find(|one| one.name() == name));
        let (Some(kind), Some(answer)) = (kind, answer) else {
            return Err(format!("row {row} of a group has an unknown operation or answer"));
        };
        Ok(RawOperation {
            kind,
            answer,
            thread: self.threads[row] as u32,
            intended_ns: self.times[0][row],
            start_ns: self.times[1][row],
            end_ns: self.times[2][row],
            read_end_ns: None,
        })
    }
}

fn column<T: DataType>(group: &dyn RowGroupReader, index: usize) -> Result<Vec<T::T>> {
    let rows = group.metadata().num_rows() as usize;
    let mut reader = get_typed_column_reader::<T>(group.get_column_reader(index)?);
    let mut values = Vec::with_capacity(rows.min(MAX_RESERVED_ROWS));
    while values.len() < rows {
        let (records, _, _) = reader.read_records(rows - values.len(), None, None, &mut values)?;
        // Otherwise a file that promises more rows than it has would keep this loop going forever.
        if records == 0 {
            return Err(ParquetError::General(format!("column {index} ends after {} rows", values.len())));
        }
    }
    Ok(values)
}
