package underlay.oraclenosql;

import oracle.kv.Consistency;
import oracle.kv.Key;
import oracle.kv.Value;
import oracle.kv.ValueVersion;
import oracle.kv.Version;

import underlay.jvm.Driver;
import underlay.jvm.NotDone;
import underlay.jvm.RecordFormat;
import underlay.jvm.Values;

/** A record is one value under a major key. */
final class ValueRecords extends Records {
    private final Requests requests;
    private final int fields;

    ValueRecords(Requests requests, int fields) {
        this.requests = requests;
        this.fields = fields;
    }

    @Override
    public Driver.Outcome read(byte[] name, int field, Values into) throws Exception {
        Key key = Requests.major(name);
        ValueVersion found = requests.send(requests.deadline(),
                leftMs -> requests.store.get(key, requests.consistency, leftMs, Requests.UNIT));
        if (found == null) {
            return Driver.Outcome.MISSING;
        }
        RecordFormat.select(found.getValue().getValue(), field, into);
        return Driver.Outcome.FOUND;
    }

    @Override
    public Driver.Outcome insert(byte[] name, Values values) throws Exception {
        put(requests.deadline(), Requests.major(name), Value.createValue(RecordFormat.stored(values)));
        return Driver.Outcome.FOUND;
    }

    /** Creates a record that is not there. */
    @Override
    public Driver.Outcome update(byte[] name, Values values) throws Exception {
        long deadline = requests.deadline();
        Key key = Requests.major(name);
        if (RecordFormat.isWhole(values, fields)) {
            put(deadline, key, Value.createValue(RecordFormat.stored(values)));
            return Driver.Outcome.FOUND;
        }
        while (!changed(deadline, key, values)) {
            if (System.nanoTime() >= deadline) {
                throw new NotDone("others changed the record again and again");
            }
        }
        return Driver.Outcome.FOUND;
    }

    /** Whether nobody else changed the record between reading and writing it. */
    private boolean changed(long deadline, Key key, Values values) throws Exception {
        ValueVersion old = requests.send(deadline,
                leftMs -> requests.store.get(key, Consistency.ABSOLUTE, leftMs, Requests.UNIT));
        Version written;
        if (old == null) {
            Value value = Value.createValue(RecordFormat.stored(values));
            written = requests.send(deadline,
                    leftMs -> requests.store.putIfAbsent(key, value, null, requests.durability, leftMs, Requests.UNIT));
        } else {
            Value value = Value.createValue(RecordFormat.changed(old.getValue().getValue(), values));
            written = requests.send(deadline, leftMs -> requests.store.putIfVersion(key, value, old.getVersion(), null,
                    requests.durability, leftMs, Requests.UNIT));
        }
        return written != null;
    }

    private void put(long deadline, Key key, Value value) throws Exception {
        requests.send(deadline, leftMs -> requests.store.put(key, value, null, requests.durability, leftMs, Requests.UNIT));
    }

    @Override
    public Driver.Outcome delete(byte[] name) throws Exception {
        Key key = Requests.major(name);
        boolean found = requests.send(requests.deadline(),
                leftMs -> requests.store.delete(key, null, requests.durability, leftMs, Requests.UNIT));
        return found ? Driver.Outcome.FOUND : Driver.Outcome.MISSING;
    }
}
