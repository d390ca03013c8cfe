package underlay.jvm;

import java.io.IOException;
import java.io.InputStream;
import java.io.InterruptedIOException;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.ReadableByteChannel;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/**
 * A connection to a {@link RemoteService}. An {@link IOException} means that the connection is lost and says nothing about whether the
 * operation was done; every later call fails.
 */
public final class RemoteConnection implements Driver.Connection {
    private static final int REQUEST_HEAD_BYTES = Frame.LENGTH_BYTES + 4 + 1 + 4 + 8 + 2;
    /** After the length: the id, the status, the service time and the number. */
    private static final int REPLY_HEAD_BYTES = 4 + 1 + 8 + 8;

    private final Socket socket = new Socket();
    private final Values none = new Values();
    private final Values answer = new Values();
    private Frame frame;
    private byte[] out = new byte[4 << 10];
    private int lastId;
    private long deadline;

    /** The other side has answered that the operation failed; whether it had an effect is unknown. */
    public static final class Failure extends Exception {
        private static final long serialVersionUID = 1;

        Failure(String problem) {
            super(problem, null, false, false);
        }
    }

    private RemoteConnection() {
    }

    /** Connects, and opens a connection of the driver there with these options, within {@code limitMs} altogether. */
    public static RemoteConnection open(InetSocketAddress address, String secret, Map<String, String> options, int limitMs)
            throws Exception {
        RemoteConnection made = new RemoteConnection();
        boolean opened = false;
        try {
            made.within(limitMs);
            made.socket.setTcpNoDelay(true);
            made.socket.connect(address, limitMs);
            made.frame = new Frame(new Timed(made));
            Values words = new Values();
            words.add(0, RemoteService.SECRET.getBytes(StandardCharsets.UTF_8));
            words.add(1, secret.getBytes(StandardCharsets.UTF_8));
            for (Map.Entry<String, String> option : options.entrySet()) {
                words.add(words.size(), option.getKey().getBytes(StandardCharsets.UTF_8));
                words.add(words.size(), option.getValue().getBytes(StandardCharsets.UTF_8));
            }
            made.call(Request.OPEN, new byte[0], 0, 0, words);
            opened = true;
            return made;
        } finally {
            if (!opened) {
                made.close();
            }
        }
    }

    /** From now on, answers are waited for so long altogether. */
    public void within(long limitMs) {
        deadline = System.nanoTime() + limitMs * 1_000_000;
    }

    @Override
    public Driver.Outcome read(byte[] key, int field, Values into) throws Exception {
        Driver.Outcome outcome = outcome(call(Request.READ, key, field, 0, none));
        into.addAll(answer);
        return outcome;
    }

    @Override
    public int scan(byte[] start, int limit, int field) throws Exception {
        call(Request.SCAN, start, field, limit, none);
        return number();
    }

    @Override
    public int scanRecords(byte[] start, int limit, int field, Values into) throws Exception {
        call(Request.SCAN_RECORDS, start, field, limit, none);
        into.addAll(answer);
        return number();
    }

    @Override
    public Driver.Outcome update(byte[] key, Values values) throws Exception {
        return outcome(call(Request.UPDATE, key, 0, 0, values));
    }

    @Override
    public Driver.Outcome insert(byte[] key, Values values) throws Exception {
        return outcome(call(Request.INSERT, key, 0, 0, values));
    }

    @Override
    public Driver.Outcome delete(byte[] key) throws Exception {
        return outcome(call(Request.DELETE, key, 0, 0, none));
    }

    @Override
    public void close() {
        try {
            socket.close();
        } catch (IOException closed) {
            // It counts as closed in any case.
        }
    }

    /** Returns the status; the fields of the answer are in {@link #answer}. */
    private int call(int opcode, byte[] key, int field, long number, Values values) throws Exception {
        try {
            send(opcode, key, field, number, values);
            if (!frame.receive()) {
                throw new IOException("the connection was closed");
            }
            int at = frame.bodyStart;
            if (frame.bodyEnd - at < REPLY_HEAD_BYTES || Frame.intAt(frame.bytes(), at) != lastId) {
                throw new IOException("the answer is none to this request");
            }
            answer.read(frame.bytes(), at + REPLY_HEAD_BYTES, frame.bodyEnd);
        } catch (MalformedFrame malformed) {
            close();
            throw new IOException(malformed.getMessage());
        } catch (IOException lost) {
            close();
            throw lost;
        }
        int status = frame.bytes()[frame.bodyStart + 4];
        if (status != Reply.FAILED) {
            return status;
        }
        String text = answer.size() == 0 ? "" : new String(answer.copy(0), StandardCharsets.UTF_8);
        if (answer.size() > 1) {
            throw new NotDone(text);
        }
        throw new Failure(text);
    }

    private void send(int opcode, byte[] key, int field, long number, Values values) throws IOException {
        int length = REQUEST_HEAD_BYTES + key.length + values.encodedBytes();
        if (out.length < length) {
            out = new byte[Math.max(length, 2 * out.length)];
        }
        lastId++;
        Frame.putInt(out, 0, length - Frame.LENGTH_BYTES);
        Frame.putInt(out, 4, lastId);
        out[8] = (byte) opcode;
        Frame.putInt(out, 9, field);
        Frame.putLong(out, 13, number);
        Frame.putShort(out, 21, key.length);
        System.arraycopy(key, 0, out, REQUEST_HEAD_BYTES, key.length);
        values.encode(out, REQUEST_HEAD_BYTES + key.length);
        socket.getOutputStream().write(out, 0, length);
    }

    private int number() {
        return (int) Frame.longAt(frame.bytes(), frame.bodyStart + 13);
    }

    private static Driver.Outcome outcome(int status) {
        return switch (status) {
            case Reply.MISSING -> Driver.Outcome.MISSING;
            case Reply.THROTTLED -> Driver.Outcome.THROTTLED;
            default -> Driver.Outcome.FOUND;
        };
    }

    /** Reads from the socket until the deadline; a channel would wait forever. */
    private record Timed(RemoteConnection connection) implements ReadableByteChannel {
        @Override
        public int read(ByteBuffer into) throws IOException {
            long leftMs = (connection.deadline - System.nanoTime()) / 1_000_000;
            if (leftMs <= 0) {
                throw new InterruptedIOException("there is no answer in time");
            }
            connection.socket.setSoTimeout((int) Math.min(leftMs, Integer.MAX_VALUE));
            InputStream stream = connection.socket.getInputStream();
            int count = stream.read(into.array(), into.arrayOffset() + into.position(), into.remaining());
            if (count > 0) {
                into.position(into.position() + count);
            }
            return count;
        }

        @Override
        public boolean isOpen() {
            return !connection.socket.isClosed();
        }

        @Override
        public void close() {
            connection.close();
        }
    }
}
