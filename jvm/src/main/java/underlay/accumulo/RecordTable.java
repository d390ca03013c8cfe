package underlay.accumulo;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.regex.Pattern;

import org.apache.accumulo.core.client.IteratorSetting;
import org.apache.accumulo.core.data.Mutation;
import org.apache.accumulo.core.iterators.user.RegExFilter;
import org.apache.accumulo.core.security.ColumnVisibility;
import org.apache.hadoop.io.Text;
import underlay.jvm.Driver;
import underlay.jvm.Values;

/** How records are stored in a table: the key is the row, and each field is an entry with its index in the qualifier. */
final class RecordTable {
    private static final String FIELD = "field";
    /** Runs after the VersioningIterator, which has priority 20 in every table, so that old versions are never matched. */
    private static final int FILTER_PRIORITY = 50;

    final String name;
    final int fields;
    private final byte[] family;
    private final byte[][] qualifiers;
    private final ColumnVisibility visibility;
    private final IteratorSetting scanFilter;

    RecordTable(Map<String, String> properties) {
        name = required(properties, "table");
        fields = Integer.parseInt(required(properties, "fields"));
        family = properties.getOrDefault("family", "record").getBytes(StandardCharsets.UTF_8);
        qualifiers = new byte[fields][];
        for (int field = 0; field < fields; field++) {
            qualifiers[field] = (FIELD + field).getBytes(StandardCharsets.UTF_8);
        }
        visibility = new ColumnVisibility(properties.getOrDefault("visibility", ""));
        String pattern = properties.getOrDefault("scan-filter", "");
        scanFilter = pattern.isEmpty() ? null : filter(pattern);
    }

    static String required(Map<String, String> properties, String name) {
        String value = properties.get(name);
        if (value == null || value.isEmpty()) {
            throw new IllegalArgumentException("the property '" + name + "' is missing");
        }
        return value;
    }

    private static IteratorSetting filter(String pattern) {
        // Otherwise the server would report a wrong one at every scan.
        Pattern.compile(pattern);
        IteratorSetting setting = new IteratorSetting(FILTER_PRIORITY, "scan-filter", RegExFilter.class);
        RegExFilter.setRegexs(setting, null, null, null, pattern, false, true);
        // A character per byte: decoded as UTF-8, arbitrary values would be altered.
        RegExFilter.setEncoding(setting, StandardCharsets.ISO_8859_1.name());
        return setting;
    }

    /** A filter on the servers for entries whose value matches; {@code null} if there is none. */
    IteratorSetting scanFilter() {
        return scanFilter;
    }

    Text family() {
        return new Text(family);
    }

    Text qualifier(int field) {
        return new Text(FIELD + field);
    }

    /** The field of a qualifier; -1 if it is not one of our fields. */
    static int field(byte[] qualifier) {
        int digits = FIELD.length();
        if (qualifier.length <= digits || qualifier.length > digits + 5) {
            return -1;
        }
        for (int at = 0; at < digits; at++) {
            if (qualifier[at] != FIELD.charAt(at)) {
                return -1;
            }
        }
        int field = 0;
        for (int at = digits; at < qualifier.length; at++) {
            int digit = qualifier[at] - '0';
            if (digit < 0 || digit > 9) {
                return -1;
            }
            field = 10 * field + digit;
        }
        return field;
    }

    /** Writes these fields of a record; {@code null} if there are none, since Accumulo has no empty rows. */
    Mutation update(byte[] key, Values values) {
        if (values.size() == 0) {
            return null;
        }
        Mutation mutation = new Mutation(key);
        for (int place = 0; place < values.size(); place++) {
            put(mutation, values.field(place), values.copy(place));
        }
        return mutation;
    }

    /** Writes a whole record: its other fields are deleted. */
    Mutation insert(byte[] key, Values values) {
        Mutation mutation = new Mutation(key);
        boolean[] written = new boolean[fields];
        for (int place = 0; place < values.size(); place++) {
            int field = values.field(place);
            put(mutation, field, values.copy(place));
            if (field < fields) {
                written[field] = true;
            }
        }
        for (int field = 0; field < fields; field++) {
            if (!written[field]) {
                mutation.putDelete(family, qualifiers[field], visibility);
            }
        }
        return mutation;
    }

    Mutation delete(byte[] key) {
        Mutation mutation = new Mutation(key);
        for (byte[] qualifier : qualifiers) {
            mutation.putDelete(family, qualifier, visibility);
        }
        return mutation;
    }

    private void put(Mutation mutation, int field, byte[] value) {
        byte[] qualifier =
                field < fields ? qualifiers[field] : (FIELD + field).getBytes(StandardCharsets.UTF_8);
        mutation.put(family, qualifier, visibility, value);
    }

    /** How many entries of a record are requested. */
    int entries(int field) {
        return field == Driver.ALL_FIELDS ? fields : 1;
    }
}
