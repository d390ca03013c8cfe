//! The database, with a view of its last commit that readers share: to begin a transaction of redb's takes longer than
//! to look a row up.

use std::ops::Deref;
use std::sync::Arc;

use redb::Database;
use underlay_sync::Mutex;

use super::view::MetadataView;
use crate::errors::GatewayResult;

/// See the module.
pub(crate) struct ViewedDatabase {
    /// Before the database, so that it is gone when that one is closed.
    latest: Mutex<Option<Arc<MetadataView>>>,
    database: Database,
}

impl ViewedDatabase {
    /// The state after the last commit.
    ///
    /// # Errors
    /// When the metadata can't be read.
    pub(super) fn view(&self) -> GatewayResult<Arc<MetadataView>> {
        // One that is begun while a commit ends is there before the committer forgets it, or sees that commit.
        let mut latest = self.latest.lock();
        if let Some(view) = &*latest {
            return Ok(Arc::clone(view));
        }
        let view = Arc::new(MetadataView::from_database(&self.database)?);
        *latest = Some(Arc::clone(&view));
        Ok(view)
    }

    /// Has readers see a later commit. To be called behind each, before anybody hears of it.
    pub(super) fn forget_view(&self) {
        let former = self.latest.lock().take();
        // It may be the last one, and its end takes locks of redb's.
        drop(former);
    }
}

impl From<Database> for ViewedDatabase {
    fn from(database: Database) -> ViewedDatabase {
        ViewedDatabase { latest: Mutex::default(), database }
    }
}

impl Deref for ViewedDatabase {
    type Target = Database;

    fn deref(&self) -> &Database {
        &self.database
    }
}
