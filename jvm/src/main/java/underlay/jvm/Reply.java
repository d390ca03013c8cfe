package underlay.jvm;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;

/** The answer to a request. One object is reused for all of them. */
final class Reply {
    static final int FOUND = 0;
    static final int MISSING = 1;
    static final int THROTTLED = 2;
    static final int FAILED = 3;

    private static final int HEAD_BYTES = Frame.LENGTH_BYTES + 4 + 1 + 8 + 8;
    private static final int MAX_TEXT_BYTES = Frame.MAX_BYTES / 2;
    private static final int KEPT_BYTES = 1 << 20;

    /** The time that the driver took. */
    long serviceNs;
    int status;
    /** For scans: the number of records read. */
    long number;
    final Values values = new Values();
    private ByteBuffer frame = ByteBuffer.allocate(4 << 10);

    /** Makes it the answer to a successful request without results. */
    void clear() {
        serviceNs = 0;
        status = FOUND;
        number = 0;
        values.clear();
    }

    void text(int newStatus, String text) {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        number = 0;
        values.clear();
        values.add(0, bytes, 0, Math.min(bytes.length, MAX_TEXT_BYTES));
        status = newStatus;
    }

    /** The answer that nothing was done, so that the request may be repeated. */
    void notDone(String text) {
        text(FAILED, text);
        values.add(1, new byte[0]);
    }

    void outcome(Driver.Outcome outcome) {
        status = switch (outcome) {
            case FOUND -> FOUND;
            case MISSING -> MISSING;
            case THROTTLED -> THROTTLED;
        };
    }

    /** Sends it with one write, unless the socket's buffer is full. */
    void send(int id, SocketChannel channel) throws IOException {
        if (values.encodedBytes() > Frame.MAX_BYTES - HEAD_BYTES) {
            text(FAILED, "the record is longer than the " + Frame.MAX_BYTES + " bytes of a message");
        }
        int length = HEAD_BYTES + values.encodedBytes();
        if (frame.capacity() < length || frame.capacity() > KEPT_BYTES && length < KEPT_BYTES) {
            frame = ByteBuffer.allocate(Math.max(length, 4 << 10));
        }
        byte[] bytes = frame.array();
        Frame.putInt(bytes, 0, length - Frame.LENGTH_BYTES);
        Frame.putInt(bytes, 4, id);
        bytes[8] = (byte) status;
        Frame.putLong(bytes, 9, serviceNs);
        Frame.putLong(bytes, 17, number);
        values.encode(bytes, HEAD_BYTES);
        frame.limit(length).position(0);
        while (frame.hasRemaining()) {
            channel.write(frame);
        }
    }
}
