package underlay.je;

import java.util.Arrays;

import underlay.jvm.Values;

/** The first records of what several shards have answered, in the order of their keys. It never holds more than it was asked for. */
final class FirstRecords {
    private final int limit;
    private Values values = new Values();
    private int count;

    FirstRecords(int limit) {
        this.limit = limit;
    }

    /** Merges in the records of one more shard, which are in order. */
    void add(Values others) {
        Values merged = new Values();
        int own = 0;
        int other = 0;
        for (count = 0; count < limit && (own < values.size() || other < others.size()); count++) {
            boolean takesOwn = other == others.size()
                    || own < values.size() && Arrays.compareUnsigned(values.copy(own), others.copy(other)) < 0;
            if (takesOwn) {
                int end = end(values, own);
                merged.addRange(values, own, end);
                own = end;
            } else {
                int end = end(others, other);
                merged.addRange(others, other, end);
                other = end;
            }
        }
        values = merged;
    }

    Values values() {
        return values;
    }

    int count() {
        return count;
    }

    /** Behind the last field of the record that begins at {@code first}. */
    private static int end(Values values, int first) {
        int end = first + 1;
        while (end < values.size() && values.field(end) != Values.RECORD_KEY) {
            end++;
        }
        return end;
    }
}
