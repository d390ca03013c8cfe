package underlay.oraclenosql;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.SortedMap;
import java.util.SortedSet;
import java.util.TreeMap;

import oracle.kv.Depth;
import oracle.kv.Key;
import oracle.kv.Operation;
import oracle.kv.OperationFactory;
import oracle.kv.Value;
import oracle.kv.ValueVersion;

import underlay.jvm.Driver;
import underlay.jvm.Values;

/**
 * Each field of a record is a value under a minor key of its own, below the record's major key: all of them are in one partition and
 * can be written at once. A record that was written without any field has a value under the major key alone.
 */
final class FieldRecords extends Records {
    private static final String PREFIX = "field";

    private final Requests requests;
    private final int fields;

    FieldRecords(Requests requests, int fields) {
        this.requests = requests;
        this.fields = fields;
    }

    @Override
    public Driver.Outcome read(byte[] name, int field, Values into) throws Exception {
        Key major = Requests.major(name);
        long deadline = requests.deadline();
        if (field == Driver.ALL_FIELDS) {
            return readAll(deadline, major, into);
        }
        Key key = minor(major, field);
        ValueVersion found = requests.send(deadline,
                leftMs -> requests.store.get(key, requests.consistency, leftMs, Requests.UNIT));
        if (found != null) {
            into.add(field, found.getValue().getValue());
            return Driver.Outcome.FOUND;
        }
        // A record without this field is there nevertheless.
        SortedSet<Key> keys = requests.send(deadline, leftMs -> requests.store.multiGetKeys(major, null,
                Depth.PARENT_AND_DESCENDANTS, requests.consistency, leftMs, Requests.UNIT));
        return keys.isEmpty() ? Driver.Outcome.MISSING : Driver.Outcome.FOUND;
    }

    private Driver.Outcome readAll(long deadline, Key major, Values into) throws Exception {
        SortedMap<Key, ValueVersion> found = requests.send(deadline, leftMs -> requests.store.multiGet(major, null,
                Depth.PARENT_AND_DESCENDANTS, requests.consistency, leftMs, Requests.UNIT));
        if (found.isEmpty()) {
            return Driver.Outcome.MISSING;
        }
        // They arrive in the order of their names: field10 before field2.
        SortedMap<Integer, byte[]> ordered = new TreeMap<>();
        for (Map.Entry<Key, ValueVersion> entry : found.entrySet()) {
            List<String> path = entry.getKey().getMinorPath();
            if (!path.isEmpty() && path.get(0).startsWith(PREFIX)) {
                ordered.put(Integer.valueOf(path.get(0).substring(PREFIX.length())), entry.getValue().getValue().getValue());
            }
        }
        ordered.forEach(into::add);
        return Driver.Outcome.FOUND;
    }

    @Override
    public Driver.Outcome insert(byte[] name, Values values) throws Exception {
        Key major = Requests.major(name);
        List<Operation> operations = puts(major, values);
        boolean[] given = new boolean[fields];
        for (int place = 0; place < values.size(); place++) {
            if (values.field(place) < fields) {
                given[values.field(place)] = true;
            }
        }
        OperationFactory factory = requests.store.getOperationFactory();
        for (int field = 0; field < fields; field++) {
            if (!given[field]) {
                operations.add(factory.createDelete(minor(major, field)));
            }
        }
        execute(operations);
        return Driver.Outcome.FOUND;
    }

    /** Creates a record that is not there. */
    @Override
    public Driver.Outcome update(byte[] name, Values values) throws Exception {
        Key major = Requests.major(name);
        if (values.size() == 1) {
            Key key = minor(major, values.field(0));
            Value value = Value.createValue(values.copy(0));
            requests.send(requests.deadline(),
                    leftMs -> requests.store.put(key, value, null, requests.durability, leftMs, Requests.UNIT));
        } else {
            execute(puts(major, values));
        }
        return Driver.Outcome.FOUND;
    }

    @Override
    public Driver.Outcome delete(byte[] name) throws Exception {
        Key major = Requests.major(name);
        int deleted = requests.send(requests.deadline(), leftMs -> requests.store.multiDelete(major, null,
                Depth.PARENT_AND_DESCENDANTS, requests.durability, leftMs, Requests.UNIT));
        return deleted > 0 ? Driver.Outcome.FOUND : Driver.Outcome.MISSING;
    }

    /** Of a field that is given twice, the last value counts: no key may be written twice at once. */
    private List<Operation> puts(Key major, Values values) {
        OperationFactory factory = requests.store.getOperationFactory();
        Map<Integer, byte[]> last = new TreeMap<>();
        for (int place = 0; place < values.size(); place++) {
            last.put(values.field(place), values.copy(place));
        }
        List<Operation> operations = new ArrayList<>();
        last.forEach((field, value) -> operations.add(factory.createPut(minor(major, field), Value.createValue(value))));
        if (last.isEmpty()) {
            operations.add(factory.createPut(major, Value.EMPTY_VALUE));
        }
        return operations;
    }

    private void execute(List<Operation> operations) throws Exception {
        requests.send(requests.deadline(),
                leftMs -> requests.store.execute(operations, requests.durability, leftMs, Requests.UNIT));
    }

    private static Key minor(Key major, int field) {
        return Key.createKey(major.getMajorPath(), PREFIX + field);
    }
}
