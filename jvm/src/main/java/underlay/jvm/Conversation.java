package underlay.jvm;

import java.io.IOException;
import java.nio.channels.SocketChannel;
import java.util.Map;
import java.util.TreeMap;

/** One connection of the load generator: a thread that answers its requests in order. */
final class Conversation implements Runnable {
    private static final int MAX_CAUSES = 5;

    /** Where the connection came in. */
    interface Host {
        void ended(Conversation conversation);

        /** The connection has requested the end of the process. */
        void stop(SocketChannel asked, int id);
    }

    private final Host host;
    private final Driver driver;
    private final SocketChannel channel;
    private final Request request = new Request();
    private final Reply reply = new Reply();
    /** Created for the first operation, since a connection that only asks for figures needs no client of the system. */
    private Driver.Connection client;

    Conversation(Host host, Driver driver, SocketChannel channel) {
        this.host = host;
        this.driver = driver;
        this.channel = channel;
    }

    SocketChannel channel() {
        return channel;
    }

    /** Lets these conversations answer what they were asked already, and waits for their threads, but only so long altogether. */
    static void end(Map<Conversation, Thread> ending, long patienceMs) throws InterruptedException {
        for (Conversation conversation : ending.keySet()) {
            try {
                // Only reading ends, so that pending answers are still sent.
                conversation.channel.shutdownInput();
            } catch (IOException gone) {
                // The peer has closed it already.
            }
        }
        long deadline = System.currentTimeMillis() + patienceMs;
        for (Thread thread : ending.values()) {
            thread.join(Math.max(1, deadline - System.currentTimeMillis()));
        }
    }

    @Override
    public void run() {
        boolean stop = false;
        try {
            stop = converse();
        } catch (IOException gone) {
            // The peer is gone, so the error can't be sent.
        } finally {
            closeClient();
            host.ended(this);
            if (stop) {
                host.stop(channel, request.id);
            } else {
                close(channel);
            }
        }
    }

    /** Answers until the connection ends. Returns {@code true} if it has requested the end of the process. */
    private boolean converse() throws IOException {
        Frame frame = new Frame(channel);
        while (true) {
            try {
                if (!frame.receive()) {
                    return false;
                }
            } catch (MalformedFrame malformed) {
                refuse(0, malformed.getMessage());
                return false;
            }
            try {
                request.decode(frame.bytes(), frame.bodyStart, frame.bodyEnd);
            } catch (MalformedFrame malformed) {
                refuse(request.id, "malformed request: " + malformed.getMessage());
                return false;
            }
            if (request.opcode == Request.STOP) {
                return true;
            }
            reply.clear();
            long started = System.nanoTime();
            try {
                answer();
            } catch (NotDone refused) {
                reply.notDone(describe(refused));
            } catch (Throwable problem) {
                // Includes errors such as a missing class: the load generator must learn of everything.
                reply.text(Reply.FAILED, describe(problem));
            }
            reply.serviceNs = System.nanoTime() - started;
            reply.send(request.id, channel);
        }
    }

    private void answer() throws Exception {
        switch (request.opcode) {
            case Request.READ -> {
                Driver.Outcome outcome = client().read(request.key, request.field, reply.values);
                if (outcome != Driver.Outcome.FOUND) {
                    reply.values.clear();
                }
                reply.outcome(outcome);
            }
            case Request.SCAN -> {
                reply.number = client().scan(request.key, request.most(), request.field);
                reply.status = reply.number > 0 ? Reply.FOUND : Reply.MISSING;
            }
            case Request.SCAN_RECORDS -> {
                reply.number = client().scanRecords(request.key, request.most(), request.field, reply.values);
                reply.status = reply.number > 0 ? Reply.FOUND : Reply.MISSING;
            }
            case Request.UPDATE -> reply.outcome(client().update(request.key, request.values));
            case Request.INSERT -> reply.outcome(client().insert(request.key, request.values));
            case Request.DELETE -> reply.outcome(client().delete(request.key));
            case Request.FIGURES -> reply.text(Reply.FOUND, json(driver.figures()));
            case Request.GAUGES -> reply.text(Reply.FOUND, json(driver.gauges()));
            case Request.SETTLE -> driver.settle(request.limit());
            case Request.OPEN -> {
                closeClient();
                client = driver.connect(request.options());
            }
            case Request.COMMAND ->
                reply.text(Reply.FOUND, driver.command(request.keyText(), request.text(0), request.limit()));
            default -> {
                // A ping: any answer will do.
            }
        }
    }

    private Driver.Connection client() throws Exception {
        if (client == null) {
            client = driver.connect(Map.of());
        }
        return client;
    }

    private void closeClient() {
        Driver.Connection closing = client;
        client = null;
        if (closing != null) {
            try {
                closing.close();
            } catch (Throwable problem) {
                System.err.println("a client did not close: " + describe(problem));
            }
        }
    }

    private void refuse(int id, String problem) throws IOException {
        reply.clear();
        reply.text(Reply.FAILED, problem);
        reply.send(id, channel);
    }

    static void close(SocketChannel channel) {
        try {
            channel.close();
        } catch (IOException closed) {
            // It counts as closed in any case.
        }
    }

    /** Describes an exception and its causes in one line. */
    static String describe(Throwable problem) {
        StringBuilder text = new StringBuilder();
        Throwable cause = problem;
        for (int depth = 0; cause != null && depth < MAX_CAUSES; depth++, cause = cause.getCause()) {
            String message = cause.getMessage();
            // The message of a plain wrapper repeats its cause, and a cause without a message explains nothing.
            boolean wrapper = cause.getCause() != null
                    && (message == null || message.equals(cause.getCause().toString()));
            if (wrapper || message == null && !text.isEmpty()) {
                continue;
            }
            String words = cause.getClass().getSimpleName() + (message == null ? "" : ": " + message);
            if (text.indexOf(words) < 0) {
                text.append(text.isEmpty() ? "" : ", because of ").append(words);
            }
        }
        return text.toString();
    }

    /** A JSON object of numbers, without infinities and NaNs. */
    private static String json(Map<String, Double> figures) {
        StringBuilder text = new StringBuilder("{");
        for (Map.Entry<String, Double> figure : new TreeMap<>(figures).entrySet()) {
            if (Double.isFinite(figure.getValue())) {
                text.append(text.length() > 1 ? "," : "").append('"');
                figure.getKey().chars().filter(letter -> letter >= ' ' && letter != '"' && letter != '\\')
                        .forEach(letter -> text.append((char) letter));
                text.append("\":").append(figure.getValue().doubleValue());
            }
        }
        return text.append('}').toString();
    }
}
