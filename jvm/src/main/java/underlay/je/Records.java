package underlay.je;

import com.sleepycat.je.Cursor;
import com.sleepycat.je.CursorConfig;
import com.sleepycat.je.Database;
import com.sleepycat.je.DatabaseEntry;
import com.sleepycat.je.DatabaseException;
import com.sleepycat.je.Environment;
import com.sleepycat.je.Get;
import com.sleepycat.je.LockMode;
import com.sleepycat.je.OperationResult;
import com.sleepycat.je.OperationStatus;
import com.sleepycat.je.Put;
import com.sleepycat.je.Transaction;

import underlay.jvm.Driver;
import underlay.jvm.RecordFormat;
import underlay.jvm.Values;

/** The operations of one connection on a database: a record is one value under one key. */
final class Records {
    /** A database with the environment that it belongs to. */
    record Store(Environment environment, Database database) {
    }

    private final int fields;
    private final DatabaseEntry key = new DatabaseEntry();
    private final DatabaseEntry data = new DatabaseEntry();

    Records(int fields) {
        this.fields = fields;
    }

    Driver.Outcome read(Store store, byte[] name, int field, Values into) {
        key.setData(name);
        if (store.database.get(null, key, data, Get.SEARCH, null) == null) {
            return Driver.Outcome.MISSING;
        }
        RecordFormat.select(data.getData(), field, into);
        return Driver.Outcome.FOUND;
    }

    /** Adds the records to {@code into}, unless that is {@code null}. */
    int scan(Store store, byte[] start, int limit, int field, Values into) {
        int count = 0;
        try (Cursor cursor = store.database.openCursor(null, CursorConfig.READ_COMMITTED)) {
            key.setData(start);
            OperationResult found = limit == 0 ? null : cursor.get(key, data, Get.SEARCH_GTE, null);
            while (found != null) {
                count++;
                if (into != null) {
                    into.add(Values.RECORD_KEY, key.getData());
                    RecordFormat.select(data.getData(), field, into);
                }
                found = count == limit ? null : cursor.get(key, data, Get.NEXT, null);
            }
        }
        return count;
    }

    void insert(Store store, byte[] name, Values values) {
        put(store, null, name, RecordFormat.stored(values));
    }

    /** Creates a record that is not there. */
    void update(Store store, byte[] name, Values values) {
        if (RecordFormat.isWhole(values, fields)) {
            insert(store, name, values);
            return;
        }
        Transaction transaction = store.environment.beginTransaction(null, null);
        boolean ended = false;
        try {
            key.setData(name);
            // With the lock of a writer from the beginning: two that both have a reader's would wait for each other.
            boolean found = store.database.get(transaction, key, data, LockMode.RMW) == OperationStatus.SUCCESS;
            byte[] changed = found ? RecordFormat.changed(data.getData(), values) : RecordFormat.stored(values);
            put(store, transaction, name, changed);
            ended = true;
            transaction.commit();
        } finally {
            if (!ended) {
                abort(transaction);
            }
        }
    }

    Driver.Outcome delete(Store store, byte[] name) {
        key.setData(name);
        boolean found = store.database.delete(null, key) == OperationStatus.SUCCESS;
        return found ? Driver.Outcome.FOUND : Driver.Outcome.MISSING;
    }

    private void put(Store store, Transaction transaction, byte[] name, byte[] stored) {
        key.setData(name);
        data.setData(stored);
        store.database.put(transaction, key, data, Put.OVERWRITE, null);
    }

    private static void abort(Transaction transaction) {
        try {
            transaction.abort();
        } catch (DatabaseException | IllegalStateException ended) {
            // What made it fail is reported, and has ended it already.
        }
    }
}
