package underlay.jvm;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.Map;
import java.util.SortedMap;
import java.util.TreeMap;

/** The stored form of a record: its fields in order, each once, in the encoding of messages. */
public final class RecordFormat {
    private static final VarHandle SHORT = view(short[].class);
    private static final VarHandle INT = view(int[].class);
    private static final int COUNT_BYTES = 2;
    private static final int ENTRY_HEAD_BYTES = 6;

    private RecordFormat() {
    }

    /** The stored form of a whole record. Of a field that is given twice, the last value counts. */
    public static byte[] stored(Values values) {
        return values.isOrdered() ? values.toBytes() : encoded(with(new TreeMap<>(), values));
    }

    /** The record {@code old} with these fields changed. */
    public static byte[] changed(byte[] old, Values values) {
        SortedMap<Integer, byte[]> fields = new TreeMap<>();
        int at = COUNT_BYTES;
        for (int left = count(old); left > 0; left--) {
            byte[] value = new byte[length(old, at)];
            System.arraycopy(old, at + ENTRY_HEAD_BYTES, value, 0, value.length);
            fields.put(field(old, at), value);
            at += ENTRY_HEAD_BYTES + value.length;
        }
        return encoded(with(fields, values));
    }

    /** Whether these are all fields of a record, so that its former value does not matter. */
    public static boolean isWhole(Values values, int fields) {
        return values.size() == fields && values.isOrdered() && (fields == 0 || values.field(fields - 1) == fields - 1);
    }

    /** Adds the wanted fields of a stored record. */
    public static void select(byte[] stored, int wanted, Values into) {
        int at = COUNT_BYTES;
        for (int left = count(stored); left > 0; left--) {
            int length = length(stored, at);
            int field = field(stored, at);
            if (wanted == Driver.ALL_FIELDS || wanted == field) {
                into.add(field, stored, at + ENTRY_HEAD_BYTES, length);
            }
            at += ENTRY_HEAD_BYTES + length;
        }
    }

    private static SortedMap<Integer, byte[]> with(SortedMap<Integer, byte[]> fields, Values values) {
        for (int place = 0; place < values.size(); place++) {
            fields.put(values.field(place), values.copy(place));
        }
        return fields;
    }

    private static byte[] encoded(SortedMap<Integer, byte[]> fields) {
        int bytes = COUNT_BYTES;
        for (byte[] value : fields.values()) {
            bytes += ENTRY_HEAD_BYTES + value.length;
        }
        byte[] encoded = new byte[bytes];
        SHORT.set(encoded, 0, (short) fields.size());
        int at = COUNT_BYTES;
        for (Map.Entry<Integer, byte[]> entry : fields.entrySet()) {
            byte[] value = entry.getValue();
            SHORT.set(encoded, at, entry.getKey().shortValue());
            INT.set(encoded, at + 2, value.length);
            System.arraycopy(value, 0, encoded, at + ENTRY_HEAD_BYTES, value.length);
            at += ENTRY_HEAD_BYTES + value.length;
        }
        return encoded;
    }

    private static int count(byte[] stored) {
        return (short) SHORT.get(stored, 0) & 0xFFFF;
    }

    private static int field(byte[] stored, int at) {
        return (short) SHORT.get(stored, at) & 0xFFFF;
    }

    private static int length(byte[] stored, int at) {
        return (int) INT.get(stored, at + 2);
    }

    private static VarHandle view(Class<?> array) {
        return MethodHandles.byteArrayViewVarHandle(array, ByteOrder.LITTLE_ENDIAN);
    }
}
