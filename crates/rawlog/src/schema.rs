//! The columns, in their order.

use std::sync::Arc;

use parquet::errors::Result;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::Type;

/// The number of columns.
pub(crate) const COLUMNS: usize = 6;

const MESSAGE: &str = "
message operations {
    REQUIRED BYTE_ARRAY operation (UTF8);
    REQUIRED BYTE_ARRAY answer (UTF8);
    REQUIRED INT32 thread;
    REQUIRED INT64 intended_ns;
    REQUIRED INT64 start_ns;
    REQUIRED INT64 end_ns;
}
";

pub(crate) fn schema() -> Result<Arc<Type>> {
    parse_message_type(MESSAGE).map(Arc::new)
}
