package underlay.oraclenosql;

import underlay.jvm.Driver;
import underlay.jvm.Values;

/** What both forms of records have in common. */
abstract class Records implements Driver.Connection {
    @Override
    public final int scan(byte[] start, int limit, int field) {
        throw new UnsupportedOperationException("Oracle NoSQL Database divides records among partitions by the hash of their keys, and"
                + " has no scan in the order of keys: use a mix without scans");
    }

    @Override
    public final int scanRecords(byte[] start, int limit, int field, Values into) {
        return scan(start, limit, field);
    }

    @Override
    public final void close() {
        // All share the client, which the driver closes.
    }
}
